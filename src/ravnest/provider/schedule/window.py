"""How many micro-batches a stage keeps in flight: enough to never wait, and no more.

A micro-batch comes back to a stage after a way through the later stages and their links. To have
work all that time, the stage needs as many micro-batches under way as are finished in the time of
one such way, one more on the stage itself, and one to spare where that costs little: times vary.

The way is what it takes without queues: every stage says how long it computes on a micro-batch, and
each link how long it takes there and back. Queues are made by micro-batches in flight, so whoever
counts them in asks for more and more, and more would not be faster, only older: every further one
makes gradients staler and takes memory. Links that are now slower, now faster (jitter, a machine
that has other things to do) do ask for more; from outside that looks like a queue, so it counts up
to a tenth of what the slowest stage takes.

The pace is that of the slowest stage from here on. If micro-batches come back more slowly, either
too few are in flight yet, or something else is in the way, a narrow link: then a little more than
the present pace is asked for. Pure; times are given by the caller.
"""

import math
from collections import deque
from dataclasses import dataclass

_REMEMBERED = 64
"""Micro-batches over which minimum and mean are taken: speeds change, the window follows."""
_ENOUGH = 8
"""Micro-batches before what was measured is believed."""
_AMBITION = 1.5
"""How much faster than now it may be tried to become."""
_USUAL = 0.75
"""Share of the messages that a link's usual time is enough for."""
_VARIATION = 0.1
"""Most that a link's variation counts, as a part of the slowest stage's time."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    least: int
    """What the depth of the pipeline asks for, with free links."""
    most: int
    """What memory allows."""
    spare: int = 0
    """Micro-batches beyond those that times which never vary would ask for."""


@dataclass(frozen=True, slots=True)
class Trip:
    """What a stage learns when a micro-batch comes back from the next one."""

    away_s: float
    """Since it was sent on."""
    held_s: float
    """Of that, at the next stage or beyond it."""
    path_s: float
    """The least that its way takes from the next stage on, there and back."""
    slowest_s: float = 0.0
    """What the slowest stage from the next one on computes on a micro-batch."""


class InFlightWindow:
    """Follows the micro-batches of one stage and says how many of them to keep in flight."""

    def __init__(self, limits: WindowLimits) -> None:
        if not 1 <= limits.least <= limits.most:
            raise ValueError(f"window of {limits.least} to {limits.most}")
        self._limits = limits
        self._links: deque[float] = deque(maxlen=_REMEMBERED)
        self._returns: deque[float] = deque(maxlen=_REMEMBERED)
        self._service: deque[float] = deque(maxlen=_REMEMBERED)
        self._beyond_s = 0.0
        self._slowest_beyond_s = 0.0
        self.size = limits.least

    def served(self, seconds: float) -> None:
        """This stage has computed so long on one micro-batch, forward and backward."""
        self._service.append(seconds)

    def returned(self, trip: Trip, now: float) -> int:
        """A micro-batch that was sent on has come back; the window from now on."""
        self._links.append(max(0.0, trip.away_s - trip.held_s))
        self._returns.append(now)
        self._slowest_beyond_s = trip.slowest_s
        self._beyond_s = self._link_s() + trip.path_s
        span = self._returns[-1] - self._returns[0]
        if len(self._returns) >= _ENOUGH and span > 0:
            rate = (len(self._returns) - 1) / span
            if self.slowest_s > 0:
                rate = max(rate, min(1 / self.slowest_s, _AMBITION * rate))
            wanted = math.floor(self._beyond_s * rate + 0.5) + 1 + self._limits.spare
            self.size = min(max(wanted, self._limits.least), self._limits.most)
        return self.size

    def _link_s(self) -> float:
        """There and back, with what it varies by."""
        inorder = sorted(self._links)
        least, usual = inorder[0], inorder[int(_USUAL * (len(inorder) - 1))]
        return least + min(usual - least, _VARIATION * self.slowest_s)

    def paused(self) -> None:
        """Nothing was to be done for a while: that time says nothing about the pace."""
        self._returns.clear()

    @property
    def path_s(self) -> float:
        """The least that a micro-batch takes through this stage and all later ones, and back."""
        return self._own_s + self._beyond_s

    @property
    def slowest_s(self) -> float:
        """What the slowest stage from this one on computes on a micro-batch."""
        return max(self._own_s, self._slowest_beyond_s)

    @property
    def _own_s(self) -> float:
        return sum(self._service) / len(self._service) if self._service else 0.0
