"""One at a time, and in turn: whoever wants something often does not keep others from it.

Owners have their turns one after the other; each takes those of its own in the order they came.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator


class Turns:
    def __init__(self) -> None:
        self._busy = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By owner, those whose turn comes first in front."""

    @contextlib.asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """Everybody else waits meanwhile."""
        await self._wait(owner)
        try:
            yield
        finally:
            if owner in self._waiting:  # who has just had it comes after all others
                self._waiting.move_to_end(owner)
            self._next()

    async def _wait(self, owner: str) -> None:
        if not self._busy:
            self._busy = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came, and is not wanted any more
                self._next()
            raise

    def _next(self) -> None:
        while self._waiting:
            owner, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns  # behind all others
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False
