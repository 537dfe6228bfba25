"""How fast a link is, as its sender can tell. Pure.

For every message that has arrived: what was delivered from the last word of an arrival before its
departure to the word of its own, over that time. A link that has little to do looks slower than it
is, so the fastest of the last messages counts.

A link is said to hold its sender up if messages had to wait. They do so here, before they depart,
or in the kernel, which takes megabytes that have not left the machine: then they are under way for
much longer than the quickest one ever was, on a link that is always busy.
"""

import statistics
from collections import deque
from typing import NamedTuple

_LEAST_BYTES = 32 << 10
"""Smaller messages say more about delay than about speed."""
_KEPT = 32
_BUSY = 0.6
_LONG = 1.8


class _Departed(NamedTuple):
    sequence: int
    size: int
    since: float
    """The last word of an arrival until then; the departure if nothing was under way."""
    delivered: int
    """By all messages until then."""
    at: float


class Pace:
    """Of one direction of one link."""

    def __init__(self) -> None:
        self._under_way: deque[_Departed] = deque()
        self._delivered = 0
        self._heard_at = 0.0
        self._rates: deque[float] = deque(maxlen=_KEPT)
        self._waited: deque[bool] = deque(maxlen=_KEPT)
        self._trips: deque[float] = deque(maxlen=_KEPT)
        self._quickest = float("inf")
        self._marks: deque[tuple[float, int]] = deque(maxlen=_KEPT)
        """When what had been delivered."""

    def submitted(self, *, others_wait: bool) -> None:
        """A message is to be sent; `others_wait` if it has to stand in line."""
        self._waited.append(others_wait)

    def departed(self, sequence: int, size: int, now: float) -> None:
        if not self._under_way:
            self._heard_at = now
        self._under_way.append(_Departed(sequence, size, self._heard_at, self._delivered, now))

    def arrived(self, sequence: int, now: float) -> None:
        """The peer has all messages up to this one."""
        while self._under_way and self._under_way[0].sequence <= sequence:
            message = self._under_way.popleft()
            self._delivered += message.size
            if message.size >= _LEAST_BYTES and now > message.since:
                self._rates.append((self._delivered - message.delivered) / (now - message.since))
                self._trips.append(now - message.at)
                self._quickest = min(self._quickest, now - message.at)
                self._marks.append((now, self._delivered))
            self._heard_at = now

    def broke(self) -> None:
        """What was under way is sent again."""
        self._under_way.clear()

    @property
    def bytes_per_s(self) -> float | None:
        """None if nothing of size has arrived yet."""
        return max(self._rates, default=None)

    @property
    def holds_up(self) -> bool:
        """Messages often had to wait for those before them."""
        waited_here = len(self._waited) >= 4 and 4 * sum(self._waited) >= len(self._waited)
        return waited_here or (self._is_busy and self._trips_are_long)

    @property
    def _is_busy(self) -> bool:
        """It delivers nearly as much, over some time, as it can."""
        if len(self._marks) < 8:
            return False
        (began, before), (ended, after) = self._marks[0], self._marks[-1]
        return after - before >= _BUSY * max(self._rates) * (ended - began)

    @property
    def _trips_are_long(self) -> bool:
        return statistics.median(self._trips) > _LONG * self._quickest
