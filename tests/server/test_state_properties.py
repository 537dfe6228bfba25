"""Random orders of everything that can happen: nothing is lost, doubled or forgotten."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from state_simulation import Simulation

from ravnest.api.views import ENDED_JOBS
from ravnest.server.state.events import Fetched

CHOICES = {
    "talk": 12,
    "all connect": 3,
    "all work": 6,
    "enrol": 3,
    "submit": 2,
    "connect": 5,
    "cut": 4,
    "kill agent": 4,
    "hear": 4,
    "hear and die before": 1,
    "hear and die after": 1,
    "tell": 4,
    "work": 4,
    "fail": 1,
    "refuse": 1,
    "decline": 1,
    "fetch": 1,
    "stop by itself": 1,
    "blame": 1,
    "blame with words": 1,
    "unsaved": 1,
    "leave": 1,
    "leave now": 1,
    "plan": 6,
    "plan is unfit": 1,
    "plan is broken": 1,
    "plan crashes": 1,
    "fuse": 4,
    "fusing fails": 1,
    "fusing crashes": 2,
    "plan has no room": 1,
    "fusing has no room": 1,
    "wait": 6,
    "wait long": 1,
    "restart": 2,
    "clock is put forward": 1,
    "clock is put back": 1,
    "clock is corrected": 2,
    "restart with another clock": 1,
    "start": 2,
    "stop": 1,
    "pause": 1,
    "continue": 1,
    "resume": 2,
    "delete": 1,
    "pause provider": 1,
    "resume provider": 1,
    "leave for good": 1,
    "remove provider": 1,
}
ACTIONS = [name for name, weight in CHOICES.items() for _ in range(weight)]
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1000)), max_size=150)
WORKS = {
    "work": "done",
    "fail": "failed",
    "refuse": "refused",
    "decline": "declined",
    "stop by itself": "stopped",
    "blame": "blames",
    "blame with words": "lies",
    "unsaved": "unsaved",
}
PLANS = {
    "plan is unfit": "unfit",
    "plan is broken": "broken",
    "plan crashes": "crashed",
    "plan has no room": "full",
}
FUSINGS = {"fusing fails": "broken", "fusing crashes": "crashed", "fusing has no room": "full"}
DIES = {"hear": "", "hear and die before": "before", "hear and die after": "after"}
STEERS = ("start", "stop", "pause", "continue", "resume", "delete")


def do(sim, action, number):
    agents, jobs = sorted(sim.agents), sorted(sim.world.jobs)
    agent = agents[number % len(agents)] if agents else None
    job = jobs[number % len(jobs)] if jobs else None
    if action == "enrol" and len(agents) < 6:
        sim.enrol()
    elif action == "fetch" and agent is not None and sim.agents[agent].work is not None:
        sim.happen(Fetched(provider=agent, assignment=sim.agents[agent].work, bytes=number << 12))
    elif action == "submit" and len(jobs) < 4:
        sim.submit(number % 3 > 0, None if number % 2 else 2)
    elif action == "talk":
        sim.talk()
    elif action == "all connect":
        for id in agents:
            sim.connect(id)
        sim.talk()
    elif action == "all work":
        for id in agents:
            sim.go_on(id, "done")
        sim.talk()
    elif action in ("wait", "wait long"):
        sim.wait(number / 100 if action == "wait" else number * 2)
    elif action.startswith("restart"):
        if action == "restart with another clock":
            sim.now += (number - 500) * 400.0
        sim.restart()
    elif action.startswith("clock"):
        move_clock(sim, action, number)
    elif action.startswith("plan"):
        sim.plan_one(PLANS.get(action, "fits"))
    elif action.startswith("fus"):
        sim.fuse_one(FUSINGS.get(action, "fits"))
    elif action in STEERS:
        if job is not None:
            sim.steer(job, action)
    elif agent is not None:
        do_to_agent(sim, action, agent)


def move_clock(sim, action, number):
    """By up to two days, or by a few seconds."""
    if action == "clock is corrected":
        sim.correct_clock((number - 500) / 100)
    else:
        sim.move_clock((5 + number * 173) * (1 if action == "clock is put forward" else -1))


def do_to_agent(sim, action, agent):
    if action == "connect":
        sim.connect(agent)
    elif action == "cut":
        sim.cut(agent)
    elif action == "kill agent":
        sim.lose_everything(agent)
    elif action in DIES:
        sim.hear_one(agent, DIES[action])
    elif action == "tell":
        sim.tell_one(agent)
    elif action in WORKS:
        sim.go_on(agent, WORKS[action])
    elif action in ("leave", "leave now"):
        sim.leave(agent, action == "leave now")
    elif action.endswith("provider") or action == "leave for good":
        sim.steer_provider(agent, action.split()[0])


def begun(providers, jobs, far):
    """A pool with jobs, on its way: planned, prepared, training."""
    sim = Simulation()
    for _ in range(providers):
        sim.enrol()
    do(sim, "all connect", 0)
    for number in range(jobs):
        sim.submit(number != 1, None if number % 2 else 2)
    sim.wait(15)
    for action in ("plan", "talk", "all work", "all work")[:far]:
        do(sim, action, 0)
    return sim


BEGINNINGS = st.builds(begun, st.integers(0, 6), st.integers(0, 3), st.integers(0, 4))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(BEGINNINGS, STEPS, st.integers(0, 5))
def test_whatever_happens_nothing_is_lost_and_nothing_waits_for_ever(sim, steps, dead):
    for action, number in steps:
        do(sim, action, number)
    for agent in list(sim.agents)[:dead]:
        sim.die(agent)
    for _ in range(2):
        sim.enrol()  # the pool changes, and somebody is there to do the work
    for provider in list(sim.world.providers):
        sim.steer_provider(provider, "resume")
    sim.calm_down()
    sim.check()
    for job in sim.world.jobs.values():
        rests = job.state in ENDED_JOBS or (job.state == "planned" and not job.asked)
        assert rests, (job.state, job.reason)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(BEGINNINGS, STEPS)
def test_a_server_that_is_restarted_at_any_point_knows_the_same(sim, steps):
    """What is on disk is what was in memory, but for who is connected."""
    for action, number in steps:
        do(sim, action, number)
    before = sim.world
    jobs = {job.id: (job.state, job.run, job.fused_run) for job in before.jobs.values()}
    parts = {part.id: (part.state, part.end) for part in before.parts.values()}
    providers = {p.id: (p.removed, p.paused, p.figures) for p in before.providers.values()}
    sim.restart()
    after = sim.world
    expected = {
        id: ("waiting" if state == "planning" else state, run, fused)
        for id, (state, run, fused) in jobs.items()
    }
    assert {j.id: (j.state, j.run, j.fused_run) for j in after.jobs.values()} == expected
    assert {part.id: (part.state, part.end) for part in after.parts.values()} == parts
    assert {p.id: (p.removed, p.paused, p.figures) for p in after.providers.values()} == providers


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(BEGINNINGS, STEPS)
def test_results_that_were_acknowledged_are_kept_or_fused(sim, steps):
    for action, number in steps:
        do(sim, action, number)
        for name, kept in list(sim.acknowledged.items()):
            job, run = name.split("-")[:2]
            known = sim.world.jobs.get(job)
            part = sim.world.parts.get(name)
            if kept and known is not None and known.run == int(run):
                assert part is not None
                assert part.has_results
