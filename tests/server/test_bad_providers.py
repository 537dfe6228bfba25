"""One provider that does its worst, and others that could do the job without it."""

import hashlib

import pytest
from a_job import make_job
from state_simulation import SETTINGS, pool_of, preparing, training

from ravnest.api.control import Beat, Refused, Steer
from ravnest.api.limits import FileRef
from ravnest.api.work import WorkEnd
from ravnest.server.state.events import Fetched, LongAgo
from ravnest.server.state.records import Job, Part
from ravnest.server.state.recovery import fusible


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


def test_a_provider_that_brings_back_junk_is_done_without():
    """It was in every plan, said that it was done, and the job failed."""
    sim = pool_of(2)
    sim.bring_junk = {1}
    sim.submit(True, None)
    job = sim.world.jobs["j0"]
    for _ in range(10):
        one_turn(sim, 1, goes_on("done"))
        for agent in sim.agents.values():
            sim.go_on(agent.id, "done")
        sim.talk()
        sim.fuse_one()
        if job.state in ("done", "failed"):
            break
    assert job.state == "done", job.reason
    assert list(job.left_out) == [1]


def test_whoever_is_blamed_twice_is_done_without_before_the_one_that_blames():
    """One said at once that it was done, its neighbour's worker then failed because of it, and it
    was the neighbour that was left out."""
    sim = pool_of(2)
    sim.submit(True, None)
    job = sim.world.jobs["j0"]
    for blamed in range(1, 3):
        one_turn(sim, 2, goes_on("blames"))
        assert list(job.left_out) == ([] if blamed == 1 else [1])
    one_turn(sim, 2, goes_on("done"))
    sim.fuse_one()
    assert job.state == "done", job.reason


def test_two_that_take_turns_at_not_being_there_do_not_keep_a_job_from_beginning():
    sim = pool_of(4)
    sim.submit(True, None)
    job = sim.world.jobs["j0"]
    sim.agents[2].say(Beat(state="paused", paused=True))
    sim.talk()
    for here, gone in ((1, 2), (2, 1)):
        sim.wait(SETTINGS.settle_s + 15)
        assert {here, 3, 4} <= {spec.id for spec in sim.plans[0].pool}
        sim.agents[here].say(Beat(state="paused", paused=True))
        sim.agents[gone].say(Beat(state="idle"))
        sim.talk()
        sim.plan_one("fits")
    sim.wait(SETTINGS.settle_s + 15)
    assert [spec.id for spec in sim.plans[0].pool] == [3, 4]
    sim.plan_one("fits")
    assert job.state == "preparing"


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


def killing_turn(sim, how, killed):
    """One more worker is killed, of a machine that has lost none yet, if there is one at work."""
    sim.wait(SETTINGS.settle_s + 20)
    sim.plan_one("fits")
    sim.talk()
    for agent in sim.agents:
        sim.go_on(agent, "done")
    sim.talk()
    at_work = {id for id, agent in sim.agents.items() if agent.state == "training"}
    for victim in sorted(at_work - killed)[:1]:
        sim.go_on(victim, how)
        killed.add(victim)
    sim.talk()
    sim.fuse_one()


@pytest.mark.parametrize("count", [3, 6])
def test_a_graph_that_has_killed_two_machines_is_not_sent_to_a_third(count):
    """Each was left out at no cost to the job, which went through all of the pool. And then its
    requester resumed it."""
    sim = pool_of(count)
    sim.submit(True, None, graph="g")
    job, killed = sim.world.jobs["j0"], set()
    for _ in range(count + 2):
        killing_turn(sim, "signal", killed)
        sim.steer("j0", "resume")
    assert (job.state, len(killed)) == ("failed", 2), job.reason
    assert "killed its workers on 2 machines and is sent to no other: " in job.reason
    sim.steer("j0", "resume", by_operator=True)
    assert (job.state, sim.world.killers) == ("planning", {})


def test_a_graph_whose_workers_lacked_memory_may_be_submitted_with_smaller_batches():
    sim = pool_of(3)
    sim.submit(True, None, graph="g")
    for _ in range(4):
        killing_turn(sim, "memory", set())
    assert sim.world.killers == {}


@pytest.mark.parametrize("forgets", [True, False], ids=["restarted", "still there"])
def test_a_graph_that_kills_is_known_when_it_is_submitted_again(forgets):
    """By its owner, under another name; the job that it came with was deleted."""
    sim, killed = pool_of(6), set()
    for number in range(4):
        sim.submit(True, None, graph="g")
        killing_turn(sim, "signal", killed)
        sim.steer(f"j{number}", "stop")
        sim.steer(f"j{number}", "delete")
        if forgets:
            sim.restart()
            for agent in sim.agents:
                sim.connect(agent)
            sim.talk()
    assert len(killed) == 2
    sim.submit(True, None, graph="another")
    sim.submit(True, None, graph="g", owner="p")
    sim.submit(True, None, graph="g")
    sim.wait(SETTINGS.settle_s + 20)
    states = [sim.world.jobs[f"j{number}"].state for number in (4, 5, 6)]
    assert states == ["planning", "waiting", "failed"]
    sim.happen(LongAgo(before=sim.now))
    assert sim.world.killers == {}


def test_a_job_that_one_machine_kills_is_done_by_others():
    """That one may have too little memory, or be broken."""
    sim = pool_of(3)
    sim.submit(True, None)
    job = sim.world.jobs["j0"]
    for _ in range(6):
        one_turn(sim, 1, goes_on("signal"))
    assert job.state == "done", job.reason


def test_a_job_notes_the_graph_that_it_came_with(tmp_path):
    spec = make_job(tmp_path)[0]
    graph = (tmp_path / "model" / "graph.json").read_bytes()
    job = Job.of("j", spec, "t", "ada", "requester", 0.0)
    assert job.graph == hashlib.sha256(graph).hexdigest()


def trained_part(cluster, *, distrusts=(), epochs=2):
    return Part(
        id=f"j-1-{cluster}",
        job="j",
        run=1,
        provider=cluster,
        node=f"node_{cluster}",
        cluster=cluster,
        stage=0,
        role="Root",
        state="ended",
        end=WorkEnd(outcome="done", epochs_done=epochs, saved=True, distrusts=distrusts),
        results=(FileRef(path="trained.json", size=1, sha256="0" * 64),),
    )


def test_a_cluster_that_was_seen_to_spoil_rounds_is_not_the_one_that_is_fused():
    """It trains on alone, and may well be the first to end."""
    honest = [trained_part(0, epochs=3), trained_part(1), trained_part(2)]
    assert fusible(honest) == 0
    spoilt = [trained_part(0, epochs=3), trained_part(1, distrusts=(0,)), trained_part(2)]
    assert fusible(spoilt) == 1
    others = [trained_part(k, distrusts=(0,)) for k in (1, 2)]
    retaliates = [trained_part(0, distrusts=(1, 2)), *others]
    assert fusible(retaliates) == 1
    itself = [trained_part(0), trained_part(1, distrusts=(1,))]
    assert fusible(itself) == 0
    assert fusible([trained_part(0)]) == 0, "there is no other"
