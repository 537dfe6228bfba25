"""Streams over plain TCP: for machines that share a room, where gRPC is what limits the speed.

Each chunk goes out as its length (4 bytes) and its bytes, from where they lie. Nothing is
encrypted.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import struct
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from ravnest.descriptors import for_callers
from ravnest.wire.framing import CHUNK_BYTES, Buffer
from ravnest.wire.routes import Routes
from ravnest.wire.streams import (
    ChunkStream,
    ListenError,
    Room,
    StreamError,
    StreamHandler,
    no_room,
)

logger = logging.getLogger("ravnest.wire")
_LENGTH = struct.Struct("<I")
_LARGEST = 2 * CHUNK_BYTES
_CONNECT_S = 5.0
_PARTS_AT_ONCE = 64
_FIRST_BUFFER = 1 << 16
"""Enough for a greeting; grows with the chunks that come."""
_SEND_BUFFER = 8 << 20


class TcpNetwork:
    """One connection per stream."""

    def __init__(self, *, routes: Routes | None = None) -> None:
        self._routes = routes or Routes()
        self._send_buffer = _larger_send_buffer()
        self._server: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[_TcpStream] = set()

    async def listen(self, address: str, handler: StreamHandler) -> None:
        host, _, port = address.rpartition(":")
        try:
            server = _listening(host.strip("[]"), int(port))
        except OSError as error:
            raise ListenError(
                f"cannot listen on {address}. Is another provider running there?"
            ) from error
        server.setblocking(False)
        self._server = server
        self._spawn(self._accept(server, handler))

    async def _accept(self, server: socket.socket, handler: StreamHandler) -> None:
        loop, limit = asyncio.get_running_loop(), for_callers()
        while True:
            try:
                connection, _ = await loop.sock_accept(server)
            except OSError:  # too many open files, or a caller that is gone already
                await asyncio.sleep(0.1)
                continue
            if len(self._streams) >= limit:
                connection.close()
                continue
            try:
                stream = self._stream(connection)
            except OSError:  # some systems refuse options of a connection that was reset already
                connection.close()
                continue
            self._spawn(self._serve(stream, handler))

    async def _serve(self, stream: "_TcpStream", handler: StreamHandler) -> None:
        try:
            await handler(stream)
        finally:
            stream.end()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def dial(self, address: str) -> ChunkStream:
        host, _, port = self._routes.real(address).rpartition(":")
        try:
            places = await _resolved(host.strip("[]"), int(port))
        except OSError as error:
            raise StreamError(f"{host}: {error}") from error
        failure: OSError | TimeoutError = OSError("it has no address")
        for family, where in places:
            try:
                return self._stream(await _connected(family, where))
            except (OSError, TimeoutError) as error:
                failure = error
        refused = isinstance(failure, ConnectionRefusedError)
        reason = str(failure) or f"no answer within {_CONNECT_S:g} s"
        raise StreamError(reason, nobody_there=refused) from failure

    def _stream(self, connection: socket.socket) -> "_TcpStream":
        if self._send_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer)
        stream = _TcpStream(connection, self._streams.discard)
        self._streams.add(stream)
        return stream

    async def close(self) -> None:
        if self._server is not None:
            # Whoever calls at this very moment must not be looked for at a closed socket.
            asyncio.get_running_loop().remove_reader(self._server.fileno())
            self._server.close()
            self._server = None
        for stream in list(self._streams):
            stream.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _larger_send_buffer() -> int | None:
    """What to ask the kernel for, if it then gives more than it ever gives by itself.

    A fast line across an ocean holds more bytes than that. Asked for less, the kernel would stay
    with it for good.
    """
    try:
        by_itself = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return None
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        given = trial.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    return _SEND_BUFFER if given > by_itself else None


def _listening(host: str, port: int) -> socket.socket:
    if host == "0.0.0.0" and socket.has_dualstack_ipv6():  # everywhere, whatever the family
        return socket.create_server(
            ("::", port), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


async def _resolved(host: str, port: int) -> list[tuple[int, Any]]:
    """Families and addresses to try, in this order."""
    with contextlib.suppress(ValueError):
        version = ipaddress.ip_address(host).version
        return [(socket.AF_INET6 if version == 6 else socket.AF_INET, (host, port))]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except RuntimeError:  # the interpreter is ending, and starts no threads any more
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, where) for family, _, _, _, where in found]


async def _connected(family: int, where: Any) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        connecting = asyncio.get_running_loop().sock_connect(connection, where)
        await asyncio.wait_for(connecting, _CONNECT_S)
    except BaseException:
        connection.close()
        raise
    return connection


class _TcpStream:
    """Both directions of one connection. One task reads, one writes."""

    chunk_bytes = CHUNK_BYTES

    def __init__(self, connection: socket.socket, on_end: "Callable[[_TcpStream], None]") -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket: socket.socket | None = connection
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._buffer = memoryview(bytearray(_FIRST_BUFFER))
        self._first = self._last = 0  # of what has arrived and was not handed out
        self._waiting: set[asyncio.Future[None]] = set()

    # ---- reading ----

    async def read(self, room: Room = no_room) -> Buffer | None:
        """The next chunk, in the room there is, or in memory that the one after it will use."""
        # Where there is room, nothing but the length goes through our own buffer.
        direct = room(1) is not None
        if not await self._have(_LENGTH.size, no_more=direct):
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._first)
        if length > _LARGEST:
            logger.warning(
                "a caller speaks another protocol; do all providers use the same transport?"
            )
            raise StreamError(f"a chunk of {length} bytes was announced; this is not Ravnest's")
        self._first += _LENGTH.size
        if (target := room(length)) is not None:
            await self._fill(target)
            return target
        if not await self._have(length):
            raise StreamError("the connection was cut in the middle of a chunk")
        chunk = self._buffer[self._first : self._first + length]
        self._first += length
        return chunk

    async def _fill(self, target: memoryview) -> None:
        here = min(self._last - self._first, len(target))
        target[:here] = self._buffer[self._first : self._first + here]
        self._first += here
        while here < len(target):
            arrived = await self._receive(target[here:])
            if not arrived:
                raise StreamError("the connection was cut in the middle of a chunk")
            here += arrived

    async def _have(self, count: int, *, no_more: bool = False) -> bool:
        """Wait until so many bytes are there; False if the other side has closed before any."""
        while self._last - self._first < count:
            if self._first + count > len(self._buffer) or self._first == self._last:
                self._make_room(count)
            stop = self._first + count if no_more else len(self._buffer)
            arrived = await self._receive(self._buffer[self._last : stop])
            if not arrived:
                if self._first == self._last:
                    return False
                raise StreamError("the connection was cut in the middle of a chunk")
            self._last += arrived
        return True

    def _make_room(self, count: int) -> None:
        rest = bytes(self._buffer[self._first : self._last])
        if count > len(self._buffer):
            # With room for the length of the next one, which comes along with it.
            self._buffer = memoryview(bytearray(_LARGEST + _LENGTH.size))
        self._buffer[: len(rest)] = rest
        self._first, self._last = 0, len(rest)

    async def _receive(self, into: memoryview) -> int:
        while True:
            try:
                arrived = self._open.recv_into(into)
            except (BlockingIOError, InterruptedError):
                await self._wait(self._loop.add_reader, self._loop.remove_reader)
                continue
            except OSError as error:
                raise StreamError(str(error)) from error
            return arrived

    # ---- writing ----

    async def write(self, parts: Sequence[Buffer]) -> None:
        length = sum(len(part) for part in parts)
        try:
            await self._send([_LENGTH.pack(length), *parts])
        except asyncio.CancelledError:
            # Half a chunk may have gone out; nothing that follows would be understood.
            self.end("a message was broken off")
            raise
        await asyncio.sleep(0)  # let the others of this loop have a turn

    async def _send(self, parts: Sequence[Buffer]) -> None:
        pending = [memoryview(part).cast("B") for part in parts if len(part)]
        while pending:
            try:
                sent = self._open.sendmsg(pending[:_PARTS_AT_ONCE])
            except (BlockingIOError, InterruptedError):
                await self._wait(self._loop.add_writer, self._loop.remove_writer)
                continue
            except OSError as error:
                raise StreamError(str(error)) from error
            while pending and sent >= len(pending[0]):
                sent -= len(pending.pop(0))
            if sent:
                pending[0] = pending[0][sent:]

    # ---- waiting and the end ----

    @property
    def _open(self) -> socket.socket:
        if self._socket is None:
            raise StreamError(self._reason)
        return self._socket

    _reason = "the connection is over"

    async def _wait(
        self,
        watch: Callable[[int, Callable[[], object]], None],
        forget: Callable[[int], bool],
    ) -> None:
        """Until the socket can be read from, or written to."""
        descriptor = self._open.fileno()
        ready: asyncio.Future[None] = self._loop.create_future()
        watch(descriptor, lambda: None if ready.done() else ready.set_result(None))
        self._waiting.add(ready)
        try:
            await ready
        finally:
            self._waiting.discard(ready)
            if self._socket is not None:
                forget(descriptor)

    async def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def abandon(self) -> None:
        self.end()

    def doubt(self, node: str) -> str | None:
        return None

    def end(self, reason: str = "the connection is over") -> None:
        """Give the connection up; whoever waits on it is told."""
        connection, self._socket = self._socket, None
        if connection is None:
            return
        self._reason = reason
        self._loop.remove_reader(connection.fileno())
        self._loop.remove_writer(connection.fileno())
        connection.close()
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_exception(StreamError(reason))
        self._on_end(self)
