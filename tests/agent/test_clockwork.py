"""What an agent does by the clock, with a clock that the test turns."""

import heapq
import itertools

import pytest

from ravnest.agent import clockwork
from ravnest.agent.clockwork import Clockwork

HOUR_S = 3600.0
EVENTS = ("on_beat", "on_overdue", "on_rest", "on_upkeep", "on_measure")


def clockwork_with(**acts):
    return Clockwork(**{**dict.fromkeys(EVENTS, lambda *_: None), **acts})


class Timer:
    def __init__(self):
        self.is_cancelled = False

    def cancel(self):
        self.is_cancelled = True


class TurnedClock:
    """As much of an event loop as timers need."""

    def __init__(self):
        self.now = 0.0
        self._timers, self._order = [], itertools.count()

    def call_later(self, delay, act, *given):
        timer = Timer()
        heapq.heappush(self._timers, (self.now + delay, next(self._order), timer, act, given))
        return timer

    def turn(self, seconds):
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, _, timer, act, given = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                act(*given)
        self.now = end


@pytest.fixture
def clock(monkeypatch):
    turned = TurnedClock()
    monkeypatch.setattr(clockwork.asyncio, "get_running_loop", lambda: turned)
    return turned


def test_upkeep_is_at_the_start_and_every_hour_until_the_end(clock):
    at = []
    works = clockwork_with(on_upkeep=lambda: at.append(clock.now))
    works.keep_up()
    assert at == [0.0]
    clock.turn(90 * 24 * HOUR_S)
    assert at == [hour * HOUR_S for hour in range(90 * 24 + 1)]
    works.stop()
    clock.turn(24 * HOUR_S)
    assert len(at) == 90 * 24 + 1


def test_a_heartbeat_out_of_turn_moves_the_next_one(clock):
    at = []
    works = clockwork_with(on_beat=lambda: at.append(clock.now))
    works.keep(5.0)
    clock.turn(7.0)
    works.beat()
    clock.turn(10.0)
    assert at == [0.0, 5.0, 7.0, 12.0, 17.0]


@pytest.mark.parametrize(("asked", "beats"), [(0.0, 60 / 0.05), (5.0, 12), (1e12, 6)])
def test_the_worker_is_watched_however_seldom_the_server_wants_to_hear(clock, asked, beats):
    """A server that wanted one beat in a million years switched off the owner's cap of memory."""
    at = []
    clockwork_with(on_beat=lambda: at.append(clock.now)).keep(asked)
    clock.turn(60.0)
    assert len(at) == pytest.approx(1 + beats, abs=1)


def test_measurements_that_fail_on_every_connection_are_followed_by_one(clock):
    """Each of them went on by itself for ever, beside the others."""
    at = []

    def fail():
        at.append(clock.now)
        works.measure_later()

    works = clockwork_with(on_measure=fail)
    for _ in range(5):
        works.measure_later()
        clock.turn(1.0)
    clock.turn(60.0)
    assert at == [19.0, 34.0, 49.0, 64.0]
    works.stop()
    clock.turn(60.0)
    assert len(at) == 4
