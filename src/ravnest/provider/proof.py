"""Root and Leaf show each other that they read the same batch.

The Root sends a digest of every tensor it reads as a batch; the Leaf compares with its own. They
need not read the same things: the Root may have inputs only and the Leaf labels only. What can be
compared are tensors of equal type and shape, and where there are any, at least one of them must be
equal: data augmentation may change inputs on both sides, but then the labels agree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
import xxhash

_MOST_TENSORS = 32
_BITS = (1 << 62) - 1


def proof_of(item: Any) -> tuple[int, ...]:
    """Kind and content of every tensor in a batch, as numbers that fit a message."""
    found: list[int] = []
    for tensor in _tensors(item):
        found += (_kind(tensor), _content(tensor))
        if len(found) >= 2 * _MOST_TENSORS:
            break
    return tuple(found)


def agree(theirs: Sequence[int], mine: Sequence[int]) -> bool:
    """False if the two certainly read different batches."""
    comparable = False
    for kind, content in _pairs(mine):
        for other_kind, other_content in _pairs(theirs):
            if kind == other_kind:
                comparable = True
                if content == other_content:
                    return True
    return not comparable


def _pairs(proof: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(proof[::2], proof[1::2], strict=False)


def _kind(tensor: torch.Tensor) -> int:
    return xxhash.xxh3_64_intdigest(f"{tensor.dtype}{list(tensor.shape)}".encode()) & _BITS


def _content(tensor: torch.Tensor) -> int:
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    if not plain.numel():
        return 0
    return xxhash.xxh3_64_intdigest(plain.view(torch.uint8).numpy().data) & _BITS


def _tensors(item: Any) -> Iterator[torch.Tensor]:
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, Mapping):
        for value in item.values():
            yield from _tensors(value)
    elif isinstance(item, Sequence) and not isinstance(item, str | bytes):
        for value in item:
            yield from _tensors(value)
    elif is_dataclass(item) and not isinstance(item, type):
        for entry in fields(item):
            yield from _tensors(getattr(item, entry.name))
