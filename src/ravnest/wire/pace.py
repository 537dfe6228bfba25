"""How fast a link is, as its sender can tell. Pure.

For every message that has arrived: what was delivered from the last word of an arrival before its
departure to the word of its own, over that time. A link that has little to do looks slower than it
is, so the fastest of the last messages counts; and a link is only said to hold its sender up if
messages had to wait.
"""

from collections import deque
from typing import NamedTuple

_LEAST_BYTES = 32 << 10
"""Smaller messages say more about delay than about speed."""
_KEPT = 32


class _Departed(NamedTuple):
    sequence: int
    size: int
    since: float
    """The last word of an arrival until then; the departure if nothing was under way."""
    delivered: int
    """By all messages until then."""


class Pace:
    """Of one direction of one link."""

    def __init__(self) -> None:
        self._under_way: deque[_Departed] = deque()
        self._delivered = 0
        self._heard_at = 0.0
        self._rates: deque[float] = deque(maxlen=_KEPT)
        self._waited: deque[bool] = deque(maxlen=_KEPT)

    def submitted(self, *, others_wait: bool) -> None:
        """A message is to be sent; `others_wait` if it has to stand in line."""
        self._waited.append(others_wait)

    def departed(self, sequence: int, size: int, now: float) -> None:
        if not self._under_way:
            self._heard_at = now
        self._under_way.append(_Departed(sequence, size, self._heard_at, self._delivered))

    def arrived(self, sequence: int, now: float) -> None:
        """The peer has all messages up to this one."""
        while self._under_way and self._under_way[0].sequence <= sequence:
            message = self._under_way.popleft()
            self._delivered += message.size
            if message.size >= _LEAST_BYTES and now > message.since:
                self._rates.append((self._delivered - message.delivered) / (now - message.since))
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
        return len(self._waited) >= 4 and 4 * sum(self._waited) >= len(self._waited)
