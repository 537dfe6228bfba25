"""One provider that does its worst, and others that could do the job without it."""

import pytest
from state_simulation import SETTINGS, pool_of, preparing, training

from ravnest.api.control import Beat, Refused, Steer
from ravnest.server.state.events import Fetched


def refuses(sim, id):
    agent = sim.agents[id]
    agent.say(Refused(assignment=agent.work, reason="no"))
    agent.free()


def forgets(sim, id):
    sim.lose_everything(id)
    sim.connect(id)


def goes_away(sim, id):
    sim.cut(id)
    sim.wait(SETTINGS.away_s + 1)
    sim.connect(id)


def leaves_at_once(sim, id):
    sim.leave(id, now=True)
    sim.talk()
    sim.lose_everything(id)
    sim.connect(id)


def goes_on(how):
    return lambda sim, id: sim.go_on(id, how)


def one_turn(sim, bad, misbehaves):
    """Whatever is due is done; the bad one does it in its own way as soon as it trains."""
    sim.wait(SETTINGS.settle_s + 20)
    sim.plan_one("fits")
    sim.talk()
    for agent in sim.agents.values():
        if agent.state == "preparing":
            sim.go_on(agent.id, "done")
    sim.talk()
    if sim.agents[bad].state == "training":
        misbehaves(sim, bad)
        sim.talk()
    else:
        for agent in sim.agents.values():
            sim.go_on(agent.id, "done")
        sim.talk()
    sim.fuse_one()


@pytest.mark.parametrize(
    "misbehaves",
    [
        *(refuses, forgets, goes_away, leaves_at_once),
        *map(goes_on, ("failed", "blames", "stopped", "unsaved")),
    ],
    ids=[
        *("refuses", "forgets", "goes away", "leaves at once"),
        *("fails", "blames", "stops by itself", "saves nothing"),
    ],
)
@pytest.mark.parametrize("count", [3, 4])
def test_a_job_that_others_can_do_is_done_without_it(misbehaves, count):
    sim = pool_of(count)
    sim.submit(True, None)
    job = sim.world.jobs["j0"]
    for _ in range(10):
        one_turn(sim, 1, misbehaves)
        if job.state in ("done", "failed"):
            break
    assert job.state == "done", job.reason


def test_a_provider_that_an_operator_removes_costs_its_job_no_run():
    sim = pool_of(3)
    job = training(sim)
    sim.steer_provider(1, "remove")
    sim.talk()
    sim.fuse_one()
    assert (sim.world.runs[job.id].lost, job.lost_runs) == (True, 0)
    sim.calm_down()
    assert job.state == "done"


@pytest.mark.parametrize("misbehaves", [refuses, forgets, goes_on("blames"), goes_on("failed")])
def test_a_job_that_nobody_else_can_do_comes_to_an_end(misbehaves):
    sim = pool_of(1)
    sim.submit(True, None)
    job = sim.world.jobs["j0"]
    for _ in range(10):
        one_turn(sim, 1, misbehaves)
    assert job.state == "failed"


@pytest.mark.parametrize("when", [preparing, training], ids=["before training", "while training"])
@pytest.mark.parametrize("how", ["leaves", "rests"])
def test_who_goes_in_good_order_and_comes_back_is_done_without_for_a_while(how, when):
    sim = pool_of(2)
    when(sim)
    agent = sim.agents[1]
    if how == "leaves":
        sim.leave(1, now=False)
        sim.talk()
        sim.cut(1)
        sim.connect(1)
    else:
        agent.say(Beat(state="resting", assignment=agent.work))
    sim.talk()
    assert sim.world.free == {1, 2}
    if when is training:
        sim.fuse_one()
    sim.wait(SETTINGS.settle_s + 15)
    assert [spec.id for spec in sim.plans[0].pool] == [2]


@pytest.mark.parametrize(("trained_s", "times"), [(10.0, 2), (2 * 3600.0, 1)])
def test_who_goes_again_and_again_is_done_without_for_longer_unless_it_has_worked(trained_s, times):
    sim = pool_of(1)
    job = training(sim)
    _goes_and_comes_back(sim)
    sim.wait(SETTINGS.declined_s + 15)
    sim.plan_one("fits")
    sim.talk()
    sim.go_on(1, "done")
    sim.talk()
    assert job.state == "running"
    sim.world.runs[job.id].training_at -= trained_s
    _goes_and_comes_back(sim)
    assert sim.world.declined[job.id][1].times == times


def _goes_and_comes_back(sim):
    sim.leave(1, now=False)
    sim.talk()
    sim.cut(1)
    sim.connect(1)
    sim.talk()
    sim.fuse_one()


def test_who_stood_still_is_told_that_its_part_is_over_and_is_free_again():
    sim = pool_of(1)
    job = training(sim)
    sim.wait(SETTINGS.standstill_s + 1)
    assert job.lost_runs == 1
    told = sim.agents[1].inbox[-1]
    assert (type(told), told.action) == (Steer, "drop")
    sim.talk()
    assert sim.world.free == {1}


@pytest.mark.parametrize("size", [1, 2 << 20])
def test_files_that_trickle_do_not_hold_a_run_for_ever(size):
    sim = pool_of(2)
    preparing(sim)
    sim.go_on(1, "done")
    sim.talk()
    job, began = sim.world.jobs["j0"], sim.now
    while job.state == "preparing":
        sim.happen(Fetched(provider=2, assignment=sim.agents[2].work, bytes=size))
        sim.wait(SETTINGS.prepare_s / 2)
    waited = SETTINGS.prepare_s if size == 1 else SETTINGS.prepare_most_s
    assert waited <= sim.now - began <= waited + SETTINGS.prepare_s
