"""Root and Leaf show each other that they read the same batch.

The Root sends three numbers for every tensor that it reads as a batch: its kind (type and shape
without the rows), how many rows it has, and a digest of its content. The Leaf compares them with
its own. They need not read the same things: the Root may have inputs only and the Leaf labels only.
What can be compared are tensors of equal kind and equally many rows, and where there are any, one
of them must be equal: data augmentation may change inputs on both sides, but then the labels agree.

That an equal tensor means something is not certain. A mask of ones, or positions that are the same
in every batch, are equal although everything else is not, and do not count. Labels can be as mute:
those of a batch that happens to be of one class. Inputs that differ beside them may have been
augmented, so the Leaf learns from other batches which of its tensors are, and has patience until
it knows.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import xxhash

from ravnest.provider.batches import attributes, entries

_MOST_TENSORS = 32
_DIGEST = (1 << 62) - 2
"""Digests fit a message; their lowest bit is used for something else."""
_PATIENCE = 16
"""So many batches may be in doubt before the Leaf has seen what is augmented."""


class _Seen(NamedTuple):
    """One tensor, as numbers that fit a message."""

    kind: int
    """Of type and shape; the lowest bit says that augmentation may change such a tensor."""
    rows: int
    content: int
    """The lowest bit says that the elements are not all equal."""


def proof_of(item: Any) -> tuple[int, ...]:
    """Kind, rows and content of every tensor in a batch."""
    found: list[int] = []
    for tensor in tensors_in(item):
        found += _Seen(_kind(tensor), tensor.shape[0] if tensor.dim() else 0, _content(tensor))
        if len(found) >= len(_Seen._fields) * _MOST_TENSORS:
            break
    return tuple(found)


class Comparison:
    """Compares one batch after the other with what the Root has read."""

    def __init__(self) -> None:
        self._before: list[_Seen] = []
        self._augmented: set[int] = set()
        """Places of tensors that differ although the batch is the same."""
        self._doubts = 0

    def difference(self, theirs: Sequence[int], mine: Sequence[int]) -> str | None:
        """Why the two are certainly not the same batch; None if they may be."""
        root, leaf = _all_seen(theirs), _all_seen(mine)
        before, self._before = self._before, leaf
        comparable = {seen[:2] for seen in root}
        equal = {place for place, seen in enumerate(leaf) if seen in root}
        other = {k for k, seen in enumerate(leaf) if seen[:2] in comparable} - equal
        if telling := {place for place in equal if _tells(place, leaf, before)}:
            if any(place < len(before) for place in telling):
                # Without a batch before this one, positions may have looked like evidence.
                self._augmented |= other
                self._doubts = 0
            return None
        if rows := _other_rows(root, leaf):
            return f"a tensor has {rows[0]} rows at the Root and {rows[1]} rows at the Leaf"
        other -= self._augmented
        if not other:
            return None
        if equal and all(leaf[place].kind & 1 for place in other):
            self._doubts += 1
            if self._doubts < _PATIENCE:
                return None
        return "of the tensors that both of them have none is equal"

    def epoch_ended(self) -> None:
        """The next batch follows upon no other: an epoch may have one batch only."""
        self._before = []


def _tells(place: int, leaf: Sequence[_Seen], before: Sequence[_Seen]) -> bool:
    """Whether it means something that this tensor is equal."""
    same_as_before = place < len(before) and before[place] == leaf[place]
    return bool(leaf[place].content & 1) and not same_as_before


def _other_rows(root: Sequence[_Seen], leaf: Sequence[_Seen]) -> tuple[int, int] | None:
    """The rows of two tensors of one kind, of which no two have equally many."""
    for mine in leaf:
        there = [seen.rows for seen in root if seen.kind == mine.kind]
        here = [seen.rows for seen in leaf if seen.kind == mine.kind]
        if there and not set(there) & set(here):
            return there[0], mine.rows
    return None


def _all_seen(proof: Sequence[int]) -> list[_Seen]:
    return [_Seen(*numbers) for numbers in zip(proof[::3], proof[1::3], proof[2::3], strict=False)]


def _kind(tensor: torch.Tensor) -> int:
    # The length of a vector is part of its kind: it may count other things than rows.
    shape = tensor.shape[1:] if tensor.dim() > 1 else tensor.shape
    digest = xxhash.xxh3_64_intdigest(f"{tensor.dtype}{tensor.dim()}{list(shape)}".encode())
    return digest & _DIGEST | _may_be_augmented(tensor)


def _may_be_augmented(tensor: torch.Tensor) -> bool:
    """Pixels and measurements may; the numbers of words and classes are not changed."""
    return tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.uint8


def _content(tensor: torch.Tensor) -> int:
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    if not plain.numel():
        return 0
    raw, size = plain.view(torch.uint8), plain.element_size()
    # The label of a single row cannot vary: whether it says something, later batches show.
    varies = bool(tensor.dim()) if plain.numel() == 1 else not torch.equal(raw[size:], raw[:-size])
    return xxhash.xxh3_64_intdigest(raw.numpy().data) & _DIGEST | varies


def tokens_in(item: Any) -> Iterator[torch.Tensor]:
    """Tensors that may be words: whole numbers, several to a row."""
    for tensor in tensors_in(item):
        if tensor.dtype in (torch.int32, torch.int64) and tensor.dim() > 1:
            yield tensor


def token_digest(tensor: torch.Tensor) -> int:
    return _content(tensor.long())


def tensors_in(item: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a batch, in the order of its structure."""
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, Mapping):
        for value in entries(item).values():
            yield from tensors_in(value)
    elif isinstance(item, Sequence) and not isinstance(item, str | bytes):
        for value in item:
            yield from tensors_in(value)
    elif (named := attributes(item)) is not None:
        yield from tensors_in(named)
