"""A tensor in the form in which it travels."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """What a codec made of a tensor. Never compared: two tensors are equal in too many ways."""

    codec: str
    dtype: torch.dtype
    """Of the tensor that comes out again, as is the shape."""
    shape: tuple[int, ...]
    parts: tuple[torch.Tensor, ...]
    """Plain tensors; what each one means is between the two halves of the codec."""

    @property
    def nbytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self.parts)
