"""Folders of assignments that are over, or left by an earlier agent: what is kept of them, and that
the rest goes. In the background, while the next assignment is prepared."""

import asyncio
import contextlib
from pathlib import Path

from ravnest.agent.errand import Errand
from ravnest.agent.folders import WorkFolders
from ravnest.agent.identity import Identity
from ravnest.agent.instructions import Show
from ravnest.agent.results import most_bytes
from ravnest.agent.tasks import Tasks, in_words
from ravnest.api.work import Assignment, WorkEnd


class Clearing:
    def __init__(self, home: Path, tasks: Tasks, show: Show) -> None:
        self.folders = WorkFolders(home)
        self._tasks, self._show = tasks, show
        self._going: dict[str, asyncio.Task[None]] = {}
        """Assignments whose folders are being cleared."""

    async def take_up(self, identity: Identity) -> tuple[Assignment, WorkEnd] | None:
        """What an earlier agent did not finish. Whatever is there, this one begins."""
        try:
            for kept in await asyncio.to_thread(self.folders.keep_others, identity):
                self._show("undelivered", f"results for another server are in {kept}")
            return await asyncio.to_thread(self.folders.left_behind, identity)
        except Exception as error:
            self._show("mistake", f"what an earlier agent has left is not used: {in_words(error)}")
            return None

    async def make_way(self, assignment: str) -> None:
        """For that one, which may be the same again as the one that was just ended."""
        if (going := self._going.get(assignment)) is not None:
            await asyncio.wait({going})
        await asyncio.to_thread(self.folders.make_way, assignment, but=set(self._going))
        # What cannot be removed is told by the upkeep, and is no reason not to work.
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self.folders.empty)

    def clear(self, errand: Errand, *, failed: bool) -> None:
        name = errand.assignment.id
        errand.cancel()
        if not errand.undelivered:
            self.folders.settle(name)
        if failed and (kept := self.folders.keep_log(name)) is not None:
            self._show("log", f"what the worker wrote is in {kept}")
        task = self._tasks.go(self._clear(errand), aside=True, removes=True)
        self._going[name] = task
        task.add_done_callback(lambda task: self._gone(name, task))

    def _gone(self, name: str, task: asyncio.Task[None]) -> None:
        if self._going.get(name) is task:
            del self._going[name]

    async def _clear(self, errand: Errand) -> None:
        if errand.task is not None:
            await asyncio.wait({errand.task})
        await errand.close()
        name = errand.assignment.id
        if errand.undelivered:
            most = most_bytes(errand.assignment)
            kept = await asyncio.to_thread(self.folders.keep_results, name, most)
            where = "nothing of them could be kept" if kept is None else f"they are in {kept}"
            self._show("undelivered", f"{errand.undelivered}; {where}")
        await asyncio.to_thread(errand.forget_files)
        await asyncio.to_thread(self.folders.put_away, name)
        await asyncio.to_thread(self.folders.empty)
