"""What takes time while an agent goes on: tasks that nobody waits for, and none of them is lost."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """Those that have not ended. `on_mistake` hears of one that failed: they report to `control.py`
    whatever can go wrong, so that is a mistake of ours. `on_aside` hears of one that was started
    with `aside`: nobody waits for what it does, and the agent is whole without it."""

    def __init__(
        self,
        on_mistake: Callable[[BaseException], None],
        on_aside: Callable[[BaseException], None],
    ) -> None:
        self._on_mistake, self._on_aside = on_mistake, on_aside
        self._running: set[asyncio.Task[None]] = set()
        self._aside: set[asyncio.Task[None]] = set()
        self.removing: set[asyncio.Task[None]] = set()

    def go(
        self, work: Coroutine[Any, Any, None], *, aside: bool = False, removes: bool = False
    ) -> asyncio.Task[None]:
        """`removes`: what it has begun to remove should be gone before the agent is."""
        task = asyncio.create_task(work)
        self._running.add(task)
        if aside:
            self._aside.add(task)
        if removes:
            self.removing.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        is_aside = task in self._aside
        for tasks in (self._running, self._aside, self.removing):
            tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            (self._on_aside if is_aside else self._on_mistake)(error)

    async def end(self, *, grace_s: float, all_of_them: bool) -> None:
        """Some, or all, have so long to end by themselves; the others are cancelled."""
        if all_of_them and self._running:
            await asyncio.wait(self._running, timeout=grace_s)
        if self.removing:
            await asyncio.wait(self.removing, timeout=grace_s)
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
