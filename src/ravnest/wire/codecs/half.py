"""Half as many bytes: "fp16" keeps eleven digits, "bf16" eight.

fp16 has little range, so the tensor is brought to the top of it first, by a power of two, which
costs no digits. The error of an element is at most 2^-11 of itself, or 2^-39 of the largest one.
bf16 has the range of single precision, and an error of at most 2^-8 of each element.
"""

import math

import torch

from ravnest.wire.codecs.checks import count_in, parts_of
from ravnest.wire.codecs.flat import LARGEST, flattened, may_lose_digits, peak_of
from ravnest.wire.codecs.packed import Packed

_TOP = 15
"""Scaled values lie below 2^15, and fp16 ends just short of 2^16."""
_SINGLE = frozenset({torch.float32})


def to_half(flat: torch.Tensor, peak: float) -> tuple[torch.Tensor, torch.Tensor]:
    """In half precision, and the factor that undoes the scaling."""
    # Not below the smallest normal number: the reciprocal of such a factor would be infinite.
    exponent = max(math.frexp(peak)[1] - _TOP, -126)
    factor = torch.full((1,), 2.0**exponent, dtype=torch.float32, device=flat.device)
    return torch.mul(flat, 2.0**-exponent).to(torch.float16), factor


def from_half(halves: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return halves.to(torch.float32).mul_(factor)


class Fp16:
    name = "fp16"

    def pack(self, values: torch.Tensor) -> Packed | torch.Tensor:
        if not may_lose_digits(values) or values.dtype != torch.float32:
            return values
        flat = flattened(values)
        peak = peak_of(flat)
        if not peak < LARGEST:
            return values
        return Packed(self.name, values.dtype, tuple(values.shape), to_half(flat, peak))

    def unpack(self, packed: Packed) -> torch.Tensor:
        count = count_in(packed, _SINGLE)
        halves, factor = parts_of(packed, (torch.float16, count), (torch.float32, 1))
        return from_half(halves, factor).view(packed.shape)


class Bf16:
    name = "bf16"

    def pack(self, values: torch.Tensor) -> Packed | torch.Tensor:
        if not may_lose_digits(values) or values.dtype != torch.float32:
            return values
        flat = flattened(values)
        if not peak_of(flat) < LARGEST:
            return values
        part = flat.to(torch.bfloat16)
        return Packed(self.name, values.dtype, tuple(values.shape), (part,))

    def unpack(self, packed: Packed) -> torch.Tensor:
        count = count_in(packed, _SINGLE)
        (part,) = parts_of(packed, (torch.bfloat16, count))
        return part.to(torch.float32).view(packed.shape)
