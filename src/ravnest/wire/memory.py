"""A network inside one event loop, for tests and for several providers in one process.

Behaves like the real one, including what the real one does wrong: `MemoryHub.cut` breaks every
stream of an address, and chunks that were under way are lost.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence

from ravnest.wire.framing import CHUNK_BYTES, Buffer
from ravnest.wire.streams import (
    ChunkStream,
    ListenError,
    Room,
    StreamError,
    StreamHandler,
    no_room,
)

_CHUNKS_UNDER_WAY = 8


class MemoryHub:
    """What the networks of one process are plugged into."""

    def __init__(self) -> None:
        self.handlers: dict[str, StreamHandler] = {}
        self.streams: defaultdict[str, list[_Pipe]] = defaultdict(list)
        self.tasks: set[asyncio.Task[None]] = set()

    def cut(self, address: str, chunks_later: int = 0) -> None:
        """Break the streams of this address, once so many more chunks have been written."""
        for pipe in self.streams.pop(address, ()):
            pipe.chunks_left = chunks_later
            if chunks_later == 0:
                pipe.break_off()


class MemoryNetwork:
    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub
        self._address: str | None = None
        self._dialled: list[_Pipe] = []
        self._closed = False

    async def listen(self, address: str, handler: StreamHandler) -> None:
        if address in self._hub.handlers:
            raise ListenError(f"{address} is in use")
        self._address = address
        self._hub.handlers[address] = handler

    async def dial(self, address: str) -> ChunkStream:
        handler = None if self._closed else self._hub.handlers.get(address)
        if handler is None:
            raise StreamError(f"nothing listens at {address}", nobody_there=True)
        pipe = _Pipe()
        self._hub.streams[address].append(pipe)
        self._dialled.append(pipe)
        task = asyncio.ensure_future(_serve(handler, _End(pipe, here=1)))
        self._hub.tasks.add(task)
        task.add_done_callback(self._hub.tasks.discard)
        return _End(pipe, here=0)

    async def close(self) -> None:
        self._closed = True
        for pipe in self._dialled:
            pipe.break_off()
        if self._address is not None:
            del self._hub.handlers[self._address]
            self._hub.cut(self._address)
            self._address = None


async def _serve(handler: StreamHandler, stream: ChunkStream) -> None:
    await handler(stream)
    await stream.close()


class _Pipe:
    """Chunks on their way to either end."""

    def __init__(self) -> None:
        self.to: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        self.closed = [False, False]
        self.broken = False
        self.chunks_left: int | None = None
        self.changed = asyncio.Condition()

    def break_off(self) -> None:
        self.broken = True
        for chunks in self.to:
            chunks.clear()
        task = asyncio.ensure_future(self.tell())
        task.add_done_callback(lambda _: None)

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()


class _End:
    """One side of a pipe."""

    chunk_bytes = CHUNK_BYTES

    def __init__(self, pipe: _Pipe, here: int) -> None:
        self._pipe, self._here, self._there = pipe, here, 1 - here

    async def read(self, room: Room = no_room) -> bytes | None:
        pipe, inbox = self._pipe, self._pipe.to[self._here]
        async with pipe.changed:
            await pipe.changed.wait_for(
                lambda: inbox or pipe.broken or pipe.closed[self._there] or pipe.closed[self._here]
            )
            self._check()
            if not inbox:
                return None
            chunk = inbox.popleft()
            pipe.changed.notify_all()
            return chunk

    async def write(self, parts: Sequence[Buffer]) -> None:
        pipe, outbox = self._pipe, self._pipe.to[self._there]
        async with pipe.changed:
            await pipe.changed.wait_for(lambda: pipe.broken or len(outbox) < _CHUNKS_UNDER_WAY)
            if pipe.chunks_left is not None:
                pipe.chunks_left -= 1
                if pipe.chunks_left < 0 and not pipe.broken:
                    pipe.break_off()
            self._check()
            if pipe.closed[self._here] or pipe.closed[self._there]:
                raise StreamError("the stream is closed")
            outbox.append(b"".join(parts))
            pipe.changed.notify_all()

    async def close(self) -> None:
        self._pipe.closed[self._here] = True
        await self._pipe.tell()

    def abandon(self) -> None:
        """Nothing is held that would have to be given back."""

    def doubt(self, node: str) -> str | None:
        return None

    def _check(self) -> None:
        if self._pipe.broken:
            raise StreamError("the connection was cut")
