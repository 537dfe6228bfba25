"""What may be done to the columns of a dataset on their way into a model or a loss, by name.

What is random follows from seed, epoch and row alone, the same on Root and Leaf: an image and its
mask that are given the same transforms are flipped together. Validation is not random.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ravnest.api.jobs import FieldSpec, Named
from ravnest.errors import JobError
from ravnest.recipes.changes import (
    Change,
    Draw,
    Lot,
    after_crop,
    after_flip,
    after_normalize,
    after_one_hot,
    after_permute,
    after_reshape,
    after_slice,
    cast,
    changed,
    crop,
    flip,
    normalize,
    one_hot,
    scale,
    slice_,
)
from ravnest.recipes.kinds import SIZES, as_float
from ravnest.recipes.parameters import Entry, Param, Registry, Values


@dataclass(frozen=True)
class _Transform(Entry):
    infer: Callable[[Values, FieldSpec], FieldSpec] = lambda values, column: column
    """The column afterwards; `ValueError` if it cannot be applied to such a column."""
    build: Callable[[Values], Change] = lambda values: lambda batch, lot: batch
    is_random: bool = False


_AXES = 32
"""A product of many numbers of a row's shape would take the server minutes, with all its threads
waiting."""
_LAST = Param("integer", -1, "of a row")
_NUMBER = Param("text", says="a type", choices=tuple(SIZES))

TRANSFORMS = Registry(
    "transform",
    {
        "cast": _Transform(
            "To another type of numbers.",
            {"dtype": _NUMBER},
            infer=lambda values, column: changed(column, values["dtype"]),
            build=cast,
        ),
        "scale": _Transform(
            "Times a factor, plus an offset.",
            {"factor": Param("number", 1.0, "times"), "offset": Param("number", 0.0, "plus")},
            infer=lambda values, column: changed(column, as_float(column.dtype)),
            build=scale,
        ),
        "normalize": _Transform(
            "Less the mean, divided by the deviation, for each entry of an axis.",
            {
                "mean": Param("numbers", says="one number, or one for each entry"),
                "std": Param("numbers", says="the same", above=0.0),
                "axis": Param("integer", 0, "of a row: 0 are the channels of an image"),
            },
            infer=after_normalize,
            build=normalize,
        ),
        "clamp": _Transform(
            "Not below and not above these.",
            {"low": Param("number", says="smallest"), "high": Param("number", says="largest")},
            check=lambda values: "low is above high" if values["low"] > values["high"] else None,
            build=lambda values: (
                lambda batch, lot: batch.clamp(values["low"], values["high"]).to(batch.dtype)
            ),
        ),
        "one_hot": _Transform(
            "A new last axis: 1 at the class, 0 elsewhere.",
            {
                "classes": Param("integer", says="how many", low=1, high=1 << 24),
                "dtype": Param("text", "float32", "a type", choices=tuple(SIZES)),
            },
            infer=after_one_hot,
            build=one_hot,
        ),
        "slice": _Transform(
            "From `start` up to `stop` along an axis; negative ones count from the end.",
            {
                "start": Param("integer", None, "first"),
                "stop": Param("integer", None, "the one after the last"),
                "axis": _LAST,
            },
            infer=after_slice,
            build=slice_,
        ),
        "reshape": _Transform(
            "Another shape of a row; one size may be -1.",
            {"shape": Param("integers", says="of a row", low=-1, most=_AXES)},
            infer=after_reshape,
            build=lambda values: lambda batch, lot: batch.reshape(batch.shape[0], *values["shape"]),
        ),
        "flatten": _Transform(
            "All numbers of a row in a line.",
            infer=lambda values, column: changed(column, shape=(math.prod(column.shape),)),
            build=lambda values: lambda batch, lot: batch.reshape(batch.shape[0], -1),
        ),
        "permute": _Transform(
            "The axes of a row in another order.",
            {"axes": Param("integers", says="of a row", low=0, most=_AXES)},
            infer=after_permute,
            build=lambda values: (
                lambda batch, lot: batch.permute(0, *(axis + 1 for axis in values["axes"]))
            ),
        ),
        "random_flip": _Transform(
            "Mirrored along an axis, or not; in training only.",
            {
                "axis": _LAST,
                "probability": Param("number", 0.5, "of being mirrored", low=0.0, high=1.0),
            },
            infer=after_flip,
            build=flip,
            is_random=True,
        ),
        "random_crop": _Transform(
            "A part of the last two axes; in validation the middle.",
            {
                "size": Param("integers", says="one number, or height and width", low=1, most=2),
                "padding": Param("integer", 0, "zeros around it first", low=0, high=1 << 16),
            },
            infer=after_crop,
            build=crop,
            is_random=True,
        ),
    },
)


def transformed(column: FieldSpec, transforms: Sequence[Named], where: str = "") -> FieldSpec:
    """The column after these; `JobError` that says which of them cannot be applied and why."""
    for number, named in enumerate(transforms):
        place = f"{where}transforms[{number}]"
        values = TRANSFORMS.values(named, place)
        try:
            column = TRANSFORMS[named.name].infer(values, column)
        except ValueError as error:
            raise JobError(
                f"{place}: {named.name!r} cannot be applied to {column.name!r}, "
                f"{column.dtype}{list(column.shape)}: {error}"
            ) from None
    return column


def build_transforms(transforms: Sequence[Named]) -> Callable[[Any, Draw], Any]:
    """All of them, one after another, on a batch of rows."""
    steps: list[tuple[Change, int]] = []
    random = 0
    for named in transforms:
        entry = TRANSFORMS[named.name]
        random += entry.is_random
        steps.append((entry.build(TRANSFORMS.values(named)), random))

    def apply(batch: Any, draw: Draw) -> Any:
        for change, number in steps:
            batch = change(batch, Lot(draw, number))
        return batch.contiguous()

    return apply
