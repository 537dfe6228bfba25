"""What a worker reports beyond measure is left out: points of curves, and long or many notes; and
curves that its job does not have, for everybody is shown what they are called.

Nobody is let go for it, and nothing is lost silently: an event says how much was left out.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from ravnest.api.work import WorkReport
from ravnest.server.service.live import LiveRun
from ravnest.server.service.ratelimit import Buckets, Rate
from ravnest.server.state.words import counted

RATES = {"points": Rate(500, 10_000), "notes": Rate(100, 20_000)}
"""Of each provider, in a second: points, and characters of notes."""
NOTES_OF_A_RUN = 500
"""Each becomes an event, which is kept."""
_TELL_S = 60.0


@dataclass(slots=True)
class _LeftOut:
    points: int = 0
    notes: int = 0
    told_at: float = -math.inf


class Moderation:
    def __init__(self, tell: Callable[[int, str], None], clock: Callable[[], float]) -> None:
        """`tell` is given a provider, and what of its report was left out."""
        self._tell = tell
        self._clock = clock
        self._buckets = Buckets(RATES)
        self._left_out: dict[int, _LeftOut] = {}

    def moderated(
        self, provider: int, run: LiveRun, report: WorkReport, curves: Collection[str] = ()
    ) -> WorkReport:
        """The report, without what is too much of it. `curves` are those of the job, if these are
        known."""
        now, key = self._clock(), str(provider)
        known = [point for point in report.points if not curves or point.series in curves]
        points = self._buckets.take_some("points", key, now, len(known))
        wanted = report.notes[: NOTES_OF_A_RUN - run.notes]
        notes = 0
        for note in wanted:
            if not self._buckets.take("notes", key, now, len(note)):
                break
            notes += 1
        too_fast = points < len(report.points) or notes < len(wanted)
        self._count_notes(provider, run, notes)
        if not too_fast and notes == len(report.notes):
            return report
        left_out = self._left_out.setdefault(provider, _LeftOut())
        left_out.points += len(report.points) - points
        left_out.notes += len(report.notes) - notes
        if too_fast and not 0 <= now - left_out.told_at < _TELL_S:
            self.tell_rest(provider)
        return msgspec.structs.replace(
            report, points=tuple(known[len(known) - points :]), notes=report.notes[:notes]
        )

    def _count_notes(self, provider: int, run: LiveRun, notes: int) -> None:
        """Whoever makes the last one is told of at once; thousands may be about to make more."""
        run.notes += notes
        if notes and run.notes == NOTES_OF_A_RUN:
            self._tell(provider, f"made the last of {NOTES_OF_A_RUN} notes; more are only counted")

    def tell_rest(self, provider: int) -> None:
        """What was left out of its reports and has not been told: it has ended, or gone."""
        left_out = self._left_out.get(provider, _LeftOut())
        kinds = ((left_out.points, "point"), (left_out.notes, "note"))
        said = [counted(count, kind) for count, kind in kinds if count]
        if said:
            self._left_out[provider] = _LeftOut(told_at=self._clock())
            self._tell(provider, f"reports more than is taken; left out: {' and '.join(said)}")
