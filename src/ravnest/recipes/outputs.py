"""Finding one tensor in what a model returns, and the axis of its classes.

Torch is known here by what its tensors can do, not by name: importing this imports no torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ravnest.errors import JobError

Path = Sequence[str | int]


def output_at(outputs: Any, path: Path) -> Any:
    """The tensor that these keys, indices and attributes lead to."""
    found = outputs
    for place, step in enumerate(path):
        found = _step(found, step, _where(path[:place]))
    if not _is_tensor(found):
        raise JobError(
            f"{_where(path)} is no tensor but {_described(found)}; the loss needs `output` to lead "
            "to one"
        )
    return found


def _step(value: Any, step: str | int, where: str) -> Any:
    if isinstance(value, Mapping) and step in value:
        return value[step]
    if isinstance(value, tuple | list) and type(step) is int and -len(value) <= step < len(value):
        return value[step]
    # Records have the fields of the model's own classes as attributes; a tensor has none of them.
    if isinstance(step, str) and not step.startswith("_") and not _is_tensor(value):
        found = getattr(value, step, None)
        if _is_tensor(found) or isinstance(found, Mapping | tuple | list):
            return found
    raise JobError(f"{where} has no {step!r}: it is {_described(value)}")


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dim") and hasattr(value, "dtype")


def _where(path: Path) -> str:
    return "the model's output" + "".join(f"[{step!r}]" for step in path)


def _described(value: Any) -> str:
    if _is_tensor(value):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(repr, list(value)[:20]))}"
    if isinstance(value, tuple | list):
        return f"a sequence of {len(value)}"
    return f"of type {type(value).__name__}"


def class_axis(scores: Any, target_shape: Sequence[int], wanted: int | None) -> int:
    """Where the classes are in `scores`, for targets that are numbers of classes: last, as language
    models have them, or second, as torch has them."""
    shape, target_shape = tuple(scores.shape), tuple(target_shape)
    fits = [
        axis
        for axis in (1, len(shape) - 1)
        if 0 < axis < len(shape) and shape[:axis] + shape[axis + 1 :] == target_shape
    ]
    if wanted is not None:
        axis = wanted % len(shape) if -len(shape) <= wanted < len(shape) else -1
        if axis in fits:
            return axis
    elif len(set(fits)) == 1:
        return fits[0]
    said = "" if wanted is None else f", class_axis is {wanted}"
    if not fits or wanted is not None:
        raise JobError(
            f"scores of shape {list(shape)} do not suit targets of shape {list(target_shape)}"
            f"{said}: without the axis of the classes, both must be the same"
        )
    raise JobError(
        f"scores of shape {list(shape)} may have their classes at axis 1 or at axis "
        f"{len(shape) - 1}: say class_axis"
    )
