"""Spreads each of 128 numbers over all of them, so that one large one costs the others less.

A fixed pattern of signs, then the Hadamard matrix. Without the signs, what blocks of real data
have in common (a mean, say) would all land in one place. The inverse is the matrix again, then the
signs, and a division by 128.

Sums of up to 128 small whole numbers are exact in single precision, in whatever order a machine
adds them: rotating whole numbers gives the same bits everywhere.
"""

import functools

import torch

BLOCK = 128
# Written out because both ends must agree on it for ever: the first 128 binary digits of pi after
# the point, which nobody suspects of having been chosen.
_SIGN_BITS = 0x243F6A8885A308D313198A2E03707344
_BASE = 16


@functools.cache
def signs(device: torch.device) -> torch.Tensor:
    bits = [_SIGN_BITS >> place & 1 for place in range(BLOCK)]
    return torch.tensor([1.0 - 2.0 * bit for bit in bits], dtype=torch.float32, device=device)


@functools.cache
def _base(device: torch.device) -> torch.Tensor:
    rows = [[(-1.0) ** (i & j).bit_count() for j in range(_BASE)] for i in range(_BASE)]
    return torch.tensor(rows, dtype=torch.float32, device=device)


def hadamard(blocks: torch.Tensor, spare: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row times the Hadamard matrix of 128; writes to both tensors.

    Returns the one that holds the result first. The matrix is a product of sums and differences
    of halves, halves of halves, and so on; three of them are made as such and the rest as a small
    matrix, which takes less than half of the time that the whole matrix would.
    """
    half = BLOCK // 2
    while half >= _BASE:
        left, right = blocks.view(-1, 2, half).unbind(1)
        total, difference = spare.view(-1, 2, half).unbind(1)
        torch.add(left, right, out=total)
        torch.sub(left, right, out=difference)
        blocks, spare, half = spare, blocks, half // 2
    # With `out`, because autocast would turn a plain product into one of half precision.
    torch.mm(blocks.view(-1, _BASE), _base(blocks.device), out=spare.view(-1, _BASE))
    return spare, blocks
