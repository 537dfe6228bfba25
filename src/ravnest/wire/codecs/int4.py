"""Half a byte for each number: rotated blocks of 128 share a scale of 16 bits.

Values of a rotated block are of much the same size (see `rotation`), and lie between -7.5 and 7.5
steps. A code counts from the bottom: 0 to 15, all of them used.

"int4s" rounds up or down at random, and more often to the nearer side, so that on average what
comes out is what went in: errors of many tensors cancel instead of adding up. "int4" rounds to
the nearest, with an error that is smaller by a third and always the same. Within a block, the root
of the summed squared errors is less than one step, or half a step for "int4", and a step is
1/7.5 of the largest rotated value.

Unpacking multiplies whole numbers by the scale once, so every machine gets the same bits.
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
)
from ravnest.wire.codecs.noise import Noise
from ravnest.wire.codecs.packed import Packed
from ravnest.wire.codecs.rotation import BLOCK, hadamard, signs

_HALF = BLOCK // 2
_STEPS = 7.5
_UNIT = 256.0
"""Steps are sent divided by this: 2 because twice a value is a whole number, 128 because two
rotations make everything so much larger."""
_UP = 1.004
"""The scale is sent in bf16. Made this much larger, it is not below the exact one when rounded."""
_TINY = torch.finfo(torch.float32).tiny
_ODD = 2.0**-17
"""Half of the noise's unit: without it, noise would push down a little more often than up."""


class Int4:
    def __init__(self, name: str, noise: Noise | None) -> None:
        self.name = name
        self._noise = noise

    def pack(self, values: torch.Tensor) -> Packed | torch.Tensor:
        if not may_lose_digits(values):
            return values
        flat = flattened(values)
        count = len(flat)
        nibbles = flat.new_empty(blocks_in(count, BLOCK), _HALF, dtype=torch.uint8)
        scales = flat.new_empty(len(nibbles), 1, dtype=torch.bfloat16)
        room = min(TILE, len(nibbles) * BLOCK)
        one, other = flat.new_empty(2, room, dtype=torch.float32)
        for start in range(0, count, TILE):
            piece = flat[start : start + TILE]
            here = slice(start // BLOCK, start // BLOCK + blocks_in(len(piece), BLOCK))
            size = (here.stop - here.start) * BLOCK
            one[: len(piece)] = piece
            one[len(piece) : size] = 0
            blocks = one[:size].view(-1, BLOCK)
            blocks.mul_(signs(flat.device))
            rotated, spare = hadamard(blocks, other[:size].view(-1, BLOCK))
            torch.abs(rotated, out=spare)
            exact = spare.amax(1, keepdim=True).div_(_STEPS * _UNIT)
            scale = exact.clamp(min=_TINY).mul_(_UP).to(torch.bfloat16)
            nibbles[here] = self._rounded(rotated, scale)
            # There is no code for zero: where all are, the scale has to say it.
            scales[here] = scale.masked_fill_(exact == 0, 0)
        if not float(scales.amax()) < LARGEST / (_STEPS * _UNIT):
            return values
        parts = (nibbles.view(-1), scales.view(-1))
        return Packed(self.name, values.dtype, tuple(values.shape), parts)

    def _rounded(self, rotated: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        rotated.mul_(scale.to(torch.float32).mul_(_UNIT).reciprocal_())
        # From 0.5 to 15.5: the whole part is the code of the nearest value.
        rotated.add_(_STEPS + 0.5)
        if self._noise is not None:
            words = self._noise.words(rotated.numel(), rotated.device)
            rotated.add_(words.view(rotated.shape), alpha=2.0**-16).add_(_ODD)
        # By way of int8, which torch converts to seven times as fast.
        codes = rotated.to(torch.int8).view(torch.uint8)
        return codes[:, _HALF:].bitwise_left_shift(4).bitwise_or_(codes[:, :_HALF])

    def unpack(self, packed: Packed) -> torch.Tensor:
        count = count_in(packed, FLOATS)
        number = blocks_in(count, BLOCK)
        nibbles, scales = parts_of(packed, (torch.uint8, number * _HALF), (torch.bfloat16, number))
        nibbles, factors = nibbles.view(-1, _HALF), scales.to(torch.float32).unsqueeze(1)
        flat = factors.new_empty(count)
        one, other = factors.new_empty(2, min(TILE, number * BLOCK))
        for start in range(0, count, TILE):
            piece = flat[start : start + TILE]
            here = slice(start // BLOCK, start // BLOCK + blocks_in(len(piece), BLOCK))
            size = (here.stop - here.start) * BLOCK
            blocks = one[:size].view(-1, BLOCK)
            blocks[:, :_HALF] = nibbles[here].bitwise_and(15)
            blocks[:, _HALF:] = nibbles[here].bitwise_right_shift(4)
            blocks.mul_(2).sub_(2 * _STEPS)
            rotated, _ = hadamard(blocks, other[:size].view(-1, BLOCK))
            rotated.mul_(signs(flat.device)).mul_(factors[here])
            piece.copy_(rotated.view(-1)[: len(piece)])
        return restored(flat, packed.dtype, packed.shape)
