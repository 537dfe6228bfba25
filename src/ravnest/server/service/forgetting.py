"""Tokens that ended long ago are forgotten: at the start of a server, and every hour after that."""

import asyncio
from collections.abc import Callable

from ravnest.server.access import Access
from ravnest.server.changes import Remove
from ravnest.server.service.core import Core

EVERY_S = 3600.0
KEPT_S = 30 * 24 * 3600.0
"""For so long whoever shows an expired token is told that it has expired."""


class Forgetting:
    def __init__(self, access: Access, core: Core, clock: Callable[[], float]) -> None:
        self._access = access
        self._core = core
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        gone = self._access.forget_expired(self._clock() - KEPT_S)
        self._core.keep([Remove("token", id) for id in gone])
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self.begin)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
