"""What is known of a run while it lasts has bounds, and what is known stays up to date."""

from types import SimpleNamespace

from ravnest.api.work import Point, WorkReport
from ravnest.server.service.live import LiveRun

PART = SimpleNamespace(provider=1, cluster=0, node="node_1")


def report(*points):
    return WorkReport(
        at=1.0, points=tuple(Point(name, 1, 0.5, 1.0, value) for name, value in points)
    )


def test_metrics_that_are_shown_go_on_when_there_is_no_room_for_others():
    live = LiveRun.of("job", 1, [PART])
    live.take(PART, report(*((f"eval/{number}", 1.0) for number in range(250))))
    live.take(PART, report(("eval/7", 2.0), ("eval/249", 2.0)))
    assert len(live.metrics) == 200
    assert live.metrics["eval/7"] == 2.0
    assert "eval/249" not in live.metrics
