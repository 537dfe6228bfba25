"""What came from a stranger is held against what its own shape asks for, before anything is made.

Codecs write a number of bytes that follows from the shape alone. So a shape that was made up to
exhaust memory is found out by the parts it came with, which did have to travel.
"""

import math
from collections.abc import Set

import torch

from ravnest.errors import WireError
from ravnest.wire.codecs.flat import SMALLEST
from ravnest.wire.codecs.packed import Packed


def count_in(packed: Packed, dtypes: Set[torch.dtype]) -> int:
    """How many elements it claims to have."""
    if packed.dtype not in dtypes:
        raise WireError(f"{packed.codec} does not pack tensors of type {packed.dtype}")
    count = math.prod(packed.shape)
    if count < SMALLEST or min(packed.shape) < 0:
        raise WireError(f"{packed.codec} does not pack tensors of shape {_shown(packed)}")
    return count


def parts_of(packed: Packed, *expected: tuple[torch.dtype, int]) -> tuple[torch.Tensor, ...]:
    """Its parts as flat tensors, if they have just these types and element counts."""
    found = [(part.dtype, part.numel()) for part in packed.parts]
    if found != list(expected):
        raise WireError(f"the parts of a tensor of shape {_shown(packed)} are not {packed.codec}'s")
    return tuple(part.reshape(-1) for part in packed.parts)


def _shown(packed: Packed) -> list[int]:
    return list(packed.shape[:8])
