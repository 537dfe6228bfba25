"""Waiting for a neighbour: not for ever, and not in silence."""

import asyncio
import logging
from collections.abc import Callable

from ravnest.wire.peers import Peer

logger = logging.getLogger("ravnest.wire")
_SHORT_S = 15.0
"""Up to here a wait is nothing to speak of."""


class Deadline:
    """Calls `on_over` with the reason when a wait has lasted too long; logs until then."""

    def __init__(self, peer: Peer, report_s: float, on_over: Callable[[str], None]) -> None:
        self._peer = peer
        self._report_s = report_s
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._over_at = 0.0

    def set(self, seconds: float, reason: str) -> None:
        """Be over in so many seconds unless cancelled before; takes the place of an earlier one."""
        self.cancel()
        started = self._loop.time()

        def check() -> None:
            waited = self._loop.time() - started
            if waited >= seconds:
                self._on_over(f"{reason} (waited {waited:.0f} s)")
                return
            level = logging.INFO if waited < _SHORT_S else logging.WARNING
            logger.log(level, "waiting for %s: %.0f of %.0f s", self._peer, waited, seconds)
            self._timer = self._loop.call_later(min(self._report_s, seconds - waited), check)

        self._timer = self._loop.call_later(min(self._report_s, seconds), check)
        self._over_at = started + seconds

    def sooner(self, seconds: float, reason: str) -> None:
        """The same, if the present deadline is later than that."""
        if self._loop.time() + seconds < self._over_at:
            self.set(seconds, reason)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
