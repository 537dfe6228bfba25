"""Tensors as the codecs work on them: one flat row of numbers, taken a piece at a time."""

from collections.abc import Iterator

import torch

FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""What may lose digits on the way. Double precision was chosen by somebody who needs it."""

SMALLEST = 256
"""Elements. Below this a tensor costs its header, and is as likely a norm or a count as data."""

LARGEST = 2.0**120
"""Values up to here can be scaled without ever overflowing. A tensor with larger ones is about to
become infinite, and whoever looks for that must find it: it travels as it is, as does one with NaN
or infinities, for which every comparison with this fails or should."""

TILE = 1 << 18
"""Elements worked on at once, a multiple of every block: scratch memory stays within the cache,
and is not fetched from the system again for each large tensor."""


def may_lose_digits(values: torch.Tensor) -> bool:
    return values.dtype in FLOATS and values.numel() >= SMALLEST


def flattened(values: torch.Tensor) -> torch.Tensor:
    """The elements in order. Shares the tensor's memory where it can: not to be written to."""
    dense = values.detach().to_dense().resolve_conj().resolve_neg()
    return dense.contiguous().reshape(-1)


def peak_of(flat: torch.Tensor) -> float:
    """The largest magnitude; NaN if there is one."""
    low, high = torch.aminmax(flat)
    return float(torch.maximum(high, low.neg()))


def blocks_in(count: int, block: int) -> int:
    return -(-count // block)


def tiles(count: int, block: int) -> Iterator[tuple[int, int, int]]:
    """Where to start, where to stop, and how wide the blocks in between are.

    Only the last block of all may be narrower than the others, and then it comes by itself.
    """
    whole = count - count % block
    for start in range(0, whole, TILE):
        yield start, min(start + TILE, whole), block
    if whole < count:
        yield whole, count, count - whole


def restored(flat: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Single precision back to what it was; what an approximation made too large stays finite."""
    if dtype == torch.float16:
        limit = torch.finfo(dtype).max
        flat = flat.clamp_(-limit, limit)
    return flat.to(dtype).view(shape)
