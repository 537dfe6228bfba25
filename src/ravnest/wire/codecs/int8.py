"""A byte for each number: blocks of 256 share a scale, the largest of them becomes 127.

The error is at most 1/254 of the largest magnitude in the block, or half of the smallest normal
number. Unpacking is one multiplication for each element, so every machine gets the same bits.
"""

import torch

from ravnest.wire.codecs.checks import count_in, parts_of
from ravnest.wire.codecs.flat import (
    FLOATS,
    LARGEST,
    TILE,
    blocks_in,
    flattened,
    may_lose_digits,
    restored,
    tiles,
)
from ravnest.wire.codecs.packed import Packed

_BLOCK = 256
_STEPS = 127
_TINY = torch.finfo(torch.float32).tiny
"""The least scale, also of a block of zeros: its reciprocal is still finite."""


class Int8:
    name = "int8"

    def pack(self, values: torch.Tensor) -> Packed | torch.Tensor:
        if not may_lose_digits(values):
            return values
        flat = flattened(values).to(torch.float32)
        count = len(flat)
        codes = flat.new_empty(count, dtype=torch.int8)
        scales = flat.new_empty(blocks_in(count, _BLOCK))
        scratch = flat.new_empty(min(count, TILE))
        for start, stop, width in tiles(count, _BLOCK):
            blocks = flat[start:stop].view(-1, width)
            work = scratch[: stop - start].view(-1, width)
            first = start // _BLOCK
            scale = scales[first : first + len(blocks)].unsqueeze(1)
            torch.amax(torch.abs(blocks, out=work), 1, keepdim=True, out=scale)
            scale.div_(_STEPS).clamp_(min=_TINY)
            torch.mul(blocks, scale.reciprocal(), out=work).round_()
            codes[start:stop].view(-1, width).copy_(work)
        if not float(scales.amax()) < LARGEST / _STEPS:
            return values
        return Packed(self.name, values.dtype, tuple(values.shape), (codes, scales))

    def unpack(self, packed: Packed) -> torch.Tensor:
        count = count_in(packed, FLOATS)
        codes, scales = parts_of(
            packed, (torch.int8, count), (torch.float32, blocks_in(count, _BLOCK))
        )
        flat = scales.new_empty(count)
        for start, stop, width in tiles(count, _BLOCK):
            blocks = flat[start:stop].view(-1, width)
            first = start // _BLOCK
            # Copied first: to multiply bytes by floats, torch would make the same copy elsewhere.
            blocks.copy_(codes[start:stop].view(-1, width))
            blocks.mul_(scales[first : first + len(blocks)].unsqueeze(1))
        return restored(flat, packed.dtype, packed.shape)
