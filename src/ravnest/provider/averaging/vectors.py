"""The tensors of a ring as vectors, and back.

Everything that is averaged together lies in one vector of single precision, so that chunks do not
care about tensors. What single precision cannot hold exactly (counters, doubles) goes into a second
one of double precision. Means of whole numbers are rounded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

_WIDE = (torch.float64, torch.int64, torch.int32, torch.complex128)


@dataclass(frozen=True)
class Layout:
    """Where each tensor lies; the same for all members, because names and shapes are."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> "Layout":
        return cls(
            tuple(tensors),
            tuple(tensor.shape for tensor in tensors.values()),
            tuple(tensor.dtype for tensor in tensors.values()),
        )

    def sizes(self) -> tuple[int, int]:
        """Elements of the single and of the double vector."""
        single = double = 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            if dtype in _WIDE:
                double += _elements(shape, dtype)
            else:
                single += _elements(shape, dtype)
        return single, double

    def gather(self, tensors: Mapping[str, torch.Tensor]) -> "Vectors":
        """The present values, copied."""
        singles, doubles = self.sizes()
        single = torch.empty(singles, dtype=torch.float32)
        double = torch.empty(doubles, dtype=torch.float64)
        vectors = Vectors(single, double)
        for name, target in self._places(vectors):
            target.copy_(_as_real(tensors[name].detach()).reshape(-1))
        return vectors

    @torch.no_grad()
    def write(self, vectors: "Vectors", tensors: Mapping[str, torch.Tensor]) -> None:
        """Put these values into the tensors."""
        for name, value in self._places(vectors):
            target = _as_real(tensors[name])
            target.copy_(_for(target, value).view(target.shape))

    @torch.no_grad()
    def add(self, change: "Vectors", tensors: Mapping[str, torch.Tensor]) -> None:
        """What a round changes, on top of what has happened since its snapshot."""
        for name, value in self._places(change):
            target = _as_real(tensors[name])
            target.add_(_for(target, value).view(target.shape).to(target.device, target.dtype))

    def _places(self, vectors: "Vectors") -> Sequence[tuple[str, torch.Tensor]]:
        found = []
        single = double = 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            count = _elements(shape, dtype)
            if dtype in _WIDE:
                found.append((name, vectors.double[double : double + count]))
                double += count
            else:
                found.append((name, vectors.single[single : single + count]))
                single += count
        return found


class Vectors(NamedTuple):
    """Of single and of double precision."""

    single: torch.Tensor
    double: torch.Tensor


def _elements(shape: torch.Size, dtype: torch.dtype) -> int:
    return shape.numel() * (2 if dtype.is_complex else 1)


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _for(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return value if target.is_floating_point() else value.round()
