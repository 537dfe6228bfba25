"""What a requester says about data → sources of rows, and which column is for what.

People who hand over `(images, labels)` mean the obvious; this module says what the obvious is, and
gives up with the names in question where there is none. What it chose is logged.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ravnest.api.jobs import FieldSpec, InputSpec, Named
from ravnest.data import tables
from ravnest.data.files import as_source
from ravnest.data.images import SUFFIXES, ImageFolder, image_folder
from ravnest.data.places import check_there, held_by
from ravnest.data.sources import Source, held_out
from ravnest.data.text import next_token, text_windows
from ravnest.errors import JobError
from ravnest.recipes.kinds import FLOATS
from ravnest.session.names import named
from ravnest.session.request import JobRequest

logger = logging.getLogger("ravnest.session")

TOKENS = "tokens"
MOST_CLASSES = 10
"""Named when a folder of images is submitted."""


def sources_of(request: JobRequest, inputs: Sequence[FieldSpec]) -> tuple[Source, Source | None]:
    """Training and validation rows; `inputs` is what the model takes, by its example."""
    seed = request.training().seed
    if request.data is None:
        raise JobError("a job needs data=…")
    train = _source(request.data, inputs, request.target)
    if isinstance(train, ImageFolder) and isinstance(request.data, str | Path):
        logger.info(_described(train, request, inputs))
    given = request.validation
    if given is None:
        return train, None
    if isinstance(given, float) and not isinstance(given, bool):
        return held_out(train, given, seed)
    known = {
        name: value
        for name in ("classes", "vocabulary")
        if (value := getattr(train, name, None)) is not None
    }
    validation = _source(given, inputs, request.target, **known)
    if set(validation.fields) != set(train.fields):
        raise JobError(
            f"validation has the fields {_shown(validation.fields)}, and the training data has "
            f"{_shown(train.fields)}; they must be the same"
        )
    return train, validation


def _source(data: Any, inputs: Sequence[FieldSpec], target: Any, **known: Any) -> Source:
    if isinstance(data, str | Path) and Path(data).suffix in tables.SUFFIXES:
        return tables.table(data, None if target is None else item(target).field)
    if not isinstance(data, str | Path) or not Path(data).is_dir():
        return as_source(data)
    folder = Path(data)
    check_there(folder)
    if _is_text(folder):
        windows = [one for one in inputs if len(one.shape) == 1]
        if len(inputs) != 1 or not windows:
            raise JobError(
                f"{folder} holds text, and the model does not take one row of tokens; make the "
                "dataset yourself (ravnest.data.text.text_windows)"
            )
        kind: Any = "characters" if "vocabulary" in known else "bytes"
        return text_windows(folder, windows[0].shape[0], tokens=kind, **known)
    images = [one for one in inputs if len(one.shape) == 3 and one.shape[0] in (1, 3)]
    if len(images) != 1:
        raise JobError(
            f"{folder} should be a folder of .txt files or of images ({held_by(folder)}), and the "
            "model does not take one image of shape [channels, height, width] (its inputs: "
            f"{_shown(inputs)}); make the dataset yourself (ravnest.data.images.image_folder, "
            "ravnest.data.text.text_windows)"
        )
    channels, height, width = images[0].shape
    return image_folder(folder, (height, width), channels=channels, **known)


def _is_text(folder: Path) -> bool:
    """Notes beside images do not make a text of them."""
    if any(folder.glob("*.txt")):
        return True
    endings = {file.suffix.lower() for file in folder.rglob("*.*")}
    return ".txt" in endings and not endings & SUFFIXES


def _described(found: ImageFolder, request: JobRequest, inputs: Sequence[FieldSpec]) -> str:
    size = "x".join(str(one) for one in found.fields[0].shape)
    by_default = request.script is request.inputs is None
    is_scaled = by_default and any(one.dtype in FLOATS for one in inputs if len(one.shape) == 3)
    scaled = ", divided by 255" * is_scaled
    names = [f"{number}={name}" for number, name in enumerate(found.classes[:MOST_CLASSES])]
    more = ", …" if len(found.classes) > MOST_CLASSES else ""
    return f"images {size}{scaled}, classes {', '.join(names)}{more}"


# ---- which column is for what ----


def inputs_and_target(
    request: JobRequest, fields: Sequence[FieldSpec], arguments: Sequence[FieldSpec]
) -> tuple[tuple[InputSpec, ...], InputSpec]:
    """For a recipe. What was said counts; the rest is what is obvious."""
    if [one.name for one in fields] == [TOKENS] and request.inputs is request.target is None:
        length = fields[0].shape[0]
        logger.info(
            "text in windows of %s tokens: the model sees %s and learns the next one after each",
            length,
            length - 1,
        )
        taken, wanted = next_token(TOKENS)
        return (taken,), wanted
    target = _target(request.target, fields)
    if request.inputs is not None:
        found = _said_inputs(request.inputs)
    else:
        found = _obvious_inputs(target.field, fields, arguments)
    by_name = {one.name: one for one in fields}
    taken_names = [one.argument for one in found]
    free = iter([one for one in arguments if one.name not in taken_names])
    by_argument = {one.name: one for one in arguments}
    fitted = []
    for spec in found:
        argument = next(free, None) if spec.argument == "_" else by_argument.get(spec.argument)
        column = by_name.get(spec.field)
        fitted.append(spec if spec.transforms else _fitted(spec, column, argument))
    return tuple(fitted), target


def item(given: Any, argument: str = "_") -> InputSpec:
    """A column, in any of the ways people write that."""
    match given:
        case InputSpec():
            return given
        case str():
            return InputSpec(field=given, argument=argument)
        case Mapping() if "field" in given:
            transforms = tuple(named(one) for one in given.get("transforms", ()))
            said = given.get("argument", argument)
            return InputSpec(field=given["field"], argument=said, transforms=transforms)
        case (str() as field, list() | tuple() as transforms):
            steps = tuple(named(one) for one in transforms)
            return InputSpec(field=field, argument=argument, transforms=steps)
    raise JobError(
        f"{given!r:.100} names no column of the data; give the name of a field, "
        '(field, [transforms]), or {"field": …, "transforms": […]}'
    )


def _said_inputs(given: Any) -> list[InputSpec]:
    if isinstance(given, Mapping) and "field" not in given:
        return [item(one, argument) for argument, one in given.items()]
    is_one = isinstance(given, str | InputSpec | Mapping) or (
        isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], list)
    )
    return [item(given)] if is_one else [item(one) for one in given]


def _target(given: Any, fields: Sequence[FieldSpec]) -> InputSpec:
    if given is not None:
        return item(given)
    names = [one.name for one in fields]
    likely = [name for name in tables.TARGETS if name in names] or names[1:2] * (len(names) == 2)
    if not likely:
        raise JobError(
            f"which of the fields {', '.join(names)} is to be learnt? Say target=…; a field called "
            f"{', '.join(tables.TARGETS)} would be taken for it"
        )
    return InputSpec(field=likely[0])


def _obvious_inputs(
    target: str, fields: Sequence[FieldSpec], arguments: Sequence[FieldSpec]
) -> list[InputSpec]:
    names = [one.name for one in fields]
    wanted = [one.name for one in arguments]
    if all(name in names for name in wanted):
        return [InputSpec(field=name, argument=name) for name in wanted]
    rest = [name for name in names if name != target]
    if len(rest) == len(wanted):
        logger.info(
            "the model gets %s, the loss %s",
            ", ".join(f"{a} ({b})" for a, b in zip(rest, wanted, strict=True)),
            target,
        )
        return [InputSpec(field=name) for name in rest]
    raise JobError(
        f"the model takes {', '.join(wanted)}, and the data has {', '.join(names)}; say which is "
        f'which: inputs={{"{wanted[0]}": "{names[0]}", …}}'
    )


def _fitted(spec: InputSpec, column: FieldSpec | None, argument: FieldSpec | None) -> InputSpec:
    """With the conversion that is obvious, where the model was tried with another type."""
    if column is None or argument is None or column.dtype == argument.dtype:
        return spec
    if column.dtype == "uint8" and argument.dtype in FLOATS and len(column.shape) == 3:
        logger.info("%s: pixels from 0 to 255 become numbers from 0 to 1", spec.field)
        steps = [Named(name="scale", params={"factor": 1 / 255})]
        if argument.dtype != "float32":
            steps.append(Named(name="cast", params={"dtype": argument.dtype}))
    else:
        logger.info("%s: %s becomes %s", spec.field, column.dtype, argument.dtype)
        steps = [Named(name="cast", params={"dtype": argument.dtype})]
    return InputSpec(field=spec.field, argument=spec.argument, transforms=tuple(steps))


def _shown(fields: Sequence[FieldSpec]) -> str:
    return ", ".join(f"{one.name} {one.dtype}{list(one.shape)}" for one in fields)
