"""Direct links between providers: answered for others, and tried and measured from here.

While no worker runs, the agent listens on the port that its workers use. Both sides show their
certificates (a provider's name is provider-<id>), so nobody else gets an answer, and a caller knows
that it has reached the right machine. What is said is small and limited: pings that are echoed, and
bytes that are counted.
"""

import asyncio
import contextlib
import os
import ssl
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ravnest.agent.identity import Identity
from ravnest.api.control import PeerAddress
from ravnest.api.machine import PeerFigure

_PROTOCOL = "ravnest-probe/1"
_FRAME = struct.Struct("!cI")
_PING, _BULK, _DONE = b"P", b"B", b"D"
_PINGS = 4
_BULKS = (64 << 10, 512 << 10, 4 << 20)
_LONG_ENOUGH_S = 0.5
_MOST_BYTES = 16 << 20
"""That anybody may send to us on one connection."""
_CONVERSATION_S = 15.0
_CONNECT_S = 4.0
_AT_ONCE = 4
_PIECE = 64 << 10
_RANDOM = os.urandom(_PIECE)
"""Not compressible, in case somebody on the way tries."""


def server_context(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _filled(context, identity)


def client_context(identity: Identity) -> ssl.SSLContext:
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), identity)


def _filled(context: ssl.SSLContext, identity: Identity) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(identity.certificate_file, identity.key_file)
    context.load_verify_locations(cadata=identity.authority)
    context.set_alpn_protocols([_PROTOCOL])
    return context


def provider_name(provider: int) -> str:
    return f"provider-{provider}"


class PeerListener:
    """Answers probes between `open` and `close`; the port can be taken up again afterwards."""

    def __init__(self, identity: Identity, host: str, port: int) -> None:
        self._context = server_context(identity)
        self.host = host
        self.port = port
        """0 until it has been opened, if any free one will do."""
        self._server: asyncio.Server | None = None
        self._talking: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(
                self._accept, self.host, self.port, ssl=self._context, limit=_PIECE
            )
            self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for task in self._talking:
                task.cancel()
            await asyncio.gather(*self._talking, return_exceptions=True)
            await server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talking.add(task)
        try:
            if len(self._talking) <= _AT_ONCE:
                async with asyncio.timeout(_CONVERSATION_S):
                    await _answer(reader, writer)
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._talking.discard(task)
            writer.transport.abort()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    left = _MOST_BYTES
    while True:
        kind, size = _FRAME.unpack(await reader.readexactly(_FRAME.size))
        if kind == _PING:
            writer.write(_FRAME.pack(_PING, size))
        elif kind == _BULK and size <= left:
            left -= size
            while size > 0:
                piece = await reader.read(min(size, _PIECE))
                if not piece:
                    return
                size -= len(piece)
            writer.write(_FRAME.pack(_DONE, 0))
        else:
            return
        await writer.drain()


@dataclass(frozen=True)
class Found:
    """`address` answered as that provider; figures are 0 where nothing was measured."""

    address: str
    mbps: float = 0.0
    latency_ms: float = 0.0


async def find(
    identity: Identity, provider: int, addresses: Sequence[str], *, measure: bool
) -> Found | None:
    """The first of the addresses at which that provider answers, or None."""
    for address in addresses:
        with contextlib.suppress(OSError, EOFError, TimeoutError, ssl.SSLError, ValueError):
            return await _try(identity, provider, address, measure=measure)
    return None


async def probe(identity: Identity, peers: Sequence[PeerAddress]) -> tuple[PeerFigure, ...]:
    """Links to these, a few at a time. Speed 0: it cannot be reached directly."""
    gate = asyncio.Semaphore(2)

    async def one(peer: PeerAddress) -> PeerFigure:
        async with gate:
            found = await find(identity, peer.provider, peer.addresses, measure=True)
        if found is None:
            return PeerFigure(provider=peer.provider)
        return PeerFigure(provider=peer.provider, mbps=found.mbps, latency_ms=found.latency_ms)

    return tuple(await asyncio.gather(*map(one, peers)))


async def _try(identity: Identity, provider: int, address: str, *, measure: bool) -> Found:
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(_CONNECT_S):
        reader, writer = await asyncio.open_connection(
            host.strip("[]"),
            int(port),
            ssl=client_context(identity),
            server_hostname=provider_name(provider),
        )
    try:
        async with asyncio.timeout(_CONVERSATION_S):
            # With TLS 1.3 a refused certificate shows with the first answer only.
            latency_s = min([await _ping(reader, writer, n) for n in range(_PINGS)])
            if not measure:
                return Found(address, latency_ms=latency_s * 1e3)
            return Found(address, await _speed(reader, writer, latency_s), latency_s * 1e3)
    finally:
        writer.transport.abort()


async def _ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> float:
    began = time.perf_counter()
    writer.write(_FRAME.pack(_PING, number))
    answer = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    if answer != (_PING, number):
        raise ValueError("not an answer to a probe")
    return time.perf_counter() - began


async def _speed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, latency_s: float
) -> float:
    mbps = 0.0
    for size in _BULKS:
        began = time.perf_counter()
        writer.write(_FRAME.pack(_BULK, size))
        for start in range(0, size, _PIECE):
            writer.write(_RANDOM[: size - start])
            await writer.drain()
        if _FRAME.unpack(await reader.readexactly(_FRAME.size)) != (_DONE, 0):
            raise ValueError("not an answer to a probe")
        taken = time.perf_counter() - began
        mbps = size * 8 / 1e6 / max(taken - latency_s, taken / 4, 1e-6)
        if taken >= _LONG_ENOUGH_S:
            break
    return mbps
