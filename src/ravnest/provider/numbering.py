"""Which batch is which: batches, their parts and updates, numbered over the whole run. Pure."""

from collections.abc import Iterator

from ravnest.provider.batches import part_bounds
from ravnest.wire.messages import MicroBatch


class BatchNumbers:
    """Counts at the Root; everybody else is told."""

    def __init__(self, *, micro_batches: int, update_frequency: int, least_rows: int) -> None:
        self._micro_batches = micro_batches
        self._update_frequency = update_frequency
        self._least_rows = least_rows
        self._batch = 0
        self._batches_in_update = 0
        self._update = 0

    def training(self, rows: int) -> Iterator[tuple[MicroBatch, int, int]]:
        """The parts of the next batch to train on, each with its first row and the one after its
        last."""
        closes = self._batches_in_update + 1 == self._update_frequency
        parts = max(1, min(self._micro_batches, rows // self._least_rows))
        for part, (first, last) in enumerate(part_bounds(rows, parts)):
            number = MicroBatch(
                batch=self._batch,
                part=part,
                parts=parts,
                rows=last - first,
                batch_rows=rows,
                update=self._update,
                closes_update=closes and part + 1 == parts,
            )
            yield number, first, last
        self._batch += 1
        self._batches_in_update += 1
        if closes:
            self._close_update()

    def without_gradients(self, rows: int) -> MicroBatch:
        """The next batch, which is only looked at."""
        number = MicroBatch(
            batch=self._batch,
            part=0,
            parts=1,
            rows=rows,
            batch_rows=rows,
            update=self._update,
            closes_update=False,
        )
        self._batch += 1
        return number

    def update_ended(self) -> None:
        """An update that the end of an epoch, or of training, cuts short is over."""
        if self._batches_in_update:
            self._close_update()

    def _close_update(self) -> None:
        self._update += 1
        self._batches_in_update = 0
