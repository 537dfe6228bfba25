"""The tensors of a ring as vectors, and back.

Everything that is averaged together lies in one vector of single precision, so that chunks do not
care about tensors. What single precision cannot hold exactly (doubles) goes into a second one of
double precision. Whole numbers and truth values are not averaged: each member keeps its own.

Parameters come first in both. All of it goes on changing while a mean is made, so what is applied
is a difference: to parameters, to statistics, to an optimizer's moments. What is nowhere negative
(variances) is kept so. Elements that are beyond what their type holds well, before or after a
round, stay as they are here: the infinities of a mask, and whatever others lead there.

Vectors lie in main memory, and types are converted there: not every device has double precision.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import xxhash

_VARIANCE = "running_var"
"""What normalisation layers call it; nowhere negative, whatever others say."""
_WIDE = (torch.float64, torch.complex128)
_ROOM = 2.0
"""So many times what others may lead an element to is still a number in its type: what this member
adds by itself, to squares for instance, has a place there."""


class Vectors(NamedTuple):
    """Of single and of double precision."""

    single: torch.Tensor
    double: torch.Tensor


@dataclass(frozen=True)
class Layout:
    """Where each tensor lies; the same for all members, because names and shapes are."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    parameters: int = 0
    """So many of the names, the first ones, are trained."""

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], parameters: Collection[str] = ()) -> "Layout":
        tensors = averaged(tensors)
        first = [name for name in tensors if name in parameters]
        names = [*first, *(name for name in tensors if name not in parameters)]
        return cls(
            tuple(names),
            tuple(tensors[name].shape for name in names),
            tuple(tensors[name].dtype for name in names),
            len(first),
        )

    @property
    def digest(self) -> int:
        """Tells it from others; never 0."""
        shapes = [tuple(shape) for shape in self.shapes]
        return numbered(self.parameters, self.names, shapes, [str(dtype) for dtype in self.dtypes])

    def sizes(self) -> tuple[int, int]:
        """Elements of the single and of the double vector."""
        return self._elements(len(self.names))

    def trained(self) -> tuple[int, int]:
        """Elements of both that belong to parameters; they come first."""
        return self._elements(self.parameters)

    def _elements(self, names: int) -> tuple[int, int]:
        counts = [0, 0]
        for shape, dtype in zip(self.shapes[:names], self.dtypes[:names], strict=True):
            counts[dtype in _WIDE] += _count(shape, dtype)
        return counts[0], counts[1]

    def empty(self) -> Vectors:
        singles, doubles = self.sizes()
        return Vectors(
            torch.empty(singles, dtype=torch.float32), torch.empty(doubles, dtype=torch.float64)
        )

    def gather(self, tensors: Mapping[str, torch.Tensor], into: Vectors | None = None) -> Vectors:
        """The present values, copied."""
        vectors = into or self.empty()
        for name, target in self._places(vectors):
            present = _as_real(tensors[name].detach())
            if present.dtype != target.dtype:
                present = present.cpu()
            target.copy_(present.reshape(-1))
        return vectors

    @torch.no_grad()
    def write(
        self, vectors: Vectors, tensors: Mapping[str, torch.Tensor], most: float = math.inf
    ) -> None:
        """Put these values into the tensors, up to so large ones."""
        for name, value in self._places(vectors):
            target = _as_real(tensors[name].data)
            found = _like(target, value)
            if name.endswith(_VARIANCE):
                found = found.where(found >= 0, target)
            _put(target, found, most)

    def rest_of(self, vectors: Vectors) -> Vectors:
        """A copy of what belongs to no parameter; it is small."""
        return Vectors(*(v[n:].clone() for v, n in zip(vectors, self.trained(), strict=True)))

    @torch.no_grad()
    def apply(self, outcome: Vectors, before: Vectors, tensors: Mapping[str, torch.Tensor]) -> None:
        """What a round changes, on top of what has happened since its snapshot. The outcome is the
        difference of parameters and the mean of the rest, which was `before`."""
        rest = Vectors(*(v[n:] for v, n in zip(outcome, self.trained(), strict=True)))
        for name, value in self._places(outcome)[: self.parameters]:
            target = _as_real(tensors[name].data)
            _put(target, target + _like(target, value))
        means = self._places(rest, self.parameters)
        for (name, mean), (_, was) in zip(
            means, self._places(before, self.parameters), strict=True
        ):
            if name.endswith(_VARIANCE):
                mean = mean.where(mean >= 0, was)
            is_positive = bool((mean >= 0).all())
            _shift(_as_real(tensors[name].data), mean - was, is_positive=is_positive)

    @torch.no_grad()
    def shift(
        self, difference: Vectors, tensors: Mapping[str, torch.Tensor], most: float = math.inf
    ) -> None:
        """The same with a difference; those that are nowhere negative (variances) stay so."""
        for name, value in self._places(difference):
            _shift(_as_real(tensors[name].data), value, most, is_positive=True)

    def _places(self, vectors: Vectors, first: int = 0) -> Sequence[tuple[str, torch.Tensor]]:
        """Of all tensors, or of those from that one on, where the vectors hold no others."""
        found = []
        starts = [0, 0]
        for name, shape, dtype in zip(
            self.names[first:], self.shapes[first:], self.dtypes[first:], strict=True
        ):
            wide, count = dtype in _WIDE, _count(shape, dtype)
            found.append((name, vectors[wide][starts[wide] : starts[wide] + count]))
            starts[wide] += count
        return found


def averaged(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that have a mean. A count is of what one member has seen; a place or a choice (an
    index, a mask) that others have moved would end the next forward."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.is_floating_point() or tensor.is_complex()
    }


def numbered(*facts: object) -> int:
    """A number that stands for these facts wherever they are known; never 0."""
    return 1 + xxhash.xxh3_64_intdigest(repr(facts).encode()) % (1 << 61)


def _count(shape: torch.Size, dtype: torch.dtype) -> int:
    return shape.numel() * (2 if dtype.is_complex else 1)


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _like(target: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return values.view(target.shape).to(target.dtype).to(target.device)


def _shift(
    target: torch.Tensor, difference: torch.Tensor, most: float = math.inf, *, is_positive: bool
) -> None:
    """Add to statistics or moments; `is_positive` if they may be such as are never negative."""
    found = target + _like(target, difference)
    if is_positive and bool((target >= 0).all()):
        found.clamp_(min=0)
    _put(target, found, most)


def _put(target: torch.Tensor, found: torch.Tensor, most: float = math.inf) -> None:
    """What comes of a round gets into tensors here and nowhere else: in the tensor's own type,
    element by element, where that is a number with some room, and has been one before."""
    most = min(most, torch.finfo(target.dtype).max / _ROOM)
    fits = (found.abs() <= most) & (target.abs() <= most)
    target.copy_(found.where(fits, target))
