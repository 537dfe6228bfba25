"""What the last stage has besides its share of the model: labels, loss, metrics and their files."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO, runtime_checkable

import torch
from torch import nn

from ravnest.errors import DataError, NodeError
from ravnest.provider.accuracy import accuracy
from ravnest.provider.batches import has_rows, part_bounds, rows_of
from ravnest.provider.copying import CopyWatch
from ravnest.provider.criterion import OwnLoss, PartLoss
from ravnest.provider.proof import Comparison, proof_of, tensors_in
from ravnest.provider.shards import WHOLE, Shard, shard
from ravnest.wire.messages import MicroBatch

logger = logging.getLogger("ravnest")
Metric = Callable[[Any, Any], Any]
"""Called as metric(outputs, batch); gives the batch's mean, its sum and how many it is over, or a
`Tally`."""


def _as_it_is(item: Any) -> Any:
    return item


class LabelFeed:
    """The Leaf's own reading of the data, batch by batch in step with the Root."""

    def __init__(
        self,
        source: Any,
        name: str,
        share: Shard = WHOLE,
        place: Callable[[Any], Any] = _as_it_is,
    ) -> None:
        in_batches = source is not None and not isinstance(source, torch.Tensor)
        self._source = shard(source, share) if in_batches else source
        self._name = name
        self._share = share
        self._place = place
        """Puts a batch where the outputs are."""
        self._batches: Iterator[Any] | None = None
        self._row: int | None = None
        """Where the next batch begins; known with the first batch of an epoch."""
        self._skipped_rows = 0
        """Between two batches: those of other clusters."""
        self._read = 0
        """Batches of this epoch, from a tensor."""
        self._current: tuple[int, Any] | None = None
        self._comparison = Comparison()

    def part(self, of: MicroBatch, proof: tuple[int, ...]) -> Any:
        """What belongs to this micro-batch; `DataError` if it is not what the Root reads."""
        if self._current is None or self._current[0] != of.batch:
            self._current = (of.batch, self._next(of))
            self._check(of, proof)
            self._check_division(of)
            self._current = (of.batch, self._place(self.whole))
        item = self._current[1]
        start, stop = part_bounds(of.batch_rows, of.parts)[of.part]
        return rows_of(item, of.batch_rows, start, stop)

    @property
    def is_empty(self) -> bool:
        return self._source is None

    @property
    def whole(self) -> Any:
        """Of the batch that was last asked for."""
        return None if self._current is None else self._current[1]

    def _check(self, of: MicroBatch, proof: tuple[int, ...]) -> None:
        found = self._comparison.difference(proof, proof_of(self.whole)) if proof else None
        if found is not None:
            raise DataError(
                f"Root and Leaf are not on the same batch (number {of.batch} of the run): what the "
                f"Leaf reads from `{self._name}` is not what the Root sent; {found}. Give both the "
                "same data in the same order and in batches of the same size: set_seed with the "
                "same seed in every script, and generator=torch.Generator() in a DataLoader that "
                f"shuffles.{self._hint()}"
            )

    def _check_division(self, of: MicroBatch) -> None:
        """Each part must get labels of its own."""
        if of.parts == 1 or has_rows(self.whole, of.batch_rows):
            return
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors_in(self.whole))
        raise DataError(
            f"batch {of.batch} of the run has {of.batch_rows} rows and is divided into {of.parts} "
            f"parts, but nothing that the Leaf reads from `{self._name}` has {of.batch_rows} rows "
            f"({'shapes: ' + shapes if shapes else type(self.whole).__name__}). Give it labels "
            "with one entry for each row, or keep batches whole: Node(micro_batches=1)"
        )

    def _next(self, of: MicroBatch) -> Any:
        if isinstance(self._source, torch.Tensor):
            return self._next_rows(self._source, of)
        if self._batches is None:
            if self._source is None:
                raise DataError(f"the Leaf has no `{self._name}` to compare the outputs with")
            self._batches = iter(self._source)
        try:
            return next(self._batches)
        except StopIteration:
            raise self._too_short(of) from None

    def _next_rows(self, labels: torch.Tensor, of: MicroBatch) -> torch.Tensor:
        """Batches of other clusters are as large as this cluster's first one in the epoch."""
        if self._row is None:
            self._row = self._share.index * of.batch_rows
            self._skipped_rows = (self._share.of - 1) * of.batch_rows
        start, stop = self._row, self._row + of.batch_rows
        if stop > len(labels):
            raise self._too_short(of)
        self._row = stop + self._skipped_rows
        self._read += 1
        return labels[start:stop]

    def _too_short(self, of: MicroBatch) -> DataError:
        return DataError(
            f"`{self._name}` of the Leaf ends before the Root's data does (batch {of.batch} of the "
            "run). Both must have equally many batches; call node.wait_for_backwards() at the end "
            f"of every epoch.{self._hint()}"
        )

    def _hint(self) -> str:
        """What else may be the reason, where several clusters share the data."""
        if self._share.of == 1:
            return ""
        return (
            f" There are {self._share.of} clusters, and the Leaf reads its cluster's share: the "
            "Root's own loop has to iterate over node.shard(loader), as Trainer does with its "
            "train_loader by itself. If the script divides the data itself: "
            "Node(…, shard_data=False)."
        )

    def restart(self) -> None:
        """The next batch is the first of another epoch."""
        self._check_place()
        if self._batches is not None and self._batches is not self._source:
            # As the Root's loop does, ask once more: samplers draw from their generator at the end.
            next(self._batches, None)
        self.forget()

    def _check_place(self) -> None:
        """Where a cluster's only batch is the short one at the end, the others were larger."""
        if self._read != 1 or not self._share.index or self._row is None:
            return
        if self._row < len(self._source):
            raise DataError(
                f"this cluster had a single batch in the epoch, and it is smaller than those of "
                f"other clusters, so its rows in `{self._name}` cannot be told. Give the Leaf the "
                "same DataLoader as the Root instead of a tensor, or use more data, smaller "
                "batches or drop_last=True"
            )

    def forget(self) -> None:
        """Begin anew, wherever it was: the Root has broken off its loop."""
        self._batches, self._row, self._current, self._read = None, None, None, 0
        self._comparison.epoch_ended()


class LossLog:
    """One line per optimizer step, in a file that never replaces an earlier one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._closed = False

    def write(self, value: float) -> None:
        if self._path is None or self._closed:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            set_aside(self._path)
            self._file = self._path.open("w", buffering=1, encoding="utf-8")
        self._file.write(f"{value}\n")

    def close(self) -> None:
        self._closed = True
        if self._file is not None:
            self._file.close()
            self._file = None


def set_aside(path: Path) -> None:
    """Rename an earlier run's file to name.1.txt, name.2.txt, …"""
    if not path.exists() or not path.stat().st_size:
        return
    number = 1
    while (older := path.with_suffix(f".{number}{path.suffix}")).exists():
        number += 1
    path.rename(older)


@runtime_checkable
class Tally(Protocol):
    """What is counted in batches and adds up, and makes a figure only when all is counted; None if
    there is none."""

    def plus(self, other: Any) -> "Tally": ...
    def figure(self) -> float | None: ...


@dataclass(frozen=True)
class _Mean:
    total: float
    count: float

    def plus(self, other: "_Mean") -> "_Mean":
        return _Mean(self.total + other.total, self.count + other.count)

    def figure(self) -> float:
        return self.total / max(self.count, 1e-12)


@dataclass
class Judgement:
    """What a validation pass has counted, by metric."""

    tallies: dict[str, Tally] = field(default_factory=dict)

    def add(self, name: str, value: Any, rows: int) -> None:
        tally = _tally(name, value, rows)
        before = self.tallies.get(name)
        self.tallies[name] = tally if before is None else before.plus(tally)

    def means(self) -> dict[str, float]:
        figures = {name: tally.figure() for name, tally in self.tallies.items()}
        return {name: figure for name, figure in figures.items() if figure is not None}


def score_of(found: Mapping[str, float]) -> float | None:
    """The figure to show where there is room for one: the accuracy, or whatever else the user's
    metrics begin with. A loss is no score."""
    others = (value for name, value in found.items() if name != "loss")
    return found["accuracy"] if "accuracy" in found else next(others, None)


def _tally(name: str, value: Any, rows: int) -> Tally:
    """Of what a metric gives for a batch."""
    try:
        if isinstance(value, Tally):
            return value
        if isinstance(value, tuple | list):
            total, count = value
            return _Mean(float(total), float(count))
        if not isinstance(value, str | bytes):
            return _Mean(float(value) * rows, float(rows))
    except (TypeError, ValueError, RuntimeError):
        pass  # said below, for whatever it is
    raise NodeError(
        f"the metric {name!r} must return one number, or a sum and how many it is over; it "
        f"returned {value!r:.100}"
    )


@dataclass(frozen=True)
class LeafSettings:
    """What the user gives a Leaf."""

    criterion: Callable[[Any, Any], Any] | None = None
    labels: Any = None
    test_labels: Any = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    loss_file: Path | None = None
    accuracy_file: Path | None = None
    reconstructs: bool = False
    """The model is meant to give back what it is given."""
    shard: Shard = WHOLE
    """Of `labels`: `test_labels` are judged whole by every cluster."""


class Leaf:
    """Turns outputs into losses, metrics and lines in files."""

    def __init__(self, settings: LeafSettings, place: Callable[[Any], Any] = _as_it_is) -> None:
        self._settings = settings
        for function in (settings.criterion, *settings.metrics.values()):
            if isinstance(function, nn.Module):
                place(function)
        self._labels = LabelFeed(settings.labels, "labels", settings.shard, place)
        self._test_labels = LabelFeed(settings.test_labels, "test_labels", WHOLE, place)
        self._losses = LossLog(settings.loss_file)
        self._accuracies = LossLog(settings.accuracy_file)
        self._judgement = Judgement()
        self._said_no_score = False
        self._batch_loss = 0.0
        self._update_losses: list[float] = []
        self._part_loss: PartLoss | None = None
        self._copy_watch: CopyWatch | None = None
        if settings.criterion is not None:
            self._part_loss = PartLoss(settings.criterion)
            if not settings.reconstructs and not isinstance(settings.criterion, OwnLoss):
                self._copy_watch = CopyWatch(settings.criterion)

    def loss(
        self,
        outputs: Any,
        of: MicroBatch,
        proof: tuple[int, ...],
        tokens: tuple[int, ...] = (),
    ) -> torch.Tensor:
        """Of one part, weighted so that the parts of a batch add up to the batch's loss."""
        if self._part_loss is None:
            raise NodeError("the Leaf needs a criterion to train: Node(…, criterion=…)")
        part = self._part(self._labels, of, proof)
        if self._copy_watch is not None:
            self._copy_watch.look(outputs, part, self._labels.whole, of, tokens)
        return self._part_loss(outputs, part, self._labels.whole, of)

    def _part(self, feed: LabelFeed, of: MicroBatch, proof: tuple[int, ...]) -> Any:
        """Nothing, where the model gets its labels itself and none were given here."""
        if feed.is_empty and isinstance(self._settings.criterion, OwnLoss):
            return None
        return feed.part(of, proof)

    def finished_part(self, loss: torch.Tensor, of: MicroBatch) -> float | None:
        """The loss of the whole batch, once its last part is through."""
        self._batch_loss += float(loss.detach())
        if not of.is_last_part:
            return None
        value, self._batch_loss = self._batch_loss, 0.0
        self._update_losses.append(value)
        return value

    def updated(self) -> None:
        """The optimizer has made a step."""
        if self._update_losses:
            self._losses.write(sum(self._update_losses) / len(self._update_losses))
            self._update_losses = []

    def judge(self, outputs: Any, of: MicroBatch, proof: tuple[int, ...]) -> None:
        """Count one batch of a validation pass."""
        batch = self._part(self._test_labels, of, proof)
        for name, metric in (self._settings.metrics or {"accuracy": accuracy}).items():
            value = metric(outputs, batch)
            if value is not None:
                self._judgement.add(name, value, of.rows)
        # A metric of that name is what the user wants to see as the loss.
        if self._settings.criterion is not None and "loss" not in self._settings.metrics:
            with torch.no_grad():
                loss = self._settings.criterion(outputs, batch)
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                self._judgement.add("loss", float(loss), of.rows)

    def validation_ended(self) -> dict[str, float]:
        found, self._judgement = self._judgement.means(), Judgement()
        self._test_labels.restart()
        score = score_of(found)
        if score is not None:
            self._accuracies.write(score)
        elif found and self._settings.accuracy_file and not self._said_no_score:
            self._said_no_score = True
            logger.warning(
                "%s is not written: outputs and test_labels are not those of a classification, of "
                "which there would be an accuracy. Node(metrics={'name': f(outputs, batch)}) says "
                "what else to judge by",
                self._settings.accuracy_file.name,
            )
        return found

    def epoch_ended(self) -> None:
        self._labels.restart()

    def forget(self) -> None:
        """Drop a validation pass that the Root has broken off; the next begins anew."""
        self._judgement = Judgement()
        self._test_labels.forget()

    def close(self) -> None:
        self._losses.close()
        self._accuracies.close()
