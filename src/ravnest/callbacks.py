"""What a user may hook into training, and the usual things to hook in.

Callbacks live on the Root, on the thread that called `train()`. Subclass `Callback` and override
what you need; each method gets the `Progress` so far.
"""

import csv
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ravnest.rundir import file_of_cluster


@dataclass
class Progress:
    """Where training stands."""

    epochs: int = 1
    epoch: int = 0
    """Counted from 0."""
    first_epoch: int = 0
    """Those before it belong to earlier runs."""
    step: int = 0
    """Batches trained on so far."""
    batches_per_epoch: int | None = None
    samples: int = 0
    loss: float | None = None
    """Of the newest batch."""
    seconds: float = 0.0
    """From the beginning of training to the end of the newest batch."""
    samples_per_second: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the newest validation."""
    stages: dict[str, float] = field(default_factory=dict)
    """Share of the last epoch that each stage was busy, and how stale its gradients were."""
    cluster: int = 0
    """Whose Root this is."""
    clusters: int = 1


class Callback:
    """Does nothing; override what you need."""

    def on_train_begin(self, progress: Progress) -> None:
        """Before the first epoch."""

    def on_epoch_begin(self, progress: Progress) -> None:
        """Before the first batch of an epoch."""

    def on_step_end(self, progress: Progress) -> None:
        """A batch has come back from the pipeline."""

    def on_epoch_end(self, progress: Progress) -> None:
        """All batches of an epoch have been trained on."""

    def on_evaluate(self, progress: Progress) -> None:
        """A validation is over; its results are in `progress.metrics`."""

    def on_train_end(self, progress: Progress) -> None:
        """After the last epoch, and when training breaks off: close what is open."""


class CallbackList(Callback):
    """Tells several, in order."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._callbacks = list(callbacks)

    def on_train_begin(self, progress: Progress) -> None:
        for callback in self._callbacks:
            callback.on_train_begin(progress)

    def on_epoch_begin(self, progress: Progress) -> None:
        for callback in self._callbacks:
            callback.on_epoch_begin(progress)

    def on_step_end(self, progress: Progress) -> None:
        for callback in self._callbacks:
            callback.on_step_end(progress)

    def on_epoch_end(self, progress: Progress) -> None:
        for callback in self._callbacks:
            callback.on_epoch_end(progress)

    def on_evaluate(self, progress: Progress) -> None:
        for callback in self._callbacks:
            callback.on_evaluate(progress)

    def on_train_end(self, progress: Progress) -> None:
        for callback in self._callbacks:
            callback.on_train_end(progress)


class PrintProgress(Callback):
    """A line that is rewritten on a terminal; one line per epoch elsewhere."""

    def __init__(self, file: TextIO | None = None, every_s: float = 0.2) -> None:
        self._file = file or sys.stderr
        self._live = self._file.isatty()
        self._every_s = every_s
        self._last = 0.0
        self._started = time.monotonic()

    def on_train_begin(self, progress: Progress) -> None:
        self._started = time.monotonic()

    def on_step_end(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._live and now - self._last >= self._every_s:
            self._last = now
            self._file.write(f"\r\x1b[K{self._line(progress)}")
            self._file.flush()

    def on_epoch_end(self, progress: Progress) -> None:
        end = "\r\x1b[K" if self._live else ""
        busy = [
            f"{share:.0%}" for name, share in progress.stages.items() if name.startswith("busy/")
        ]
        stages = f", stages busy {' '.join(busy)}" if busy else ""
        print(f"{end}{self._line(progress)}{stages}", file=self._file, flush=True)

    def on_evaluate(self, progress: Progress) -> None:
        found = ", ".join(f"{name} {value:.4f}" for name, value in progress.metrics.items())
        print(f"{_whose(progress)}validation: {found}", file=self._file, flush=True)

    def _line(self, progress: Progress) -> str:
        loss = "" if progress.loss is None else f" loss {progress.loss:.4f}"
        line = (
            f"{_whose(progress)}epoch {progress.epoch + 1}/{progress.epochs} "
            f"batch {progress.step}{loss} {progress.samples_per_second:.0f} samples/s"
        )
        epochs = progress.epochs - progress.first_epoch
        total = (progress.batches_per_epoch or 0) * epochs
        if total and progress.step:
            left = (time.monotonic() - self._started) / progress.step * (total - progress.step)
            line += f" {_duration(left)} left"
        return line


def _whose(progress: Progress) -> str:
    return f"cluster {progress.cluster}: " if progress.clusters > 1 else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class JsonLinesLog(Callback):
    """One JSON object per step and per validation."""

    def __init__(self, path: str | Path, every: int = 1) -> None:
        self._path = Path(path)
        self._every = every
        self._file: TextIO | None = None

    def on_train_begin(self, progress: Progress) -> None:
        path = file_of_cluster(self._path, progress.cluster)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def on_step_end(self, progress: Progress) -> None:
        if progress.step % self._every == 0:
            self._write(
                {
                    "step": progress.step,
                    "epoch": progress.epoch,
                    "train/loss": progress.loss,
                    "perf/samples_per_second": progress.samples_per_second,
                }
            )

    def on_evaluate(self, progress: Progress) -> None:
        metrics = {f"eval/{name}": value for name, value in progress.metrics.items()}
        self._write({"step": progress.step, "epoch": progress.epoch, **metrics})

    def on_epoch_end(self, progress: Progress) -> None:
        self._write({"step": progress.step, "epoch": progress.epoch, **progress.stages})

    def on_train_end(self, progress: Progress) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, row: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"time": time.time(), **row}) + "\n")


class CsvLog(Callback):
    """One row per step, for a spreadsheet."""

    COLUMNS: Sequence[str] = ("step", "epoch", "samples", "loss", "samples_per_second")

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._file: TextIO | None = None
        self._rows: Any = None

    def on_train_begin(self, progress: Progress) -> None:
        path = file_of_cluster(self._path, progress.cluster)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not path.exists() or not path.stat().st_size
        self._file = path.open("a", encoding="utf-8", newline="", buffering=1)
        self._rows = csv.DictWriter(self._file, self.COLUMNS, extrasaction="ignore")
        if fresh:
            self._rows.writeheader()

    def on_step_end(self, progress: Progress) -> None:
        self._rows.writerow(asdict(progress))

    def on_train_end(self, progress: Progress) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoardLog(Callback):
    """Curves for TensorBoard, which has to be installed (pip install tensorboard)."""

    def __init__(self, folder: str | Path = "runs/ravnest") -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open = SummaryWriter
        self._folder = Path(folder)
        self._writer: Any = None

    def on_train_begin(self, progress: Progress) -> None:
        # A folder per cluster: TensorBoard draws the curves of one folder as a single one.
        several = progress.clusters > 1
        folder = self._folder / f"cluster_{progress.cluster}" if several else self._folder
        self._writer = self._open(str(folder))

    def on_step_end(self, progress: Progress) -> None:
        self._add("train/loss", progress.loss, progress)
        self._add("perf/samples_per_second", progress.samples_per_second, progress)

    def on_evaluate(self, progress: Progress) -> None:
        for name, value in progress.metrics.items():
            self._add(f"eval/{name}", value, progress)

    def on_epoch_end(self, progress: Progress) -> None:
        for name, value in progress.stages.items():
            self._add(f"stages/{name}", value, progress)

    def on_train_end(self, progress: Progress) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(self, name: str, value: float | None, progress: Progress) -> None:
        if value is not None:
            self._writer.add_scalar(name, value, progress.step)
