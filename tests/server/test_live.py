"""What is known of a run while it lasts has bounds, and what is known stays up to date."""

from types import SimpleNamespace

from state_simulation import pool_of, training

from ravnest.api.control import Reported
from ravnest.api.work import LinkBytes, Point, Span, WorkReport
from ravnest.server.service.live import LiveRun
from ravnest.server.service.reports import Reports

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


def test_of_a_report_only_its_figures_stay_as_they_are():
    live = LiveRun.of("job", 1, [PART])
    spans = (Span("forward", 1, 0, 0.0, 1.0),)
    links = (LinkBytes(node="node_2", sent=1, received=1),)
    said = WorkReport(at=1.0, step=7, spans=spans, links=links, notes=("warm",))
    live.take(PART, said)
    assert live.reports[1] == WorkReport(at=1.0, step=7)


def test_whatever_the_clock_of_a_worker_says_the_speed_of_a_link_is_a_number():
    """Two reports with nearly the same time made it infinite, and no client understood that."""
    live = LiveRun.of("job", 1, [PART, SimpleNamespace(provider=2, cluster=0, node="node_2")])
    for at, sent in ((0.0, 0), (5e-324, 1 << 50), (0.2, 1 << 50), (1e11, 0), (0.0, 1 << 50)):
        links = (LinkBytes(node="node_2", sent=sent, received=sent),)
        live.take(PART, WorkReport(at=at, links=links))
        traffic = live.traffic[1, 2]
        assert traffic.sent_per_s <= 1e17
        assert traffic.received_per_s <= 1e17
    assert live.traffic[1, 2].at == 1e11


def reports_of(sim, kept):
    core = SimpleNamespace(
        world=sim.world, happen=sim.happen, clock=lambda: sim.now, keep=kept.append
    )
    seen = SimpleNamespace(id="", run=1, epoch=0.0, step=0, loss=None, metrics={})
    return Reports(
        core, None, (), seen=lambda job: seen, changed=lambda job, points: None, hang_up=None
    )


def say(sim, reports):
    part = sim.world.at_work[1].id
    report = WorkReport(at=sim.now, step=5, spans=(Span("forward", 1, 0, 0.0, 1.0),))
    reports.reported(1, Reported(assignment=part, report=report))


def test_how_far_a_job_is_is_kept_now_and_then_also_after_the_clock_was_put_back():
    sim, kept = pool_of(2), []
    training(sim)
    reports = reports_of(sim, kept)
    for moves, times in ((0, 1), (1, 1), (60, 2), (-3600, 3), (1, 3)):
        sim.now += moves
        say(sim, reports)
        assert len(kept) == times


def test_the_last_seconds_of_a_run_are_forgotten_when_another_one_begins():
    sim = pool_of(2)
    reports = reports_of(sim, kept=[])

    def train():
        job = training(sim)
        say(sim, reports)
        return reports.live_run(job.id)

    first = train()
    assert len(first.spans[1]) == 1
    sim.calm_down()
    second = train()
    assert (len(first.spans), len(second.spans)) == (0, 1)
    assert first.reports[1].step == 5
