"""Workers that hang: a run is given up once nobody gets on, and no earlier."""

import pytest
from state_simulation import SETTINGS, pool_of, preparing, training

from ravnest.api.work import LinkBytes, RoundReport, Span, WorkReport
from ravnest.server.state.events import JobSteered, WorkReported

LONG_S = SETTINGS.standstill_s


def report(sim, id, **figures):
    part = sim.world.at_work[id]
    report = WorkReport(at=sim.now, **figures)
    sim.happen(WorkReported(provider=id, assignment=part.id, report=report))


def causes(sim):
    return [note.text for note in sim.notes if note.level == "warning"]


def test_a_run_in_which_nobody_gets_on_is_lost():
    sim = pool_of(2)
    job = training(sim)
    report(sim, 1, step=3)
    sim.wait(LONG_S - 1)
    report(sim, 1, step=3)
    report(sim, 2)
    assert job.state == "running"
    sim.wait(2)
    assert (job.state, job.lost_runs) == ("waiting", 1)
    assert "no worker has got on for 15 minutes: p1, p2 only reported" in job.cause
    assert job.cause in causes(sim)


@pytest.mark.parametrize(
    "progress",
    [
        {"step": 2},
        {"updates": 2},
        {"epoch": 2},
        {"spans": (Span("evaluate", 1, 0, 0.0, 1.0),)},
        {"links": (LinkBytes(node="node_2", sent=2 << 20, received=0),)},
        {
            "rounds": (
                RoundReport(ring=0, number=1, began=0, ended=1, members=2, outcome="applied"),
            )
        },
    ],
    ids=lambda progress: next(iter(progress)),
)
def test_any_progress_of_anybody_keeps_a_run_alive(progress):
    sim = pool_of(4)
    job = training(sim)
    report(sim, 4, step=1, links=(LinkBytes(node="node_2", sent=10, received=0),))
    sim.wait(LONG_S - 1)
    report(sim, 4, **{"step": 1} | progress)
    sim.wait(LONG_S - 1)
    assert job.state == "running"
    sim.wait(2)
    assert job.state != "running"


def test_greetings_are_no_progress():
    sim = pool_of(2)
    job = training(sim)
    given_up = RoundReport(ring=0, number=1, began=0, ended=1, members=2, outcome="given up")
    for minute in range(15):
        report(
            sim,
            1,
            links=(LinkBytes(node="node_2", sent=minute * 1000, received=minute * 1000),),
            rounds=(given_up,),
        )
        sim.wait(60)
    sim.wait(1)
    assert job.state != "running"


def test_who_is_silent_while_others_report_is_named_and_done_without():
    sim = pool_of(4)
    job = training(sim)
    report(sim, 1, step=1)
    report(sim, 2, updates=1)
    for _ in range(14):
        sim.wait(60)
        for id in (1, 3, 4):
            report(sim, id)
    sim.wait(61)
    assert "p1 reported last, p2 did not" in sim.world.runs[job.id].cause
    assert (job.lost_runs, list(job.left_out)) == (0, [2])


def test_the_clusters_that_are_left_save_what_they_have():
    sim = pool_of(4)
    job = training(sim)
    report(sim, 1)
    sim.wait(LONG_S / 2)
    for id in (2, 3, 4):
        report(sim, id)
    sim.wait(LONG_S / 2 + 1)
    words = {id: sim.agents[id].inbox[-1].action for id in (2, 3, 4)}
    assert words == {2: "drop", 3: "stop", 4: "stop"}
    assert job.state == "stopping"


def test_a_paused_run_may_stand_still_and_has_its_time_again_afterwards():
    sim = pool_of(2)
    job = training(sim)
    sim.happen(JobSteered(job=job.id, action="pause", by="o"))
    sim.wait(10 * LONG_S)
    assert job.state == "paused"
    sim.happen(JobSteered(job=job.id, action="continue", by="o"))
    sim.wait(LONG_S - 1)
    assert job.state == "running"
    sim.wait(2)
    assert job.lost_runs == 1


def test_fetching_files_is_no_standstill():
    sim = pool_of(2)
    preparing(sim)
    sim.wait(1.5 * LONG_S)
    assert sim.world.jobs["j0"].state == "preparing"


def test_bringing_back_results_is_no_standstill():
    sim = pool_of(2)
    job = training(sim)
    for agent in sim.agents.values():
        agent.state = "returning"
        agent.beat()
    sim.talk()
    sim.wait(5 * LONG_S)
    assert (job.state, job.reason) == ("running", "results are being brought back by p1, p2")
    sim.wait(24 * 3600)
    assert job.state != "running"


def test_a_script_that_has_told_how_it_gets_on_has_to_go_on():
    sim = pool_of(2)
    job = training(sim)
    job.has_script = True
    report(sim, 1, step=1)
    sim.wait(LONG_S + 1)
    assert job.lost_runs == 1


def test_a_script_may_be_silent():
    sim = pool_of(2)
    job = training(sim)
    job.has_script = True
    sim.wait(5 * LONG_S)
    assert job.state == "running"


def test_after_a_restart_the_time_begins_anew():
    sim = pool_of(2)
    job = training(sim).id
    sim.wait(LONG_S - 1)
    sim.restart()
    for id in sim.agents:
        sim.connect(id)
    sim.talk()
    sim.wait(LONG_S - 1)
    assert sim.world.jobs[job].state == "running"
    sim.wait(2)
    assert sim.world.jobs[job].lost_runs == 1


def test_a_clock_that_is_put_back_keeps_no_run_alive_for_ever():
    sim = pool_of(2)
    job = training(sim)
    report(sim, 1, step=1)
    sim.move_clock(-100 * LONG_S)
    sim.wait(LONG_S + 1)
    assert job.state != "running"


def test_nothing_is_remembered_of_workers_that_have_ended():
    sim = pool_of(2)
    training(sim)
    report(sim, 1, step=1)
    assert sim.world.pulses
    for id in sim.agents:
        sim.go_on(id, "done")
    sim.talk()
    assert not sim.world.pulses
