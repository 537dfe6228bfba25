"""A clock that is set while the server runs, or between two starts: nobody is late because of it,
and nothing is waited for until the clock is where it was."""

import asyncio

import pytest
from servers import TIMEOUT_S
from state_simulation import SETTINGS, pool_of, preparing, training
from test_standstill import report

from ravnest.server.service.core import Core
from ravnest.server.state.events import Noted, Tick
from ravnest.server.state.world import CLOCK_MOVED_S, World
from ravnest.server.store import open_store

HOUR_S, DAYS_S = 3600.0, 2 * 86400.0
LIMITS = {
    "away": SETTINGS.away_s,
    "stopping": SETTINGS.stop_s,
    "preparing": SETTINGS.prepare_s,
    "standing still": SETTINGS.standstill_s,
    "bringing back": SETTINGS.bring_back_s,
}


def waits(what, age_s=0.0):
    """A run that is given up after a while, of a server that has been there for so long."""
    sim = pool_of(2)
    sim.wait(age_s)
    job = (preparing if what == "preparing" else training)(sim)
    if what == "away":
        sim.cut(1)
    elif what == "stopping":
        sim.steer(job.id, "stop")
        for agent in sim.agents.values():
            agent.inbox.clear()  # it does not hear of it
    elif what == "standing still":
        report(sim, 1, step=1)
    elif what == "bringing back":
        sim.go_on(1, "done")
        sim.hear_one(1)
        agent = sim.agents[2]
        agent.state = "returning"
        agent.beat()
        sim.hear_one(2)
    return sim, job.id


def is_given_up(sim, job):
    run = sim.world.runs.get(job)
    return run is None or run.number > 1 or run.lost or run.state == "over"


@pytest.mark.parametrize("what", LIMITS)
@pytest.mark.parametrize("by_s", [HOUR_S, DAYS_S, -HOUR_S, -DAYS_S])
def test_limits_begin_anew_when_the_clock_has_moved(what, by_s):
    sim, job = waits(what)
    sim.wait(LIMITS[what] / 2)
    sim.move_clock(by_s)
    sim.wait(LIMITS[what] - 1)
    assert not is_given_up(sim, job)
    sim.wait(2)
    assert is_given_up(sim, job)


@pytest.mark.parametrize("what", LIMITS)
@pytest.mark.parametrize("by_s", [-0.5, 0.1 - CLOCK_MOVED_S])
def test_a_clock_that_is_kept_right_makes_nobody_late(what, by_s):
    """What was noted a moment ago is a little ahead of it then."""
    sim, job = waits(what, age_s=DAYS_S)
    sim.correct_clock(by_s)
    sim.happen(Tick())
    assert not is_given_up(sim, job)
    sim.wait(LIMITS[what] + 2 * CLOCK_MOVED_S)
    assert is_given_up(sim, job)


@pytest.mark.parametrize("what", ["stopping", "preparing"])
def test_limits_begin_anew_with_a_server_whose_clock_is_slow(what):
    """Its records say that it was told to stop, or begun, days ahead."""
    sim, job = waits(what)
    sim.now -= DAYS_S
    sim.restart()
    for id in sim.agents:
        sim.connect(id)
        sim.hear_one(id)
    sim.wait(LIMITS[what] + 1)
    assert is_given_up(sim, job)


def test_a_clock_that_is_set_right_after_the_start_loses_no_run():
    """A machine without a clock of its own begins with the time at which it was switched off."""
    sim = pool_of(2)
    job = training(sim).id
    sim.now -= HOUR_S
    sim.restart()
    sim.connect(1)
    sim.hear_one(1)
    sim.wait(3)
    sim.move_clock(HOUR_S)
    sim.wait(SETTINGS.return_s + 2)
    sim.connect(2)
    sim.talk()
    assert sim.world.jobs[job].state == "running"
    assert not sim.world.runs[job].lost


def test_what_was_put_off_is_not_put_off_by_the_clock():
    sim = pool_of(2)
    sim.submit(True, None)
    sim.wait(15)
    sim.plan_one("full")
    sim.move_clock(-DAYS_S)
    sim.wait(SETTINGS.return_s)
    assert [plan.job for plan in sim.plans] == ["j0"]


def test_people_are_told_that_the_clock_has_moved():
    sim = pool_of(1)
    sim.move_clock(-DAYS_S)
    assert "the server's clock was moved 2 days back" in sim.notes[-1].text
    assert sim.notes[-1].level == "warning"


class Clocks:
    """The one that people set, and the one that they cannot."""

    def __init__(self):
        self.wall, self.steady = 1000.0, 50.0

    def passes(self, seconds, moved=0.0):
        self.wall += seconds + moved
        self.steady += seconds


def kept(tmp_path, story):
    """Runs it with a core and its clocks; the texts of what was noted."""

    async def run():
        store, clocks = open_store(tmp_path / "server.sqlite"), Clocks()
        world = World(started_at=clocks.wall)
        core = Core(world, store, clock=lambda: clocks.wall, steady=lambda: clocks.steady)
        async with asyncio.timeout(TIMEOUT_S):
            await story(core, clocks)
            events = await core.read(lambda db: db.events(100))
        core.close()
        store.close()
        return [event.text for event in events]

    return asyncio.run(run())


def test_a_clock_that_moves_is_noticed_before_anything_else_happens(tmp_path):
    async def story(core, clocks):
        clocks.passes(HOUR_S)
        await core.happen(Noted(level="info", text="an hour"))
        assert core.world.started_at == 1000.0
        clocks.passes(10.0, moved=-DAYS_S)
        await core.happen(Noted(level="info", text="after"))
        assert core.world.started_at == clocks.wall
        clocks.passes(10.0, moved=CLOCK_MOVED_S - 0.1)
        await core.happen(Noted(level="info", text="corrected"))

    first, moved, *rest = kept(tmp_path, story)
    assert (first, rest) == ("an hour", ["after", "corrected"])
    assert "moved 2 days back" in moved


def test_what_was_asked_for_by_the_other_clock_is_asked_for_anew(tmp_path):
    async def story(core, clocks):
        core._set_timer(clocks.wall + 60)
        clocks.passes(1.0, moved=HOUR_S)
        await core.happen(Noted(level="info", text="x"))
        assert core._wake_at == clocks.wall + core.world.settings.return_s

    kept(tmp_path, story)
