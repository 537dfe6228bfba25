"""What ended long ago, and files without a job, are forgotten: at the start and hourly."""

import asyncio
import logging
from collections.abc import Callable

from ravnest.server.access import Access
from ravnest.server.changes import Remove
from ravnest.server.service.core import Core
from ravnest.server.service.keeping import Keeping
from ravnest.server.state.events import LongAgo

logger = logging.getLogger("ravnest.server")

EVERY_S = 3600.0
KEPT_S = 30 * 24 * 3600.0
"""For so long whoever shows an expired token is told that it has expired, and a provider that was
removed is known by its name."""


class Forgetting:
    def __init__(
        self, access: Access, core: Core, keeping: Keeping, clock: Callable[[], float]
    ) -> None:
        self._access = access
        self._core = core
        self._keeping = keeping
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._files: asyncio.Task[None] | None = None

    def begin(self) -> None:
        before = self._clock() - KEPT_S
        self._core.happen(LongAgo(before=before))
        gone = self._access.forget_expired(before)
        self._core.keep([Remove("token", id) for id in gone])
        self._files = asyncio.create_task(self._forget_files())
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self.begin)

    async def _forget_files(self) -> None:
        try:
            await self._keeping.forget_abandoned()
        except Exception:
            logger.exception("files that no job needs could not be removed")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._files is not None:
            self._files.cancel()
