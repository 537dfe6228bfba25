"""What an agent does by the clock, with a clock that the test turns."""

import heapq
import itertools

import pytest

from ravnest.agent import clockwork
from ravnest.agent.clockwork import Clockwork

HOUR_S = 3600.0


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
    works = Clockwork(lambda: None, lambda: None, lambda _: None, lambda: at.append(clock.now))
    works.keep_up()
    assert at == [0.0]
    clock.turn(90 * 24 * HOUR_S)
    assert at == [hour * HOUR_S for hour in range(90 * 24 + 1)]
    works.stop()
    clock.turn(24 * HOUR_S)
    assert len(at) == 90 * 24 + 1


def test_a_heartbeat_out_of_turn_moves_the_next_one(clock):
    at = []
    works = Clockwork(lambda: at.append(clock.now), lambda: None, lambda _: None, lambda: None)
    works.keep(5.0)
    clock.turn(7.0)
    works.beat()
    clock.turn(10.0)
    assert at == [0.0, 5.0, 7.0, 12.0, 17.0]
