"""What a worker reports beyond measure is left out: points of curves, and long or many notes.

Nobody is let go for it, and nothing is lost silently: an event says how much was left out.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ravnest.api.work import WorkReport
from ravnest.server.service.limits import Buckets, Rate
from ravnest.server.state.words import counted

RATES = {"points": Rate(500, 10_000), "notes": Rate(100, 20_000)}
"""Of each provider, in a second: points, and characters of notes."""
_TELL_S = 60.0


@dataclass(slots=True)
class _LeftOut:
    points: int = 0
    notes: int = 0
    told_at: float | None = None


class Moderation:
    def __init__(self, tell: Callable[[int, str], None], clock: Callable[[], float]) -> None:
        """`tell` is given a provider, and what of its report was left out."""
        self._tell = tell
        self._clock = clock
        self._buckets = Buckets(RATES)
        self._left_out: dict[int, _LeftOut] = {}

    def moderated(self, provider: int, report: WorkReport) -> WorkReport:
        """The report, without what is too much of it."""
        now, key = self._clock(), str(provider)
        points = self._buckets.take_some("points", key, now, len(report.points))
        notes = 0
        for note in report.notes:
            if not self._buckets.take("notes", key, now, len(note)):
                break
            notes += 1
        if points == len(report.points) and notes == len(report.notes):
            return report
        self._count(provider, len(report.points) - points, len(report.notes) - notes, now)
        return msgspec.structs.replace(
            report, points=report.points[len(report.points) - points :], notes=report.notes[:notes]
        )

    def _count(self, provider: int, points: int, notes: int, now: float) -> None:
        so_far = self._left_out.setdefault(provider, _LeftOut())
        so_far.points += points
        so_far.notes += notes
        if so_far.told_at is not None and 0 <= now - so_far.told_at < _TELL_S:
            return
        said = [
            counted(count, kind)
            for count, kind in ((so_far.points, "point"), (so_far.notes, "note"))
            if count
        ]
        self._left_out[provider] = _LeftOut(told_at=now)
        self._tell(provider, f"reports more than is taken; left out: {' and '.join(said)}")
