"""What single transforms do: to a batch of rows, and to what is known of a column.

A change works on a batch; its axes are those of a single row. `after_…` says what becomes of a
column, without torch and without data, or raises `ValueError` if the change cannot be applied.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ravnest.api.jobs import FieldSpec
from ravnest.errors import JobError
from ravnest.recipes.kinds import INTEGERS, as_float
from ravnest.recipes.parameters import Values
from ravnest.recipes.randomness import Rows, fractions


class Draw(NamedTuple):
    """What randomness depends on."""

    rows: Rows
    seed: int = 0
    epoch: int = 0
    training: bool = True


class Lot(NamedTuple):
    """One random transform's share of a draw."""

    draw: Draw
    number: int

    def fractions(self, which: int = 0) -> Any:
        draw = self.draw
        return fractions(draw.rows, draw.seed, draw.epoch, self.number, which)


Change = Callable[[Any, Lot], Any]
"""(values: (rows, …), randomness) → (rows, …)"""


def changed(
    column: FieldSpec, dtype: str | None = None, shape: Sequence[int] | None = None
) -> FieldSpec:
    return FieldSpec(
        name=column.name,
        dtype=dtype or column.dtype,
        shape=column.shape if shape is None else tuple(shape),
    )


def _axis(values: Values, column: FieldSpec) -> int:
    axis, axes = values["axis"], len(column.shape)
    if not -axes <= axis < axes:
        raise ValueError(f"axis is {axis}, and a row has the shape {list(column.shape)}")
    return int(axis) % axes


def _batch_axis(axis: int) -> int:
    return axis + 1 if axis >= 0 else axis


def _torch_dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


# ---- numbers ----


def cast(values: Values) -> Change:
    dtype = _torch_dtype(values["dtype"])
    return lambda batch, lot: batch.to(dtype)


def _floats(batch: Any) -> Any:
    return batch if batch.is_floating_point() else batch.float()


def scale(values: Values) -> Change:
    factor, offset = values["factor"], values["offset"]
    return lambda batch, lot: _floats(batch) * factor + offset


def after_normalize(values: Values, column: FieldSpec) -> FieldSpec:
    mean, std = values["mean"], values["std"]
    axis = _axis(values, column) if column.shape else 0
    size = column.shape[axis] if column.shape else 1
    for name, given in (("mean", mean), ("std", std)):
        if len(given) not in (1, size):
            raise ValueError(f"{name} has {len(given)} numbers, and axis {axis} has {size}")
    return changed(column, as_float(column.dtype))


def normalize(values: Values) -> Change:
    import torch

    def change(batch: Any, lot: Lot) -> Any:
        batch = _floats(batch)
        shape = [1] * batch.dim()
        if batch.dim() > 1:
            shape[_batch_axis(values["axis"])] = -1
        mean, std = (torch.tensor(values[name], dtype=batch.dtype) for name in ("mean", "std"))
        return (batch - mean.reshape(shape)) / std.reshape(shape)

    return change


def after_one_hot(values: Values, column: FieldSpec) -> FieldSpec:
    if column.dtype not in INTEGERS:
        raise ValueError(f"it needs whole numbers, not {column.dtype}")
    return changed(column, values["dtype"], (*column.shape, values["classes"]))


def one_hot(values: Values) -> Change:
    import torch

    classes, dtype = values["classes"], _torch_dtype(values["dtype"])

    def change(batch: Any, lot: Lot) -> Any:
        batch = batch.long()
        if batch.numel() and not 0 <= int(batch.min()) <= int(batch.max()) < classes:
            # Which ones is not said: others than the owner of the data read it.
            raise JobError(f"one_hot has {classes} classes, and the data has other numbers too")
        return torch.nn.functional.one_hot(batch, classes).to(dtype)

    return change


# ---- shapes ----


def after_slice(values: Values, column: FieldSpec) -> FieldSpec:
    axis = _axis(values, column)
    size = len(range(column.shape[axis])[values["start"] : values["stop"]])
    if not size:
        raise ValueError(f"nothing is left of axis {axis}, which has {column.shape[axis]}")
    return changed(column, shape=(*column.shape[:axis], size, *column.shape[axis + 1 :]))


def slice_(values: Values) -> Change:
    part = slice(values["start"], values["stop"])
    axis = _batch_axis(values["axis"])

    def change(batch: Any, lot: Lot) -> Any:
        where: list[Any] = [slice(None)] * batch.dim()
        where[axis] = part
        return batch[tuple(where)]

    return change


def after_reshape(values: Values, column: FieldSpec) -> FieldSpec:
    wanted, there = list(values["shape"]), math.prod(column.shape)
    known = math.prod(size for size in wanted if size != -1)
    if wanted.count(-1) == 1 and known and there % known == 0:
        wanted[wanted.index(-1)] = there // known
    if -1 in wanted or math.prod(wanted) != there:
        raise ValueError(f"a row of shape {list(column.shape)} does not fill {values['shape']}")
    return changed(column, shape=wanted)


def after_permute(values: Values, column: FieldSpec) -> FieldSpec:
    if sorted(values["axes"]) != list(range(len(column.shape))):
        raise ValueError(f"axes must name each axis of the shape {list(column.shape)} once")
    return changed(column, shape=[column.shape[axis] for axis in values["axes"]])


# ---- random ----


def after_flip(values: Values, column: FieldSpec) -> FieldSpec:
    _axis(values, column)
    return column


def flip(values: Values) -> Change:
    import torch

    def change(batch: Any, lot: Lot) -> Any:
        if not lot.draw.training:
            return batch
        flipped = torch.from_numpy(lot.fractions() < values["probability"])
        shape = (-1, *[1] * (batch.dim() - 1))
        return torch.where(flipped.reshape(shape), batch.flip(_batch_axis(values["axis"])), batch)

    return change


def _crop_sizes(values: Values) -> tuple[int, int]:
    sizes = values["size"]
    return int(sizes[0]), int(sizes[-1])


def after_crop(values: Values, column: FieldSpec) -> FieldSpec:
    if len(values["size"]) not in (1, 2):
        raise ValueError("size must be one number, or height and width")
    if len(column.shape) < 2:
        raise ValueError(f"a row of shape {list(column.shape)} has no height and width")
    for wanted, there in zip(_crop_sizes(values), column.shape[-2:], strict=True):
        if wanted > there + 2 * values["padding"]:
            raise ValueError(
                f"{wanted} is more than the {there} there are, with padding={values['padding']}"
            )
    return changed(column, shape=(*column.shape[:-2], *_crop_sizes(values)))


def crop(values: Values) -> Change:
    import torch

    height, width = _crop_sizes(values)
    padding = values["padding"]

    def change(batch: Any, lot: Lot) -> Any:
        if padding:
            batch = torch.nn.functional.pad(batch, (padding,) * 4)
        rooms = (batch.shape[-2] - height, batch.shape[-1] - width)
        if not lot.draw.training:  # the middle
            top, left = (room // 2 for room in rooms)
            return batch[..., top : top + height, left : left + width]
        tops, lefts = (
            (lot.fractions(which) * (room + 1)).astype(int) for which, room in enumerate(rooms)
        )
        parts = [
            row[..., top : top + height, left : left + width]
            for row, top, left in zip(batch, tops, lefts, strict=True)
        ]
        return torch.stack(parts)

    return change
