"""What an agent does by the clock: heartbeats, hours, upkeep; and no waiting for ever."""

import asyncio
import datetime
from collections.abc import Callable

from ravnest.agent.hours import is_open, seconds_to_change

_SERVER_ACTS_S = 20.0
"""How long the server may take to end a run that this provider wants to leave."""
_USUAL_BEAT_S, _SHORTEST_BEAT_S, _LONGEST_BEAT_S = 5.0, 0.05, 10.0
"""Whatever the server asks for: with every beat the worker is watched, for the owner."""
_CLOCKS_JUMP_S = 3600.0
"""Hours are looked at again this often in any case."""
_UPKEEP_S = 3600.0
_MEASURE_AGAIN_S = 15.0


class Clockwork:
    """Timers of the running event loop; `on_…` are what they call."""

    def __init__(
        self,
        on_beat: Callable[[], None],
        on_overdue: Callable[[], None],
        on_rest: Callable[[bool], None],
        on_upkeep: Callable[[], None],
        on_measure: Callable[[], None],
    ) -> None:
        self._on_beat, self._on_overdue, self._on_rest = on_beat, on_overdue, on_rest
        self._on_upkeep, self._on_measure = on_upkeep, on_measure
        self._heartbeat_s = _USUAL_BEAT_S
        self._next_beat: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._next_upkeep: asyncio.TimerHandle | None = None
        self._overdue: asyncio.TimerHandle | None = None
        self._unmeasured: asyncio.TimerHandle | None = None

    def keep(self, heartbeat_s: float) -> None:
        self._heartbeat_s = min(max(_SHORTEST_BEAT_S, heartbeat_s), _LONGEST_BEAT_S)
        self.beat()

    def beat(self) -> None:
        """Now, and then regularly. Goes on while the server is away: the worker is watched."""
        if self._next_beat is not None:
            self._next_beat.cancel()
        loop = asyncio.get_running_loop()
        self._next_beat = loop.call_later(self._heartbeat_s, self.beat)
        self._on_beat()

    def watch(self, hours: str | None) -> None:
        """Tells now and at every change whether it is time to rest."""
        now = datetime.datetime.now()
        resting, change = not is_open(hours, now), seconds_to_change(hours, now)
        self._on_rest(resting)
        if resting:
            self.give_server_time()
        if change is not None:
            # A little later, so that the clock has certainly passed it.
            wait = min(change + 0.5, _CLOCKS_JUMP_S)
            self._next_look = asyncio.get_running_loop().call_later(wait, self.watch, hours)

    def keep_up(self) -> None:
        """Now, and then every hour."""
        loop = asyncio.get_running_loop()
        self._next_upkeep = loop.call_later(_UPKEEP_S, self.keep_up)
        self._on_upkeep()

    def give_server_time(self) -> None:
        """To do what follows from a wish of the owner; then it is done without the server."""
        if self._overdue is not None:
            self._overdue.cancel()
        loop = asyncio.get_running_loop()
        self._overdue = loop.call_later(_SERVER_ACTS_S, self._on_overdue)

    def measure_later(self) -> None:
        """Once, however many have failed: every connection asks for it."""
        if self._unmeasured is not None:
            self._unmeasured.cancel()
        loop = asyncio.get_running_loop()
        self._unmeasured = loop.call_later(_MEASURE_AGAIN_S, self._on_measure)

    def stop(self) -> None:
        timers = (self._next_beat, self._next_look, self._next_upkeep)
        for timer in (*timers, self._overdue, self._unmeasured):
            if timer is not None:
                timer.cancel()
