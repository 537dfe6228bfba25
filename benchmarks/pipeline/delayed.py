"""A network whose messages take their time: every chunk arrives a fixed delay after it came."""

import asyncio
import contextlib
from collections.abc import Sequence

from ravnest.wire.framing import Buffer
from ravnest.wire.streams import (
    ChunkStream,
    Network,
    Room,
    StreamError,
    StreamHandler,
    no_room,
)


class DelayedNetwork:
    """Another network, with `delay_s` more on every way."""

    def __init__(self, network: Network, delay_s: float) -> None:
        self._network, self._delay_s = network, delay_s

    async def listen(self, address: str, handler: StreamHandler) -> None:
        async def later(stream: ChunkStream) -> None:
            delayed = _DelayedStream(stream, self._delay_s)
            try:
                await handler(delayed)
            finally:
                delayed.stop()

        await self._network.listen(address, later)

    async def dial(self, address: str) -> ChunkStream:
        return _DelayedStream(await self._network.dial(address), self._delay_s)

    async def close(self) -> None:
        await self._network.close()


class _DelayedStream:
    """Reads ahead and hands out each chunk when it is due."""

    def __init__(self, stream: ChunkStream, delay_s: float) -> None:
        self._stream, self._delay_s = stream, delay_s
        self._arrived: asyncio.Queue[tuple[float, Buffer | StreamError | None]] = asyncio.Queue()
        self._reader = asyncio.ensure_future(self._read_ahead())

    async def _read_ahead(self) -> None:
        clock = asyncio.get_running_loop().time
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                try:
                    chunk = await self._stream.read()
                except StreamError as broken:
                    self._arrived.put_nowait((clock(), broken))
                    return
                # A copy: its memory may be used for the next one.
                kept = None if chunk is None else bytes(chunk)
                self._arrived.put_nowait((clock() + self._delay_s, kept))
                if chunk is None:
                    return

    async def read(self, room: Room = no_room) -> Buffer | None:
        due, chunk = await self._arrived.get()
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        if isinstance(chunk, StreamError):
            raise chunk
        return chunk

    async def write(self, parts: Sequence[Buffer]) -> None:
        await self._stream.write(parts)

    async def close(self) -> None:
        await self._stream.close()

    def abandon(self) -> None:
        self.stop()
        self._stream.abandon()

    def stop(self) -> None:
        self._reader.cancel()
