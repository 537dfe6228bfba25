"""How fast a job was, beside what its plan has expected: from its curves, which have times."""

import statistics
from itertools import pairwise

from ravnest.api.views import JobDetail, Series
from ravnest.planning.figures import plain

_LEAST_S = 1.0
"""Shorter than that nothing can be said."""
_REST_S = 10.0
_REST = 10.0
"""So many times what steps take there, and as long as that at least: it was not training then, but
paused, or busy with a long validation."""
_LITTLE = 0.25
"""Of what was expected; with less than that, something may be wrong. With more, validation may have
taken the rest, of which plans know nothing."""


def mean_speed(detail: JobDetail, series: Series) -> float:
    """Samples per second from the first step to the last, long rests left out; 0 if unknown.

    Of a job that was taken up again it is unknown: nobody says for how long it had been stopped.
    Nor is it known where steps are of another size than what was planned for, as in some scripts.
    """
    job, plan = detail.job, detail.plan
    if job.run != 1 or plan is None or job.batch_size != plan.batch_size:
        return 0.0
    curves = [points for name, points in series.points.items() if name.startswith("train/loss@")]
    return sum(map(_steps_per_s, curves)) * plan.batch_size


def _steps_per_s(points: tuple[tuple[float, ...], ...]) -> float:
    """Of one cluster. The dashboard has the same rule (charts/data.js)."""
    # How many steps, and how long they took: of long runs not every step has a point.
    gaps = [(b[0] - a[0], b[2] - a[2]) for a, b in pairwise(points) if b[0] > a[0]]
    if not gaps:
        return 0.0
    usual_s = statistics.median_low(seconds / steps for steps, seconds in gaps)
    at_work = [gap for gap in gaps if gap[1] <= max(_REST_S, _REST * usual_s * gap[0])]
    seconds = sum(seconds for _, seconds in at_work)
    return sum(steps for steps, _ in at_work) / seconds if seconds >= _LEAST_S else 0.0


def speed_words(detail: JobDetail, series: Series) -> str:
    """For people; "" if nothing is known."""
    speed, plan = mean_speed(detail, series), detail.plan
    if not speed or plan is None:
        return ""
    expected = plan.steps_per_s * plan.batch_size
    words = f"{plain(speed)} samples/s on average"
    if not expected:
        return words
    share = speed / expected
    words += f", {share:.0%} of the {plain(expected)} that the plan has expected"
    return words if share >= _LITTLE else f"{words}: is something else running on the machines?"
