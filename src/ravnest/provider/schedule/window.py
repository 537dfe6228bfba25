"""How many micro-batches a stage keeps in flight: enough to never wait, and no more.

A micro-batch comes back to a stage after the round trip through the later stages and their links.
To have work all that time, the stage needs as many micro-batches under way as it handles in one
round trip. Both factors are measured: the shortest round trip seen lately (longer ones have stood
in queues that too many micro-batches make), and the best rate seen lately. Their product is what
the way ahead holds; one more is on this stage itself.

More would not be faster, only older: every further micro-batch in flight makes gradients staler and
takes memory. Pure; times are given by the caller.
"""

import math
from collections import deque
from dataclasses import dataclass

_REMEMBERED = 64
"""Micro-batches over which minimum and maximum are taken: speeds change, the window follows."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    least: int
    """What the depth of the pipeline asks for, with free links."""
    most: int
    """What memory allows."""


class InFlightWindow:
    """Follows one stage's round trips and says how many micro-batches to keep in flight."""

    def __init__(self, limits: WindowLimits) -> None:
        if not 1 <= limits.least <= limits.most:
            raise ValueError(f"window of {limits.least} to {limits.most}")
        self._limits = limits
        self._trips: deque[float] = deque(maxlen=_REMEMBERED)
        self._returns: deque[float] = deque(maxlen=_REMEMBERED)
        self.size = limits.least

    def returned(self, sent_at: float, now: float) -> int:
        """A micro-batch that was sent on at `sent_at` has come back; the window from now on."""
        self._trips.append(now - sent_at)
        self._returns.append(now)
        span = self._returns[-1] - self._returns[0]
        if len(self._returns) >= 8 and span > 0:
            rate = (len(self._returns) - 1) / span
            wanted = math.ceil(min(self._trips) * rate - 1e-9) + 1
            self.size = min(max(wanted, self._limits.least), self._limits.most)
        return self.size
