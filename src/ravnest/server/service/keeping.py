"""Which of the files that were handed in stay: those of jobs, and of jobs that are being submitted.

Checking a job takes a while, in which others are deleted: from its first check to its record the
files of a submission are pinned. Whoever removes files and whoever looks for them take turns.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

from ravnest.server.changes import Put
from ravnest.server.folders import blob_key, owner_key
from ravnest.server.service.core import Core
from ravnest.server.service.files import Files
from ravnest.server.service.specs import HASHES, hashes_in, hashes_needed, noted, without_hashes
from ravnest.server.state.records import Job
from ravnest.server.store import Store

logger = logging.getLogger("ravnest.server")

ABANDONED_S = 3 * 24 * 3600.0
"""For so long a file that no job has is kept after it was last handed in or asked for: uploading
everything that a job needs may take days."""
_Found = TypeVar("_Found")


class Keeping:
    def __init__(self, core: Core, files: Files, clock: Callable[[], float]) -> None:
        self._core = core
        self._files = files
        self._clock = clock
        self._pins: Counter[str] = Counter()
        self._turn = asyncio.Lock()

    @contextlib.contextmanager
    def pinned(self, hashes: Collection[str]) -> Iterator[None]:
        """These files are not removed meanwhile, if they are there when they are looked for."""
        self._pins.update(hashes)
        try:
            yield
        finally:
            self._pins.subtract(hashes)
            self._pins = +self._pins

    async def look(self, find: Callable[[], _Found]) -> _Found:
        """On a thread, while nobody removes files: what was not pinned before this is gone."""
        async with self._turn:
            return await self._files.off_loop(find)

    async def forget(self, hashes: set[str], submitted_at: float) -> None:
        """Files of a job that is gone, as far as nobody else has them, or has been told since it
        was submitted that they are here and need not be uploaded."""
        async with self._turn:
            stay = await self._staying()
            await self._files.off_loop(self._files.forget, hashes - stay, submitted_at)

    async def forget_abandoned(self) -> None:
        """Files that were handed in for a job that never came."""
        async with self._turn:
            stay, before = await self._staying(), self._clock() - ABANDONED_S
            gone = await self._files.off_loop(self._files.forget_old, stay, before)
        if gone:
            logger.info("removed %d files that no job needs", gone)

    async def _staying(self) -> set[str]:
        # The pins of before as well: what they were for may be in a record that is not read yet.
        before = set(self._pins)
        return before | await self._core.read(hashes_needed) | set(self._pins)


def note_hashes(store: Store, jobs: Mapping[str, Job]) -> None:
    """Of jobs that a release has stored which did not keep them apart. Waits for the disk."""
    for id in store.ask(lambda db: without_hashes(db, jobs)).result():
        spec = store.ask(lambda db, id=id: db.record("spec", id)).result()  # type: ignore[misc]
        owner = owner_key(jobs[id].owner_role, jobs[id].owner_name)
        keys = {blob_key(owner, sha256) for sha256 in hashes_in(spec or b"")}
        store.write([Put(HASHES, id, noted(keys))]).result()
