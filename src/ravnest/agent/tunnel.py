"""Neighbours that cannot be reached directly: their links go through the server.

    worker ► 127.0.0.1:port (here) ► WebSocket ► server ► WebSocket ► agent there ► its worker

What the workers say to each other is encrypted between them; neither the agents nor the server can
read it. Bytes wait where the next one is slow; when one side closes, all of it closes.
"""

import asyncio
import contextlib
from collections.abc import Iterable

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from ravnest.agent.addresses import join_host_port
from ravnest.agent.channel import open_socket
from ravnest.agent.pacing import Bucket
from ravnest.client.http import HttpClient
from ravnest.errors import RavnestError

_MOST_FRAME = 256 << 10
_PIECE = 64 << 10
_CONNECT_S = 10.0
_MOST_CONNECTIONS = 256


class Tunnels:
    """Of one assignment: opened for its relayed neighbours, closed with it."""

    def __init__(
        self,
        client: HttpClient,
        assignment: str,
        *,
        up: Bucket | None = None,
        down: Bucket | None = None,
    ) -> None:
        self._client = client
        self._assignment = assignment
        self._up, self._down = up, down
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False

    async def open(self, providers: Iterable[int]) -> dict[int, str]:
        """Where on this machine each of them can be dialled."""
        found = {}
        for provider in providers:

            async def dialled(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                provider: int = provider,
            ) -> None:
                await self._dialled(f"/relay/dial/{self._assignment}/{provider}", reader, writer)

            server = await asyncio.start_server(dialled, "127.0.0.1", 0, limit=2 * _PIECE)
            self._servers.append(server)
            found[provider] = join_host_port("127.0.0.1", server.sockets[0].getsockname()[1])
        return found

    def accept(self, call: str, host: str, port: int) -> None:
        """Somebody calls through the server: connect them to the worker that listens there."""
        if not self.closed and len(self._tasks) < _MOST_CONNECTIONS:
            task = asyncio.create_task(self._accepted(call, host, port))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        self.closed = True
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()

    async def _dialled(
        self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        if task is None or self.closed or len(self._tasks) >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            await self._bridge(path, reader, writer)
        finally:
            self._tasks.discard(task)

    async def _accepted(self, call: str, host: str, port: int) -> None:
        path = f"/relay/accept/{call}"
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(host, port, limit=2 * _PIECE)
        except (OSError, TimeoutError):
            # The caller is told by an end at once, and tries again in its own time.
            with contextlib.suppress(RavnestError):
                async with self._socket(path):
                    return
            return
        await self._bridge(path, reader, writer)

    def _socket(self, path: str) -> contextlib.AbstractAsyncContextManager[ClientConnection]:
        """Without pings: the answer to one waits behind all that fills a thin line."""
        return open_socket(self._client, path, most=_MOST_FRAME, pings=False)

    async def _bridge(
        self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with (
                self._socket(path) as socket,
                asyncio.TaskGroup() as both,
            ):
                both.create_task(self._out(reader, socket))
                both.create_task(self._in(socket, writer))
        except* (RavnestError, OSError, ConnectionClosed, EOFError, _Over):
            pass
        finally:
            writer.transport.abort()

    async def _out(self, reader: asyncio.StreamReader, socket: ClientConnection) -> None:
        while piece := await reader.read(_PIECE):
            if self._up is not None:
                await asyncio.sleep(self._up.take(len(piece)))
            await socket.send(piece)
        raise _Over

    async def _in(self, socket: ClientConnection, writer: asyncio.StreamWriter) -> None:
        async for frame in socket:
            if isinstance(frame, str):
                break
            if self._down is not None:
                await asyncio.sleep(self._down.take(len(frame)))
            writer.write(frame)
            await writer.drain()
        raise _Over


class _Over(Exception):  # noqa: N818 - never leaves this file
    """One direction has ended, and the other one with it."""
