"""Curves of jobs, which may be long: read and written on a thread, once for all who ask meanwhile.

Others read the store as well, and wait for whatever is being read: so no two curves are at a time.
"""

import asyncio

from ravnest.api.limits import encode
from ravnest.server.service.core import Core
from ravnest.server.service.views import series_view

_POINTS = 2000
"""Of each curve."""


class Curves:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._turn = asyncio.Lock()
        self._next: dict[str, asyncio.Task[bytes]] = {}
        """Job id → those that are not being read yet."""

    async def of(self, job: str) -> bytes:
        """A `Series`, as JSON. It knows of everything that has happened before it was asked for."""
        if job not in self._next:
            self._next[job] = asyncio.create_task(self._read(job))
        # Whoever goes away does not end it for the others.
        return await asyncio.shield(self._next[job])

    async def _read(self, job: str) -> bytes:
        async with self._turn:
            del self._next[job]
            return await self._core.read(lambda db: encode(series_view(db.points(job, _POINTS))))
