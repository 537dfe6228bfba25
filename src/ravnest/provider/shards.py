"""Every cluster trains on its own share of the data, although all run the same script.

Of the batches that a loader gives in an epoch, cluster c of m takes batches c, c + m, c + 2 m, …
Root and Leaf apply the same rule to loaders of the same seed, so they stay in step, and together
the clusters read each batch once. That holds only while every cluster shuffles alike: a share is
therefore drawn from the whole epoch's order, in which the batches of others are left out, never
from an order of its own. Whoever iterates a share to its end has drawn as many random numbers as
the whole loader would have.

What is averaged between clusters, and when, is not known here.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ravnest.errors import NodeError


@dataclass(frozen=True)
class Shard:
    """Which share of the data is meant: number `index` of `of`."""

    index: int
    of: int

    def __post_init__(self) -> None:
        assert 0 <= self.index < self.of

    def size(self, batches: int) -> int:
        """How many of so many batches belong to it."""
        return len(range(self.index, batches, self.of))


WHOLE = Shard(0, 1)
"""Of a run with one cluster."""


def shard(data: Any, shard: Shard) -> Any:
    """What gives this share of the batches of `data`, each time it is iterated.

    A DataLoader that looks rows up by number stays one and loads nothing for other clusters; of
    everything else, items are skipped. What is this share already is returned as it is.
    """
    if shard.of == 1 or _is_share(data, shard):
        return data
    _check_enough(data, shard)
    if _looks_rows_up(data):
        return _loader_of_share(data, shard)
    return _share_of(data, shard)


class _Share:
    """Skips the items of others. Asked for anything else, it answers as the whole does: somebody
    may call `set_epoch` on a sampler."""

    def __init__(self, whole: Iterable[Any], shard: Shard) -> None:
        self._whole = whole
        self._shard = shard

    def __iter__(self) -> Iterator[Any]:
        # Not a generator: the whole draws its seeds when it is asked for an iterator.
        return islice(self._whole, self._shard.index, None, self._shard.of)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying asks for such names, before there is a whole
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self._whole, name)

    def is_of(self, shard: Shard) -> bool:
        return self._shard == shard


class _SizedShare(_Share):
    """Of something that knows its length."""

    def __len__(self) -> int:
        return self._shard.size(len(self._whole))  # type: ignore[arg-type]


class _RunningShare(_Share):
    """Of an iterator: it can be read once, and another epoch goes on where the last one stopped."""

    def __init__(self, whole: Iterator[Any], shard: Shard) -> None:
        super().__init__(whole, shard)
        self._items = super().__iter__()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._items)


def _share_of(data: Any, shard: Shard) -> _Share:
    if isinstance(data, Iterator):
        return _RunningShare(data, shard)
    return _Share(data, shard) if _length(data) is None else _SizedShare(data, shard)


def _looks_rows_up(data: Any) -> bool:
    """Subclasses may iterate in a way of their own."""
    return (
        type(data) is DataLoader
        and data.batch_sampler is not None
        and not isinstance(data.dataset, IterableDataset)
    )


def _loader_of_share(loader: DataLoader[Any], shard: Shard) -> DataLoader[Any]:
    """The same loader with fewer batches. A new one, made from a batch sampler, would have lost
    its `sampler` and `batch_size`, and whatever settings a later torch adds."""
    found = copy.copy(loader)
    # A loader does not let its batch sampler be replaced, since there may be workers that know the
    # old one; the copy has none yet.
    vars(found).update(batch_sampler=_share_of(loader.batch_sampler, shard), _iterator=None)
    return found


def _is_share(data: Any, shard: Shard) -> bool:
    """A script may call `node.shard` on what it gives the Trainer, which does so itself."""
    if type(data) is DataLoader:
        data = data.batch_sampler
    return isinstance(data, _Share) and data.is_of(shard)


def _check_enough(data: Any, shard: Shard) -> None:
    batches = _length(data)
    if batches is None or batches >= shard.of:
        return
    raise NodeError(
        f"the training data has {batches} {'batch' if batches == 1 else 'batches'} in an epoch and "
        f"there are {shard.of} clusters, "
        "each of which trains on batches of its own: make the batches smaller, plan fewer clusters "
        f"with clusterize(…, max_clusters={max(batches, 1)}), or give every cluster data of its "
        "own in the script and say Node(…, shard_data=False)"
    )


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None
