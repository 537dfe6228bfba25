"""A report every second or so, from a thread of its own, until the end of the work."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import get_args

import psutil

from ravnest.api.work import (
    MOST_LINKS,
    MOST_ROUNDS,
    MOST_SPANS,
    LinkBytes,
    Report,
    RoundReport,
    Span,
    SpanKind,
    WorkReport,
)
from ravnest.provider.telemetry import Sample, Telemetry, Totals
from ravnest.worker.journal import Journal, Notes
from ravnest.worker.speech import Speech

logger = logging.getLogger("ravnest.worker")
COMPUTED: dict[str, SpanKind] = {kind: kind for kind in get_args(SpanKind)}
"""What shows on a timeline. The waits are what is between."""
_RATE_OVER_S = 10.0
_LAST_S = 10.0


class Reporter:
    """`start` it when the node has begun, `stop` it before the end is said."""

    def __init__(
        self,
        speech: Speech,
        telemetry: Telemetry,
        notes: Notes,
        *,
        journal: Journal | None = None,
        every_s: float = 1.0,
        clock_offset_s: float = 0.0,
        epochs_before: int = 0,
        device_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """Only a Root has a `journal`. `device_bytes` are besides the memory of the process."""
        self._speech = speech
        self._telemetry = telemetry
        self._notes = notes
        self._journal = journal
        self._every_s = max(every_s, 0.05)
        self._offset = clock_offset_s
        self._device_bytes = device_bytes
        self._process = psutil.Process()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporting", daemon=True)
        self._before: tuple[float, Totals] | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=1000)
        self._epochs_before = epochs_before
        self.epochs_done = epochs_before
        """Whole ones that this stage has seen the end of, with those of earlier runs. Counted by
        the stage: spans are dropped when there are many."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Say what there is left to say."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(_LAST_S)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._say()
        self._say()

    def _say(self) -> None:
        try:
            self._speech.say(Report(self.report()))
        except Exception:  # a worker that cannot report can still train
            logger.exception("a report could not be made")

    def report(self) -> WorkReport:
        sample = self._telemetry.drain()
        spans, dropped = self._spans(sample)
        totals = sample.standing.totals
        self.epochs_done = max(self.epochs_done, self._epochs_before + totals.epochs)
        busy, staleness = self._since_last(sample.at, totals)
        journal = self._journal
        samples = journal.far.samples if journal else 0
        return WorkReport(
            at=sample.at + self._offset,
            epoch=self.epochs_done,
            step=journal.far.step if journal else 0,
            samples=samples,
            samples_per_second=self._rate(sample.at, samples),
            busy=busy,
            in_flight=sample.standing.in_flight,
            updates=totals.updates,
            staleness=staleness,
            memory_bytes=self._process.memory_info().rss + self._device_bytes(),
            links=tuple(
                LinkBytes(node=node, sent=sent, received=received)
                for node, (sent, received) in list(sample.standing.links.items())[:MOST_LINKS]
            ),
            spans=spans,
            spans_dropped=dropped,
            rounds=self._rounds(sample),
            points=journal.take() if journal else (),
            notes=self._notes.take(),
        )

    def _spans(self, sample: Sample) -> tuple[tuple[Span, ...], int]:
        shown = [span for span in sample.spans if span.kind in COMPUTED]
        kept = shown[-MOST_SPANS:]
        found = tuple(
            Span(COMPUTED[s.kind], s.batch, s.part, s.start + self._offset, s.end + self._offset)
            for s in kept
        )
        return found, sample.spans_dropped + len(shown) - len(kept)

    def _rounds(self, sample: Sample) -> tuple[RoundReport, ...]:
        return tuple(
            RoundReport(
                ring=ended.ring,
                number=ended.number,
                began=ended.began + self._offset,
                ended=ended.ended + self._offset,
                members=len(ended.members),
                outcome=ended.outcome,
            )
            for ended in sample.rounds[-MOST_ROUNDS:]
        )

    def _since_last(self, at: float, totals: Totals) -> tuple[float, float]:
        """Share of the time that the stage was busy, and how stale its gradients were."""
        before, self._before = self._before, (at, totals)
        if before is None:
            return 0.0, 0.0
        then, old = before
        busy = (totals.busy_s - old.busy_s) / max(at - then, 1e-9)
        backwards = totals.backwards - old.backwards
        stale = (totals.staleness - old.staleness) / backwards if backwards else 0.0
        return min(max(busy, 0.0), 1.0), max(stale, 0.0)

    def _rate(self, at: float, samples: int) -> float:
        """Over the last seconds: batches may be few and large."""
        self._samples.append((at, samples))
        while len(self._samples) > 2 and self._samples[1][0] <= at - _RATE_OVER_S:
            self._samples.popleft()
        first_at, first = self._samples[0]
        return max(samples - first, 0) / (at - first_at) if at > first_at else 0.0
