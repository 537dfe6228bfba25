"""What a run looks like at the moment: figures, speeds of links, the last seconds of everybody.

All of it is lost with the server, and made anew by the next reports; memory is bounded whatever
they say. Only points of curves are kept, and handed back to whoever writes them.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ravnest.api.views import RoundView, Timeline, TimelineRow
from ravnest.api.work import Point, RoundReport, Span, WorkReport
from ravnest.server.state.records import Part

TIMELINE_S = 60.0
_SPANS_OF_A_RUN = 200_000
_SPANS_OF_A_PART = 4000
_ROUNDS = 50
_LEAST_S = 0.1
"""Between two looks at the traffic of a link: the times are a worker's, and may be any."""
_POINTS_OF_A_CURVE = 50_000
_SERIES = 200
_LISTS: dict[str, Any] = dict.fromkeys(("links", "spans", "rounds", "points", "notes"), ())
"""Of a report, what is kept elsewhere as far as it is kept; the rest is figures."""


@dataclass(slots=True)
class Traffic:
    """Between two providers, as one of them counts it."""

    at: float
    sent: int
    received: int
    sent_per_s: float = 0.0
    received_per_s: float = 0.0

    def count(self, at: float, sent: int, received: int) -> None:
        seconds = at - self.at
        if seconds < _LEAST_S:
            return
        self.sent_per_s = max(0, sent - self.sent) / seconds
        self.received_per_s = max(0, received - self.received) / seconds
        self.at, self.sent, self.received = at, sent, received


@dataclass
class LiveRun:
    """A run of a job, by the reports of its workers."""

    job: str
    number: int
    spans_each: int
    by_node: dict[str, int]
    reports: dict[int, WorkReport] = field(default_factory=dict)
    traffic: dict[tuple[int, int], Traffic] = field(default_factory=dict)
    spans: dict[int, deque[Span]] = field(default_factory=dict)
    rounds: deque[RoundView] = field(default_factory=lambda: deque(maxlen=_ROUNDS))
    loss: dict[int, float] = field(default_factory=dict)
    epoch: dict[int, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    notes: int = 0
    """Of its workers, that have become events."""
    _kept: Counter[tuple[str, int]] = field(default_factory=Counter)

    @classmethod
    def of(cls, job: str, number: int, parts: Sequence[Part]) -> "LiveRun":
        each = max(100, min(_SPANS_OF_A_PART, _SPANS_OF_A_RUN // max(1, len(parts))))
        return cls(job, number, each, {part.node: part.provider for part in parts})

    def take(self, part: Part, report: WorkReport) -> list[Point]:
        """What a worker says; the points of it that are worth keeping."""
        provider = part.provider
        self.reports[provider] = msgspec.structs.replace(report, **_LISTS)
        for link in report.links:
            other = self.by_node.get(link.node)
            if other is not None:
                known = self.traffic.get((provider, other))
                if known is None:
                    self.traffic[provider, other] = Traffic(report.at, link.sent, link.received)
                else:
                    known.count(report.at, link.sent, link.received)
        if report.spans:
            kept = self.spans.setdefault(provider, deque(maxlen=self.spans_each))
            kept.extend(report.spans)
        for ended in report.rounds:
            self._take_round(ended)
        return [point for point in report.points if self._take_point(part, point)]

    def _take_round(self, ended: RoundReport) -> None:
        key = (ended.ring, ended.number)
        if any((known.ring, known.number) == key for known in self.rounds):
            return  # another member of the ring has told already
        self.rounds.append(
            RoundView(
                ring=ended.ring,
                number=ended.number,
                began=ended.began,
                ended=ended.ended,
                members=ended.members,
                outcome=ended.outcome,
            )
        )

    def _take_point(self, part: Part, point: Point) -> bool:
        """Of a very long curve every second, fourth, … point is kept."""
        if point.series == "train/loss":
            self.epoch[part.cluster] = point.epoch
            if point.value is not None:
                self.loss[part.cluster] = point.value
        elif point.value is not None and part.cluster == 0 and self._shows(point.series):
            self.metrics[point.series] = point.value
        curve = (point.series, part.cluster)
        if curve not in self._kept and len(self._kept) >= _SERIES:
            return False
        self._kept[curve] += 1
        place = self._kept[curve]
        return place % (1 << (place // _POINTS_OF_A_CURVE)) == 0

    def _shows(self, metric: str) -> bool:
        return metric in self.metrics or len(self.metrics) < _SERIES

    def timeline(self, parts: Iterable[Part], seconds: float, now: float) -> Timeline:
        began = now - min(seconds, TIMELINE_S)
        rows = tuple(
            TimelineRow(
                provider=part.provider,
                node=part.node,
                cluster=part.cluster,
                stage=part.stage,
                spans=tuple(
                    (span.kind, span.batch, span.part, span.start, span.end)
                    for span in self.spans.get(part.provider, ())
                    if span.end >= began
                ),
            )
            for part in parts
        )
        return Timeline(began=began, ended=now, rows=rows)
