"""What is worth a report: points of curves, how far training is, warnings.

The thread that trains writes, the one that reports takes.
"""

import itertools
import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ravnest.api.jobs import Recipe
from ravnest.api.work import MOST_NOTES, Point
from ravnest.callbacks import Callback, Progress
from ravnest.recipes.metrics import finish_metrics

_POINTS_OF_A_REPORT = 200
_POINTS_KEPT = 20_000
_NOTE_LENGTH = 1000


@dataclass(frozen=True)
class Far:
    """How far a Root has come; steps are counted over all runs."""

    step: int = 0
    samples: int = 0


class Journal(Callback):
    """Of a Root. Steps and epochs go on where earlier runs have ended."""

    def __init__(
        self,
        recipe: Recipe | None,
        *,
        batches_per_epoch: int,
        epochs_before: int,
        clock_offset_s: float,
    ) -> None:
        """Of a script there is no recipe, and of some loaders nobody knows how long they are (0):
        then epochs are counted whole."""
        self._recipe = recipe
        self._batches = batches_per_epoch
        self._epoch = epochs_before
        self._before = epochs_before * batches_per_epoch
        self._offset = clock_offset_s
        self._lock = threading.Lock()
        self._losses: deque[Point] = deque(maxlen=_POINTS_KEPT)
        self._scores: deque[Point] = deque(maxlen=_POINTS_KEPT)
        self.far = Far(step=self._before)
        self.metrics: dict[str, float] = {}
        """Of the last validation, by the name of the series; those that are finite numbers."""

    def on_step_end(self, progress: Progress) -> None:
        with self._lock:
            self._epoch = progress.epoch
            self.far = Far(self._before + progress.step, progress.samples)
            self._losses.append(self._point("train/loss", progress.loss))

    def on_evaluate(self, progress: Progress) -> None:
        found = progress.metrics
        if self._recipe is not None:
            found = finish_metrics(self._recipe, found)
        named = {_series(f"eval/{name}"): value for name, value in found.items()}
        with self._lock:
            self._scores.extend(self._point(series, value) for series, value in named.items())
            self.metrics = {name: value for name, value in named.items() if math.isfinite(value)}

    def _point(self, series: str, value: float | None) -> Point:
        step = self.far.step
        known = value is not None and math.isfinite(value)
        return Point(
            series=series,
            step=step,
            epoch=step / self._batches if self._batches else float(self._epoch),
            at=time.time() + self._offset,
            value=value if known else None,
        )

    def take(self) -> tuple[Point, ...]:
        """Everything since the last time; of very many losses their means."""
        with self._lock:
            losses, self._losses = list(self._losses), deque(maxlen=_POINTS_KEPT)
            scores, self._scores = list(self._scores), deque(maxlen=_POINTS_KEPT)
        return (*thinned(losses, _POINTS_OF_A_REPORT), *scores[-_POINTS_OF_A_REPORT:])


def _series(name: str) -> str:
    """A script may call its metrics whatever it likes."""
    return re.sub(r"[^\w/.@ -]", "_", name)[:80]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many: each is the mean of some in a row, where the last is."""
    if len(points) <= most:
        return list(points)
    bounds = [len(points) * k // most for k in range(most + 1)]
    return [_mean(points[first:last]) for first, last in itertools.pairwise(bounds)]


def _mean(points: Sequence[Point]) -> Point:
    values = [point.value for point in points if point.value is not None]
    last = points[-1]
    # One loss that is no number makes the mean none: it must not be hidden.
    mean = sum(values) / len(values) if len(values) == len(points) else None
    return Point(last.series, last.step, last.epoch, last.at, mean)


class Notes(logging.Handler):
    """Warnings of the library, for events of the server."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: deque[str] = deque(maxlen=MOST_NOTES)

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage()[:_NOTE_LENGTH])

    def take(self) -> tuple[str, ...]:
        found = []
        for _ in range(len(self._texts)):
            found.append(self._texts.popleft())
        return tuple(found)
