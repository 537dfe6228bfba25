"""A network whose messages take their time: every chunk arrives a fixed delay after it came."""

import asyncio
import contextlib

from ravnest.wire.grpc_network import GrpcNetwork
from ravnest.wire.streams import ChunkStream, StreamError, StreamHandler


class DelayedNetwork(GrpcNetwork):
    """gRPC, with `delay_s` more on every way."""

    delay_s = 0.0

    async def listen(self, address: str, handler: StreamHandler) -> None:
        async def later(stream: ChunkStream) -> None:
            delayed = _DelayedStream(stream, self.delay_s)
            try:
                await handler(delayed)
            finally:
                delayed.stop()

        await super().listen(address, later)

    async def dial(self, address: str) -> ChunkStream:
        return _DelayedStream(await super().dial(address), self.delay_s)


class _DelayedStream:
    """Reads ahead and hands out each chunk when it is due."""

    def __init__(self, stream: ChunkStream, delay_s: float) -> None:
        self._stream, self._delay_s = stream, delay_s
        self._arrived: asyncio.Queue[tuple[float, bytes | StreamError | None]] = asyncio.Queue()
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
                self._arrived.put_nowait((clock() + self._delay_s, chunk))
                if chunk is None:
                    return

    async def read(self) -> bytes | None:
        due, chunk = await self._arrived.get()
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        if isinstance(chunk, StreamError):
            raise chunk
        return chunk

    async def write(self, chunk: bytes) -> None:
        await self._stream.write(chunk)

    async def close(self) -> None:
        await self._stream.close()

    def stop(self) -> None:
        self._reader.cancel()
