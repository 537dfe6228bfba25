"""Batches of a part of a dataset, in an order that follows from seed, epoch and cluster.

Root and Leaf of a cluster read different fields of the same rows. Both have the numbers of the rows
in every batch, which is how they show each other that they are on the same one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ravnest.api.jobs import InputSpec
from ravnest.data.reading import PartReader
from ravnest.recipes.changes import Draw
from ravnest.recipes.randomness import Rows, order
from ravnest.recipes.transforms import build_transforms

Batch = dict[str, torch.Tensor]
ROWS = "#rows"
"""Under which a batch has the numbers of its rows, (rows, 1); no argument of a model is called so.
"""


@dataclass(frozen=True)
class Reading:
    """How a part is read."""

    batch_size: int
    seed: int = 0
    cluster: int = 0
    shuffle: bool = True
    training: bool = True
    least_rows: int = 1
    """A last batch that is smaller is left out: the model does not take it."""


def batches_in(rows: int, batch_size: int, least_rows: int = 1) -> int:
    """How many batches an epoch has."""
    whole, rest = divmod(rows, batch_size)
    return whole + (rest >= max(least_rows, 1))


class Batches:
    """Iterated over once for every epoch, each time in another order."""

    def __init__(
        self,
        part: PartReader,
        items: Mapping[str, InputSpec],
        how: Reading,
        *,
        epoch: int = 0,
    ) -> None:
        """`items` says what a batch has under which name; `epoch` is the first one's number."""
        self._part = part
        self._items = {
            name: (spec.field, build_transforms(spec.transforms)) for name, spec in items.items()
        }
        self._how = how
        self._epoch = epoch

    def __len__(self) -> int:
        how = self._how
        return batches_in(self._part.rows, how.batch_size, how.least_rows)

    def __iter__(self) -> Iterator[Batch]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._batches(epoch)

    def _batches(self, epoch: int) -> Iterator[Batch]:
        how, rows = self._how, self._part.rows
        numbers = np.arange(rows, dtype=np.int64)
        if how.shuffle:
            numbers = order(rows, how.seed, epoch, how.cluster)
        for number in range(len(self)):
            first = number * how.batch_size
            yield self._batch(numbers[first : first + how.batch_size], epoch)

    def _batch(self, rows: Rows, epoch: int) -> Batch:
        draw = Draw(rows, self._how.seed, epoch, self._how.training)
        batch = {ROWS: torch.from_numpy(rows.reshape(-1, 1).copy())}
        for name, (field, transform) in self._items.items():
            batch[name] = transform(self._part.read(field, rows), draw)
        return batch
