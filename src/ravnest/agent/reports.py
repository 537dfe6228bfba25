"""Reports of a worker put together, where the server wants fewer or is away. Pure."""

import msgspec

from ravnest.api.work import (
    MOST_LINE_BYTES,
    MOST_NOTES,
    MOST_POINTS,
    MOST_ROUNDS,
    MOST_SPANS,
    WorkReport,
)

_MOST_DROPPED = 1 << 40
"""A worker says what it likes; what is added to that must still be a `Count`."""


def joined(old: WorkReport, new: WorkReport) -> WorkReport | None:
    """Two reports as one, None if that would be too large. Totals are those of the newer one."""
    points, rounds = (*old.points, *new.points), (*old.rounds, *new.rounds)
    if len(points) > MOST_POINTS or len(rounds) > MOST_ROUNDS:
        return None
    spans = (*old.spans, *new.spans)
    one = msgspec.structs.replace(
        new,
        points=points,
        rounds=rounds,
        notes=(*old.notes, *new.notes)[-MOST_NOTES:],
        spans=spans[-MOST_SPANS:],
        spans_dropped=_sum(old.spans_dropped, new.spans_dropped, len(spans[:-MOST_SPANS])),
    )
    return one if len(msgspec.json.encode(one)) <= MOST_LINE_BYTES else None


def without_spans(report: WorkReport) -> WorkReport:
    dropped = _sum(report.spans_dropped, len(report.spans))
    return msgspec.structs.replace(report, spans=(), spans_dropped=dropped)


def _sum(*dropped: int) -> int:
    return min(sum(dropped), _MOST_DROPPED)
