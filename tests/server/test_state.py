"""What follows from what: single stories on a virtual clock."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_simulation import FACTS, SETTINGS, Simulation, pool_of, preparing, training

from ravnest.api.control import Beat, Hello, SetPause, Steer
from ravnest.api.limits import MOST_TEXT
from ravnest.api.machine import Caps, Figures, PeerFigure
from ravnest.api.work import WorkEnd
from ravnest.errors import JobError
from ravnest.server.state import introducing
from ravnest.server.state.events import Connected, EnrolledNow, Fetched, Heard, JobSteered, LongAgo
from ravnest.server.state.machine import handle
from ravnest.server.state.pool import as_pool, why_not_for
from ravnest.server.state.records import Job, Provider
from ravnest.server.state.retrying import MOST_RETRIES
from ravnest.server.state.world import World


def last_word(sim, id):
    return sim.agents[id].inbox[-1]


def test_a_run_goes_from_waiting_to_done():
    sim = pool_of(2)
    sim.submit(True, None)
    job = sim.world.jobs["j0"]
    states = [job.state]
    sim.wait(15)
    states.append(job.state)
    sim.plan_one("fits")
    states.append(job.state)
    sim.talk()
    for _ in range(2):
        for agent in sim.agents:
            sim.go_on(agent, "done")
        sim.talk()
        states.append(job.state)
    sim.fuse_one()
    states.append(job.state)
    assert states == ["waiting", "planning", "preparing", "running", "fusing", "done"]
    assert (job.run, job.fused_run, job.epochs_done) == (1, 1, 2)
    assert all(agent.state == "idle" for agent in sim.agents.values())


def test_a_reason_is_as_long_as_a_text_may_be_whoever_gives_it():
    world = World()
    job = Job(id="j", name="j", owner="o", owner_name="o", submitted_at=0.0, epochs=1)
    world.move(job, "failed", "it cannot be planned: " + "x" * 5000)
    assert len(job.reason) == MOST_TEXT


def test_without_a_pool_a_job_says_how_to_get_one():
    sim = Simulation()
    sim.submit(True, None)
    sim.wait(15)
    assert "ravnest join" in sim.world.jobs["j0"].reason
    sim.enrol()
    sim.wait(15)
    job = sim.world.jobs["j0"]
    assert job.state == "waiting"


def test_a_growing_pool_is_planned_with_once_it_has_settled():
    sim = Simulation()
    sim.submit(True, None)
    sim.wait(15)
    for number in range(1, 4):
        sim.enrol()
        sim.connect(number)
        sim.talk()
        assert not sim.plans
        sim.wait(SETTINGS.settle_s / 2)
    sim.wait(SETTINGS.settle_s)
    assert [spec.id for spec in sim.plans[0].pool] == [1, 2, 3]


def test_jobs_share_the_pool_oldest_first():
    sim = pool_of(4)
    for _ in range(2):
        sim.submit(True, 2)
    sim.wait(15)
    assert [plan.job for plan in sim.plans] == ["j0"]
    assert sim.world.jobs["j1"].reason == "j0 is being planned first"
    sim.plan_one("fits")
    sim.wait(SETTINGS.settle_s)
    sim.plan_one("fits")
    work = {id: part.job for id, part in sim.world.at_work.items()}
    assert sorted(work.values()) == ["j0", "j0", "j1", "j1"]


def test_a_provider_that_leaves_in_good_order_ends_the_run_with_its_weights():
    sim = pool_of(4)
    job = training(sim)
    sim.leave(1, now=False)
    sim.talk()
    assert job.state == "fusing"
    assert sim.world.runs[job.id].lost is False
    sim.fuse_one()
    sim.cut(1)
    sim.wait(5)
    assert (job.state, job.epochs_done, job.lost_runs) == ("planning", 1, 0)
    assert {spec.id for spec in sim.plans[0].pool} == {2, 3, 4}
    assert (sim.plans[0].fused_run, sim.plans[0].epochs_done) == (1, 1)


def test_a_lost_cluster_is_dropped_and_the_others_save_what_they_have():
    sim = pool_of(4)
    job = training(sim)
    assert {part.cluster for part in sim.world.of_run[job.id]} == {0, 1}
    sim.go_on(1, "failed")
    sim.hear_one(1)
    words = {id: last_word(sim, id).action for id in (2, 3, 4)}
    assert words == {2: "drop", 3: "stop", 4: "stop"}
    sim.talk()
    assert (job.state, sim.world.runs[job.id].fuses) == ("fusing", 1)
    sim.fuse_one()
    assert job.epochs_done == 1
    assert "p1" in job.cause


def end_with(sim, ends):
    """Provider id → how its worker ends; all at once."""
    for id, end in ends.items():
        sim.agents[id].finish(end)
    sim.talk()


def test_nobody_has_done_more_epochs_than_the_job_has():
    sim = pool_of(4)
    job = training(sim)
    end = WorkEnd(outcome="done", epochs_done=1 << 40, saved=True)
    end_with(sim, {part.provider: end for part in sim.world.of_run[job.id]})
    sim.fuse_one()
    assert (job.state, job.epochs_done) == ("done", job.epochs)


def test_what_only_the_fastest_cluster_has_done_is_not_skipped_for_the_others():
    sim = pool_of(4)
    job = training(sim)
    by_cluster = {
        0: WorkEnd(outcome="stopped", epochs_done=1, saved=True),
        1: WorkEnd(outcome="stopped", epochs_done=2, saved=True),
    }
    sim.steer("j0", "stop")
    end_with(sim, {part.provider: by_cluster[part.cluster] for part in sim.world.of_run[job.id]})
    assert sim.world.runs[job.id].fuses == 1  # its weights are trained most
    sim.fuse_one()
    assert (job.state, job.epochs_done) == ("stopped", 1)


def test_a_job_is_not_done_while_a_cluster_was_stopped_on_the_way():
    sim = pool_of(4)
    job = training(sim)
    by_cluster = {
        0: WorkEnd(outcome="done", epochs_done=2, saved=True),
        1: WorkEnd(outcome="stopped", epochs_done=1, saved=True),
    }
    end_with(sim, {part.provider: by_cluster[part.cluster] for part in sim.world.of_run[job.id]})
    sim.fuse_one()
    assert (job.state, job.epochs_done) == ("waiting", 1)


def test_a_job_that_is_done_without_one_of_its_clusters_says_so():
    sim = pool_of(4)
    job = training(sim)
    clusters = {0: [], 1: []}
    for part in sim.world.of_run[job.id]:
        clusters[part.cluster].append(part.provider)
    end_with(sim, dict.fromkeys(clusters[1], WorkEnd(outcome="done", epochs_done=2, saved=True)))
    sim.go_on(clusters[0][0], "failed")
    sim.talk()
    sim.fuse_one()
    assert job.state == "done"
    assert job.reason.startswith("cluster 0 was lost on the way: the worker of p")
    assert sim.notes[-1].level == "warning"


def test_a_provider_that_stays_away_is_given_up():
    sim = pool_of(2)
    job = training(sim)
    sim.cut(1)
    sim.wait(SETTINGS.away_s - 1)
    assert job.state == "running"
    sim.wait(2)
    assert job.state in ("waiting", "planning")
    assert "away" in job.cause
    assert isinstance(last_word(sim, 2), Steer)


def test_a_provider_that_comes_back_in_time_goes_on():
    sim = pool_of(2)
    job = training(sim)
    sim.cut(1)
    sim.wait(SETTINGS.away_s - 1)
    sim.connect(1)
    sim.talk()
    sim.wait(SETTINGS.away_s)
    assert (job.state, job.lost_runs) == ("running", 0)


def test_whoever_was_away_too_long_is_told_that_its_run_is_over():
    sim = pool_of(2)
    training(sim)
    sim.cut(1)
    sim.wait(SETTINGS.away_s + 1)
    sim.connect(1)
    sim.hear_one(1)
    dropped = [m for m in sim.agents[1].inbox if isinstance(m, Steer)]
    assert [m.action for m in dropped] == ["drop"]
    sim.talk()
    assert sim.agents[1].work is None


def test_the_first_cause_is_what_the_culprit_says_itself():
    sim = pool_of(4)
    job = training(sim)
    sim.go_on(4, "blames")
    sim.hear_one(4)
    run = sim.world.runs[job.id]
    assert run.secondhand
    sim.go_on(1, "failed")
    sim.hear_one(1)
    assert run.cause == "the worker of p1 failed: boom"


@pytest.mark.parametrize(("how", "first"), [("blames", True), ("lies", False)])
def test_a_worker_can_blame_a_provider_of_its_run_and_nothing_else(how, first):
    """What it called the culprit was any words, which everybody was shown before the colon."""
    sim = pool_of(4)
    job = training(sim)
    sim.go_on(4, how)
    sim.hear_one(4)
    run = sim.world.runs[job.id]
    said = f"the worker of p4 failed{' because of p1' if first else ''}: it was them"
    assert run.cause.startswith(said)
    assert run.secondhand == first
    assert (4 in job.left_out) == (not first)


@pytest.mark.parametrize("how", ["failed", "lies", "memory", "refused"])
def test_what_one_provider_says_reaches_no_other(how):
    """It was the reason by which the others were told to stop. With a few words of the server's
    before it, it could be too long for them to understand, and they were lost as well."""
    sim = pool_of(4)
    job = preparing(sim) if how == "refused" else training(sim)
    sim.go_on(4, how)
    sim.hear_one(4)
    told = [m for one in sim.agents.values() for m in one.inbox if isinstance(m, Steer)]
    assert {message.action for message in told} <= {"stop", "drop"}
    assert {message.reason.removesuffix(" because of p1") for message in told} == {
        "p4 refused its part" if how == "refused" else "the worker of p4 failed"
    }
    assert any(": " in part.reason for part in sim.world.of_run[job.id])  # the owner's to see


def test_too_many_lost_runs_fail_the_job_with_the_first_cause():
    sim = pool_of(1)
    sim.submit(True, None)
    job = sim.world.jobs["j0"]
    for _ in range(job.max_runs):
        sim.wait(15)
        sim.plan_one("fits")
        sim.talk()
        sim.go_on(1, "done")
        sim.talk()
        sim.go_on(1, "failed")
        sim.talk()
    assert job.state == "failed"
    assert "boom" in job.reason
    sim.steer("j0", "resume")
    assert job.lost_runs == 0
    sim.calm_down()
    assert job.state == "done"


def test_who_refuses_is_not_asked_again():
    sim = pool_of(2)
    preparing(sim)
    sim.go_on(1, "refused")
    sim.talk()
    sim.wait(15)
    job = sim.world.jobs["j0"]
    assert (job.state, job.lost_runs) == ("planning", 0)
    assert [spec.id for spec in sim.plans[-1].pool] == [2]


def declines(sim, id):
    """A run is prepared, and this provider cannot take its part just now."""
    sim.plan_one("fits")
    sim.talk()
    assert sim.go_on(id, "declined")
    sim.talk()
    sim.wait(SETTINGS.settle_s + 1)


def test_who_refuses_for_a_reason_that_passes_is_asked_again_and_waits_longer_each_time():
    sim = pool_of(2)
    sim.submit(True, None)
    sim.wait(15)
    job = sim.world.jobs["j0"]
    for wait in (60, 120, 240):
        declines(sim, 1)
        assert [spec.id for spec in sim.plans[-1].pool] == [2]
        sim.plan_one("unfit")
        sim.wait(wait - SETTINGS.settle_s - 3)
        assert not sim.plans
        sim.wait(3)
        assert [spec.id for spec in sim.plans[-1].pool] == [1, 2]
    assert (job.refused, job.lost_runs) == ({}, 0)
    sim.calm_down()
    assert job.state == "done"


def test_who_has_refused_and_then_offers_something_else_is_asked_again():
    sim = pool_of(2)
    preparing(sim)
    sim.go_on(1, "refused")
    sim.talk()
    sim.wait(15)
    sim.plan_one("unfit")
    facts = msgspec.structs.replace(FACTS, torch="newer")
    hello = Hello(protocol=1, facts=facts, caps=Caps(), state="idle", assignment=None)
    sim.happen(Connected(provider=1, hello=hello))
    sim.wait(SETTINGS.settle_s + 1)
    assert [spec.id for spec in sim.plans[-1].pool] == [1, 2]


def test_a_pool_that_never_stays_as_it_is_is_planned_with_all_the_same():
    sim = pool_of(3)
    sim.submit(True, None)
    until = sim.now + SETTINGS.settle_most_s
    while sim.now < until:
        assert not sim.plans
        sim.steer_provider(3, "pause")
        sim.wait(SETTINGS.settle_s / 2)
        sim.steer_provider(3, "resume")
        sim.wait(SETTINGS.settle_s / 2)
    assert len(sim.plans) == 1


def test_a_job_that_is_deleted_while_the_pool_changes_leaves_no_trace_for_the_next():
    sim = pool_of(2)
    sim.submit(True, None)
    assert sim.world.held_since is not None
    sim.steer("j0", "delete")
    assert sim.world.held_since is None


def test_providers_that_nobody_can_reach_are_introduced_to_those_that_can_be_only():
    sim = Simulation()
    for number in range(1, 5):  # every second one has an address
        sim.enrol()
        sim.connect(number)
        sim.talk()
    sim.restart()
    for number in range(1, 5):
        sim.agents[number].peers = set()
        sim.connect(number)
        sim.talk()
    assert [sorted(sim.agents[number].peers) for number in (1, 2, 3, 4)] == [
        [3],
        [1, 3],
        [1],
        [1, 3],
    ]


def test_a_newcomer_does_not_shorten_the_time_for_what_is_being_measured():
    world = pool_of(1).world
    figures = world.providers[1].figures
    for id in range(2, 13):
        world.providers[id] = msgspec.structs.replace(world.providers[1], id=id, figures=figures)
        world.heard_of(id).source = world.heard_of(1).source
    others = [world.providers[id] for id in range(2, 13)]
    introducing._ask(world, world.providers[1], others[:10], 0.0)
    _, before = world.probing[1]
    introducing._ask(world, world.providers[1], others[10:], 1.0)
    asked, after = world.probing[1]
    assert len(asked) == 11
    assert after > before


def test_a_large_share_over_a_slow_line_is_waited_for_as_long_as_it_comes():
    sim = pool_of(2)
    preparing(sim)
    sim.go_on(1, "done")
    sim.talk()
    job = sim.world.jobs["j0"]
    for _ in range(5):
        sim.wait(SETTINGS.prepare_s - 1)
        sim.happen(Fetched(provider=2, assignment=sim.agents[2].work, bytes=2 << 20))
    assert job.state == "preparing"
    sim.wait(SETTINGS.prepare_s + 1)
    assert "p2 has not prepared" in job.cause


def test_a_run_that_is_not_prepared_in_time_is_lost():
    sim = pool_of(2)
    preparing(sim)
    sim.go_on(1, "done")
    sim.talk()
    sim.wait(SETTINGS.prepare_s + 1)
    assert "p2 has not prepared" in sim.world.jobs["j0"].cause


def test_a_cluster_that_does_not_end_together_is_given_up():
    sim = pool_of(2)
    job = training(sim)
    sim.go_on(1, "done")
    sim.talk()
    assert job.state == "running"
    sim.wait(SETTINGS.stop_s + 1)
    assert "p2 has not ended" in job.cause


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "done"])
def test_results_that_take_long_to_be_brought_back_are_waited_for(stopped):
    sim = pool_of(2)
    job = training(sim)
    if stopped:
        sim.steer(job.id, "stop")
        sim.agents[2].inbox.clear()
    sim.go_on(1, "done")
    slow = sim.agents[2]
    slow.state = "returning"
    slow.beat()
    sim.talk()
    sim.wait(10 * SETTINGS.stop_s)
    sim.cut(2)
    sim.wait(1)
    sim.connect(2)
    sim.talk()
    sim.wait(10 * SETTINGS.stop_s)
    assert not sim.world.runs[job.id].lost
    slow.finish(WorkEnd(outcome="done", epochs_done=2, saved=True))
    sim.talk()
    assert job.state == "fusing"


def test_results_are_not_waited_for_without_end():
    sim = pool_of(2)
    job = training(sim)
    sim.go_on(1, "done")
    sim.agents[2].state = "returning"
    sim.agents[2].beat()
    sim.talk()
    sim.wait(SETTINGS.bring_back_s + 1)
    assert "p2 has not ended" in job.cause


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "done"])
def test_what_was_trained_is_taken_however_long_the_server_was_away(stopped):
    sim = pool_of(2)
    job = training(sim).id
    if stopped:
        sim.steer(job, "stop")
    sim.go_on(1, "done")
    sim.hear_one(1)
    sim.go_on(2, "done")
    sim.now += 10 * SETTINGS.stop_s
    sim.restart()
    for id in sim.agents:
        sim.connect(id)
    sim.talk()
    assert sim.world.jobs[job].state == "fusing"


def test_a_paused_run_is_paused_again_for_who_missed_it():
    sim = pool_of(2)
    job = training(sim)
    sim.cut(1)
    sim.steer(job.id, "pause")
    assert job.state == "paused"
    sim.connect(1)
    sim.hear_one(1)
    assert last_word(sim, 1).action == "pause"
    sim.steer(job.id, "continue")
    assert (job.state, last_word(sim, 1).action) == ("running", "resume")


def test_a_provider_that_is_paused_twice_was_paused_once():
    sim = pool_of(1)
    for action in ("resume", "pause", "pause", "resume"):
        sim.steer_provider(1, action)
    told = [one.text for one in sim.notes if one.provider == 1 and " by " in one.text]
    assert [text.split()[2] for text in told] == ["paused", "resumed"]


def test_a_deleted_job_leaves_nothing_behind():
    sim = pool_of(2)
    job = training(sim)
    for kind in ("spec", "hashes", "progress"):
        sim.disk[kind, job.id] = b"{}"
    sim.deleted.add(job.id)
    sim.steer(job.id, "delete")
    assert {kind for kind, _ in sim.disk} == {"provider"}
    assert last_word(sim, 1).action == "drop"
    sim.talk()
    assert sim.world.free == {1, 2}


@pytest.mark.parametrize(
    ("state", "refused"),
    [
        ("running", ["start", "continue", "resume"]),
        ("waiting", ["pause", "continue", "resume"]),
        ("stopped", ["start", "stop", "pause", "continue"]),
        ("done", ["start", "stop", "pause", "continue", "resume"]),
    ],
)
def test_actions_that_make_no_sense_change_nothing(state, refused):
    sim = pool_of(2 if state in ("running", "done") else 0)
    if state in ("running", "done"):
        job = training(sim)
    else:
        sim.submit(True, None)
        job = sim.world.jobs["j0"]
    if state == "stopped":
        sim.steer("j0", "stop")
    if state == "done":
        sim.calm_down()
    assert job.state == state
    before = dict(sim.disk)
    for action in refused:
        with pytest.raises(JobError, match=state):
            handle(sim.world, JobSteered(job="j0", action=action, by="x"), sim.now)
    assert (job.state, sim.disk) == (state, before)


def test_a_removed_provider_keeps_its_number_for_ever():
    sim = pool_of(2)
    sim.steer_provider(2, "remove")
    assert sim.agents[2].gone
    sim.restart()
    assert sim.world.next_provider() == 3


def test_a_removed_provider_is_forgotten_once_nothing_is_about_it():
    sim = pool_of(4)
    job = training(sim)
    sim.steer_provider(2, "remove")
    sim.talk()
    sim.steer_provider(3, "remove")
    sim.talk()
    sim.now += 10
    sim.happen(LongAgo(before=sim.now))
    assert set(sim.world.providers) == {1, 2, 3, 4}  # the last run tells of all of them
    sim.steer(job.id, "delete")
    sim.happen(LongAgo(before=sim.now - 20))
    assert set(sim.world.providers) == {1, 2, 3, 4}
    sim.happen(LongAgo(before=sim.now))
    assert set(sim.world.providers) == {1, 4}
    assert {key for kind, key in sim.disk if kind == "provider"} == {"1", "4"}
    sim.restart()
    assert set(sim.world.providers) == {1, 4}


def test_the_highest_number_is_not_given_again_when_its_provider_is_forgotten():
    sim = pool_of(3)
    sim.steer_provider(3, "remove")
    sim.steer_provider(2, "remove")
    sim.now += 10
    sim.happen(LongAgo(before=sim.now))
    assert set(sim.world.providers) == {1, 3}
    sim.enrol()
    sim.happen(LongAgo(before=sim.now))
    assert set(sim.world.providers) == {1, 4}


def test_a_provider_that_leaves_for_good_is_removed_once_its_work_is_done():
    sim = pool_of(2)
    job = training(sim)
    sim.steer_provider(1, "leave")
    assert not sim.world.providers[1].removed
    sim.talk()
    assert sim.world.providers[1].removed
    assert job.state == "fusing"


def test_who_has_left_is_not_removed_again_for_what_it_still_says():
    sim = pool_of(1)
    sim.steer_provider(1, "leave")
    sim.happen(Heard(provider=1, message=Beat(state="resting")))
    assert [note.text for note in sim.notes].count("p1 has left") == 1


def test_a_pause_of_a_provider_lets_its_work_go_on_and_gives_it_no_new():
    sim = pool_of(2)
    job = training(sim)
    sim.steer_provider(1, "pause")
    assert job.state == "running"
    for agent in sim.agents:
        sim.go_on(agent, "done")
    sim.talk()
    sim.fuse_one()
    assert sim.world.free == {2}
    sim.steer_provider(1, "resume")
    assert sim.world.free == {1, 2}


@pytest.mark.parametrize("state", ["paused", "training"])
def test_who_was_resumed_while_away_is_told_when_it_comes_back(state):
    sim = pool_of(2)
    sim.steer_provider(1, "pause")
    sim.cut(1)
    sim.steer_provider(1, "resume")
    sim.agents[1].connected = True
    for paused in (True, False):
        hello = Hello(protocol=1, facts=FACTS, caps=Caps(), state=state, paused=paused)
        sim.agents[1].inbox.clear()
        sim.happen(Connected(provider=1, hello=hello))
        told = [one.paused for one in sim.agents[1].inbox if isinstance(one, SetPause)]
        assert told == ([False] if paused else [])


def test_scripts_run_only_where_the_owner_consents():
    job = Job(
        id="j", name="j", owner="t", owner_name="o", submitted_at=0, epochs=1, has_script=True
    )

    def provider(consent):
        caps = Caps(scripts=consent)
        return Provider(id=1, name="p", digest="", facts=FACTS, caps=caps)

    world = World()
    assert why_not_for(world, job, provider("never"))
    assert why_not_for(world, job, provider("sandboxed")) is None
    assert why_not_for(world, job, provider("always")) is None


def test_links_are_what_was_measured_and_the_slower_end_through_the_relay():
    def provider(id, up, down, *peers):
        found = Figures(
            memory_bytes=1, gflops=2.0, up_mbps=up, down_mbps=down, latency_ms=3.0, peers=peers
        )
        return Provider(id=id, name="p", digest="", facts=FACTS, caps=Caps(), figures=found)

    one = provider(1, 50, 100, PeerFigure(provider=2, mbps=80), PeerFigure(provider=3, mbps=0))
    two = provider(2, 60, 100, PeerFigure(provider=1, mbps=0), PeerFigure(provider=9, mbps=1))
    three = provider(3, 70, 20, PeerFigure(provider=1, mbps=0))
    pool = {spec.id: spec for spec in as_pool([three, one, two])}
    assert pool[1].links == ((2, 80.0), (3, 20.0))
    assert pool[2].links == ((1, 80.0),)  # 9 is not in this pool
    assert pool[3].links == ((1, 20.0),)
    assert (pool[1].address, pool[1].bandwidth_mbps, pool[1].gflops) == ("provider-1:1", 50, 2.0)


def test_those_who_all_reach_each_other_do_not_share_the_line_to_the_server():
    """Two GPUs of one machine were planned as if the internet were between them."""

    def provider(id, *peers):
        told = Figures(
            memory_bytes=1, gflops=2, up_mbps=10, down_mbps=10, latency_ms=1, peers=peers
        )
        return Provider(id=id, name="x", digest="", facts=FACTS, caps=Caps(), figures=told)

    one = provider(1, PeerFigure(provider=2, mbps=8000))
    two = provider(2, PeerFigure(provider=1, mbps=8000))
    assert [spec.bandwidth_mbps for spec in as_pool([one, two])] == [8000, 8000]
    assert [spec.bandwidth_mbps for spec in as_pool([one, two, provider(3)])] == [10, 10, 10]


def test_a_plan_counts_with_the_speed_in_the_precision_of_its_job():
    rates = {"bf16": 90.0}
    told = Figures(
        memory_bytes=1,
        gflops=10,
        rates=rates,
        host_memory_bytes=5,
        up_mbps=1,
        down_mbps=1,
        latency_ms=1,
    )
    new = Provider(id=1, name="x", digest="", facts=FACTS, caps=Caps(), figures=told)
    # An agent of an earlier release says no more than this, and an old record holds no more.
    words = b'{"memory_bytes":1,"gflops":10,"up_mbps":1,"down_mbps":1,"latency_ms":1}'
    said = msgspec.json.decode(words, type=Figures)
    old = Provider(id=2, name="y", digest="", facts=FACTS, caps=Caps(), figures=said)
    for precision, expected in ((None, [10, 10]), ("bf16", [90, 10]), ("fp16", [10, 10])):
        pool = as_pool([new, old], precision)
        assert [spec.gflops for spec in pool] == expected
        assert [spec.host_memory_bytes for spec in pool] == [5, None]


@given(st.data())
def test_whatever_agents_say_of_their_speeds_planning_counts_in_figures_that_machines_have(data):
    """A link of 5e-324 Mbit/s ended the planning of everybody's jobs."""
    figure = st.sampled_from((0.0, 5e-324, 1e-9, 1.0, 1e12)) | st.floats(0.0, 1e12)
    pool = []
    for id in range(3):
        peers = tuple(PeerFigure(provider=n, mbps=data.draw(figure)) for n in range(3))
        said = {name: data.draw(figure) for name in ("gflops", "up_mbps", "down_mbps")}
        told = Figures(memory_bytes=1, latency_ms=data.draw(figure), peers=peers, **said)
        pool.append(Provider(id=id, name="x", digest="", facts=FACTS, caps=Caps(), figures=told))
    for spec in as_pool(pool):
        speeds = [spec.gflops, spec.bandwidth_mbps, *(mbps for _, mbps in spec.links)]
        assert all(1e-3 <= speed <= 1e9 for speed in speeds)
        assert 0.0 <= spec.latency_ms <= 1e9


def test_the_best_providers_are_taken_when_only_some_are_wanted():
    sim = Simulation()
    for number in range(1, 4):
        sim.enrol()
        sim.connect(number)
        sim.talk()
    for number, speed in enumerate((1.0, 5.0, 3.0), start=1):
        told = Figures(memory_bytes=10, gflops=speed, up_mbps=1, down_mbps=1, latency_ms=1)
        sim.world.set_figures(sim.world.providers[number], told)
    sim.submit(True, 2)
    sim.wait(15)
    assert [spec.id for spec in sim.plans[0].pool] == [2, 3]


def test_newcomers_and_those_who_are_free_measure_the_lines_between_them():
    sim = pool_of(3)
    told = {
        id: {peer.provider for peer in p.figures.peers} for id, p in sim.world.providers.items()
    }
    assert told == {1: {3}, 2: {1, 3}, 3: {1}}  # 2 says no address
    assert sim.world.probing == {}
    assert {peer for peer, _ in as_pool(sim.world.providers.values())[1].links} == {1, 3}


def test_planning_waits_for_lines_that_are_being_measured_but_not_for_ever():
    sim = pool_of(1)
    sim.enrol()
    sim.connect(2)
    while sim.hear_one(2):
        pass
    assert set(sim.world.probing) == {2}
    sim.submit(True, None)
    sim.wait(SETTINGS.settle_s + 1)
    assert not sim.plans
    sim.wait(SETTINGS.probe_s)
    assert sim.plans


def test_in_a_large_pool_everybody_measures_some():
    sim = pool_of(40)
    told = [len(provider.figures.peers) for provider in sim.world.providers.values()]
    assert max(told) < 39
    assert min(told[1:]) > 0


def test_a_server_that_dies_before_an_enrolment_is_on_disk_has_not_made_it():
    sim = Simulation()
    event = EnrolledNow(provider=1, name="p", digest="d", facts=FACTS, caps=Caps())
    sim.happen(event, dies="before")
    assert sim.world.providers == {}
    sim.happen(event, dies="after")
    assert set(sim.world.providers) == {1}


def test_a_run_whose_providers_save_nothing_is_lost():
    sim = pool_of(1)
    job = training(sim)
    sim.go_on(1, "unsaved")
    sim.talk()
    assert "has brought back nothing" in job.cause


def test_a_clock_that_is_put_back_holds_up_no_job():
    sim = pool_of(2)
    sim.move_clock(-86400)
    sim.submit(True, None)
    sim.wait(SETTINGS.return_s + SETTINGS.settle_s)
    assert [plan.job for plan in sim.plans] == ["j0"]


def test_a_pool_that_changes_after_the_clock_was_put_back_settles():
    sim = pool_of(1)
    sim.move_clock(-86400)
    sim.cut(1)
    sim.connect(1)
    sim.talk()
    sim.submit(True, None)
    sim.wait(SETTINGS.return_s + SETTINGS.settle_s)
    assert [plan.job for plan in sim.plans] == ["j0"]


def test_a_plan_whose_process_died_is_made_again_after_a_while():
    sim = pool_of(2)
    sim.submit(True, None)
    sim.wait(15)
    sim.plan_one("crashed")
    job = sim.world.jobs["j0"]
    assert (job.state, sim.plans) == ("waiting", [])
    assert "crashed" in job.reason
    sim.wait(SETTINGS.retry_s)
    sim.plan_one("fits")
    assert (job.state, job.plan_crashes, job.lost_runs) == ("preparing", 0, 0)


def test_owners_are_planned_for_one_after_the_other():
    sim = pool_of(2)
    for owner in "mmmap":
        sim.submit(True, None, owner)
    sim.wait(15)
    order = []
    while sim.plans:
        order.append(sim.world.jobs[sim.plans[0].job].owner_name)
        sim.plan_one("unfit")
    assert order == ["m", "a", "p", "m", "m"]


def test_a_plan_whose_process_always_dies_fails_the_job_until_it_is_resumed():
    sim = pool_of(2)
    sim.submit(True, None)
    sim.wait(15)
    for _ in range(MOST_RETRIES):
        sim.plan_one("crashed")
        sim.wait(SETTINGS.retry_s)
    job = sim.world.jobs["j0"]
    assert job.state == "planning"
    sim.plan_one("crashed")
    assert (job.state, job.reason) == ("failed", "it cannot be planned: crashed")
    sim.steer("j0", "resume")
    sim.calm_down()
    assert job.state == "done"


def trained(sim):
    """A job whose providers have all brought back what they trained."""
    job = training(sim)
    for agent in sim.agents:
        sim.go_on(agent, "done")
    sim.talk()
    assert job.state == "fusing"
    return job


def test_fusing_whose_process_died_is_done_again_after_a_while():
    sim = pool_of(2)
    job = trained(sim)
    sim.fuse_one("crashed")
    assert (job.state, sim.fusings) == ("fusing", [])
    sim.wait(SETTINGS.retry_s)
    sim.fuse_one()
    assert (job.state, job.run) == ("done", 1)


def test_a_plan_that_there_is_no_room_for_waits_for_it_and_says_so_once():
    sim = pool_of(2)
    sim.submit(True, None)
    sim.wait(15)
    job, notes = sim.world.jobs["j0"], []
    for tried in range(2 * MOST_RETRIES):
        sim.plan_one("full")
        notes += [note.text for note in sim.world.out.notes]
        assert (job.state, sim.plans) == ("waiting", [])
        assert "waits for room on the server's disk" in job.reason
        for _ in range(2**tried - 1):  # twice as long each time
            sim.wait(SETTINGS.room_s)
            assert sim.plans == []
        sim.wait(SETTINGS.room_s)
    assert sum("waits for room" in text for text in notes) == 1
    sim.plan_one("fits")
    assert (job.state, job.plan_crashes, job.lost_runs) == ("preparing", 0, 0)


def test_fusing_that_there_is_no_room_for_waits_for_it():
    sim = pool_of(2)
    job = trained(sim)
    for tried in range(2 * MOST_RETRIES):
        sim.fuse_one("full")
        assert (job.state, sim.fusings) == ("fusing", [])
        assert "waits for room on the server's disk" in job.reason
        sim.wait(2**tried * SETTINGS.room_s)
    sim.fuse_one()
    assert (job.state, job.run) == ("done", 1)


def test_fusing_that_always_dies_fails_the_job_and_resume_fuses_what_is_there():
    sim = pool_of(2)
    job = trained(sim)
    for _ in range(MOST_RETRIES):
        sim.fuse_one("crashed")
        sim.wait(SETTINGS.retry_s)
    sim.fuse_one("crashed")
    assert job.state == "failed"
    assert "no tensor" in job.reason
    sim.restart()
    sim.steer(job.id, "resume")
    sim.fuse_one()
    job = sim.world.jobs[job.id]
    assert (job.state, job.run, job.epochs_done) == ("done", 1, 2)


def test_fusing_that_dies_even_when_resumed_gives_way_to_another_run():
    sim = pool_of(2)
    job = trained(sim)
    for _ in range(MOST_RETRIES + 1):
        sim.fuse_one("crashed")
        sim.wait(SETTINGS.retry_s)
    sim.steer(job.id, "resume")
    sim.fuse_one("crashed")
    assert (job.state, job.lost_runs) == ("planning", 1)
    sim.calm_down()
    assert (job.state, job.run) == ("done", 2)


def test_a_cluster_that_cannot_be_fused_gives_way_to_another():
    sim = pool_of(4)
    job = trained(sim)
    first = sim.fusings[0].cluster
    sim.fuse_one("broken")
    assert {order.cluster for order in sim.fusings} == {0, 1} - {first}
    sim.fuse_one()
    assert (job.state, job.run) == ("done", 1)


def test_a_run_of_which_no_cluster_can_be_fused_is_lost():
    sim = pool_of(4)
    job = trained(sim)
    sim.fuse_one("broken")
    sim.fuse_one("broken")
    assert (job.state in ("waiting", "planning"), job.lost_runs) == (True, 1)
    assert "cannot be put together: no tensor" in job.cause


def fail_at_work(sim, id):
    """The next plan is carried out, and one of its providers fails by itself."""
    sim.wait(15)
    sim.plan_one("fits")
    sim.talk()
    for agent in sim.agents:
        sim.go_on(agent, "done")
    sim.talk()
    sim.go_on(id, "failed")
    sim.talk()
    sim.fuse_one()
    sim.wait(15)


def test_a_provider_that_fails_by_itself_is_done_without():
    sim = pool_of(3)
    sim.submit(True, None)
    fail_at_work(sim, 1)
    job = sim.world.jobs["j0"]
    assert [spec.id for spec in sim.plans[0].pool] == [2, 3]
    assert (job.lost_runs, list(job.left_out)) == (0, [1])
    sim.submit(True, None)
    sim.calm_down()
    assert {job.state for job in sim.world.jobs.values()} == {"done"}


def test_a_job_that_fails_everywhere_ends_with_the_first_cause():
    sim = pool_of(3)
    sim.submit(True, 1)
    job = sim.world.jobs["j0"]
    runs = 0
    while job.state != "failed":
        fail_at_work(sim, sim.plans[0].pool[0].id if sim.plans else 1)
        runs += 1
        assert runs < 20
    assert runs == job.max_runs + 2
    assert job.reason == (
        f"{job.max_runs} runs lost, 2 providers left out; "
        "the first because the worker of p1 failed: boom"
    )
    sim.steer("j0", "resume")
    assert job.left_out == {}
    sim.calm_down()
    assert job.state == "done"


def test_who_failed_is_asked_again_if_the_others_are_too_few():
    sim = pool_of(2)
    sim.submit(True, None)
    fail_at_work(sim, 1)
    assert [spec.id for spec in sim.plans[0].pool] == [2]
    sim.plan_one("unfit")
    sim.wait(15)
    assert [spec.id for spec in sim.plans[0].pool] == [1, 2]
    fail_at_work(sim, 1)
    assert sim.world.jobs["j0"].lost_runs == 1


def test_who_failed_is_asked_again_when_all_others_have_gone():
    sim = pool_of(2)
    sim.submit(True, None)
    fail_at_work(sim, 1)
    sim.plan_one("fits")
    sim.die(2)
    sim.wait(SETTINGS.away_s + 15)
    assert [spec.id for spec in sim.plans[0].pool] == [1]


def test_a_provider_that_another_blames_is_kept():
    sim = pool_of(2)
    job = training(sim)
    sim.go_on(2, "blames")
    sim.talk()
    assert (job.left_out, job.lost_runs) == ({}, 1)
