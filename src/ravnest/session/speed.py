"""How fast a job was, beside what its plan has expected: from its curves, which have times."""

from ravnest.api.views import JobDetail, Series
from ravnest.planning.figures import plain

_LEAST_S = 1.0
"""Shorter than that nothing can be said."""
_LITTLE = 0.5
"""Of what was expected; with less than that, something may be wrong."""


def mean_speed(detail: JobDetail, series: Series) -> float:
    """Samples per second from the first step to the last, validation included; 0 if unknown.

    Of a job that was taken up again it is unknown: nobody says for how long it had been stopped.
    Nor is it known where steps are of another size than what was planned for, as in some scripts.
    """
    job, plan = detail.job, detail.plan
    if job.run != 1 or plan is None or job.batch_size != plan.batch_size:
        return 0.0
    steps_per_s = 0.0
    for name, points in series.points.items():
        if name.startswith("train/loss@") and points:
            (first, _, began, _), (last, _, ended, _) = points[0], points[-1]
            if ended - began >= _LEAST_S:
                steps_per_s += (last - first) / (ended - began)
    return steps_per_s * plan.batch_size


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
