"""Direct links between providers: answered for others, and tried and measured from here.

While no worker runs, the agent listens on the port that its workers use. Both sides show their
certificates (a provider's name is provider-<id>), so nobody else gets an answer, and a caller knows
that it has reached the right machine. A certificate alone is not enough: the server names those who
are answered, as they are to measure the line or are neighbours in the assignment that is prepared.
Others are told to come again, since the server's word may be on its way.

What is said is small and limited: pings that are echoed at once, and bytes that are counted. One
caller at a time sends bytes, the other callers wait for their turn: two measurements at once
would each find half of the line.
"""

import asyncio
import contextlib
import os
import random
import ssl
import struct
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ravnest.agent.addresses import Dialling
from ravnest.agent.doorstep import Doorstep
from ravnest.agent.identity import Identity
from ravnest.agent.pacing import Bucket
from ravnest.api.control import PeerAddress
from ravnest.api.dialling import MOST_ENDPOINTS, Endpoint
from ravnest.api.machine import PeerFigure, provider_name

_PROTOCOL = "ravnest-probe/2"
_FRAME = struct.Struct("!cI")
_PING, _TURN, _BULK, _DONE, _BUSY = b"P", b"T", b"B", b"D", b"!"
_PINGS = 4
_BULKS = (64 << 10, 512 << 10, 4 << 20)
_LONG_ENOUGH_S = 0.5
_MOST_BYTES = 16 << 20
"""That anybody may send to us on one connection."""
_CONVERSATION_S, _TURN_S = 15.0, 60.0
"""At most; and how long one's turn may be waited for besides."""
_CONNECT_S, _NEXT_S, _NOT_REACHED_S, _MARGIN_S = 4.0, 0.15, 5.0, 0.1
"""At least, for an address to answer as the provider that is looked for; until the next one is
tried as well; until it is said that none has, neither before nor later: the time would tell the
party that has named them whether a port is open there. All dials are given up a moment before."""
assert (MOST_ENDPOINTS - 1) * _NEXT_S + _CONNECT_S < _NOT_REACHED_S - _MARGIN_S
_MOST_CALLERS, _MOST_OF_ONE = 128, 4
"""Conversations at once, in all and with one provider. Others are told to come again."""
_BUSY_S = 30.0
"""How long somebody who is busy is asked again, at all of its addresses together."""
_BUSY_DELAY_S, _LONGEST_BUSY_DELAY_S = 0.2, 5.0
_PIECE, _SMALL_PIECE = 64 << 10, 8 << 10
"""Small where our owner has a limit: if the other one's has, too, its wait for a piece passes while
we wait for the next."""
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
    identity.authority.verify_with(context)
    context.set_alpn_protocols([_PROTOCOL])
    return context


class PeerListener:
    """Answers probes between `open` and `close`; the port can be taken up again afterwards."""

    def __init__(
        self, identity: Identity, host: str, port: int, down: Bucket | None = None
    ) -> None:
        self._context = server_context(identity)
        self._down = down
        self.host = host
        self.port = port
        """0 until it has been opened, if any free one will do."""
        self._doorstep = Doorstep(self._context, self._accept, _PIECE)
        self._talking: dict[asyncio.Task[None], str] = {}
        """With whom."""
        self._admitted: dict[int, float] = {}
        """Until when, by the clock of the event loop."""
        self._neighbours: dict[str, set[int]] = {}
        """By assignment."""
        self._turn = asyncio.Lock()

    def take_certificate(self, identity: Identity) -> None:
        """It was renewed; callers are shown the new one from now on."""
        self._context.load_cert_chain(identity.certificate_file, identity.key_file)

    def admit(self, provider: int, seconds: float) -> None:
        """Answer that one for so long; 0: not any more, whatever it was admitted for."""
        self._admitted[provider] = asyncio.get_running_loop().time() + seconds
        if not seconds:
            for neighbours in self._neighbours.values():
                neighbours.discard(provider)

    def admit_neighbours(self, assignment: str, providers: Iterable[int]) -> None:
        """Answer these, too, until others or none are named for that assignment."""
        self._neighbours.pop(assignment, None)
        if named := set(providers):
            self._neighbours[assignment] = named

    def _is_admitted(self, caller: str) -> bool:
        now = asyncio.get_running_loop().time()
        self._admitted = {other: until for other, until in self._admitted.items() if until > now}
        admitted = set(self._admitted).union(*self._neighbours.values())
        return caller in map(provider_name, admitted)

    @property
    def is_open(self) -> bool:
        return self._doorstep.is_open

    async def open(self) -> None:
        if not self._doorstep.is_open:
            self.port = self._doorstep.open(self.host, self.port)

    async def close(self) -> None:
        await self._doorstep.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Called once the caller has shown its certificate."""
        task = asyncio.current_task()
        assert task is not None
        caller = _caller(writer)
        of_it = sum(other == caller for other in self._talking.values())
        is_busy = len(self._talking) >= _MOST_CALLERS or of_it >= _MOST_OF_ONE
        is_busy = is_busy or not self._is_admitted(caller)
        if len(self._talking) >= 2 * _MOST_CALLERS or of_it >= 2 * _MOST_OF_ONE:
            return
        self._talking[task] = caller
        try:
            if is_busy:
                await _put_off(reader, writer)
            else:
                await self._answer(reader, writer)
        finally:
            self._talking.pop(task, None)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_CONVERSATION_S):
            wants_turn = await _echo(reader, writer)
        if not wants_turn:
            return
        async with asyncio.timeout(_TURN_S):
            await self._turn.acquire()
        try:
            async with asyncio.timeout(_CONVERSATION_S):
                await _count(reader, writer, self._down)
        finally:
            self._turn.release()


def _caller(writer: asyncio.StreamWriter) -> str:
    """The name in the certificate that was shown."""
    shown = writer.get_extra_info("peercert") or {}
    names = shown.get("subjectAltName", ())
    return next((name for kind, name in names if kind == "DNS"), "")


async def _put_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(_CONNECT_S):
        # What it has said must be read, or closing might take the answer back.
        await reader.readexactly(_FRAME.size)
        writer.write(_FRAME.pack(_BUSY, 0))
        await writer.drain()
        await reader.read(1)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Pings, until the caller wants to measure; False if it says anything else."""
    while True:
        kind, number = _FRAME.unpack(await reader.readexactly(_FRAME.size))
        if kind != _PING:
            return bool(kind == _TURN)
        writer.write(_FRAME.pack(_PING, number))
        await writer.drain()


async def _count(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, down: Bucket | None
) -> None:
    """Its turn: as many bytes as anybody may send, no faster than they may come."""
    left = _MOST_BYTES
    writer.write(_FRAME.pack(_TURN, 0))
    while True:
        kind, size = _FRAME.unpack(await reader.readexactly(_FRAME.size))
        if kind != _BULK or size > left:
            return
        left -= size
        while size > 0:
            piece = await reader.read(min(size, _PIECE))
            if not piece:
                return
            size -= len(piece)
            if down is not None:
                await asyncio.sleep(down.take(len(piece)))
        writer.write(_FRAME.pack(_DONE, 0))
        await writer.drain()


@dataclass(frozen=True)
class Found:
    """`endpoint` answered as that provider; figures are 0 where nothing was measured."""

    endpoint: Endpoint
    mbps: float = 0.0
    latency_ms: float = 0.0

    @property
    def address(self) -> str:
        return str(self.endpoint)


class _BusyError(Exception):
    """It is there, and talks with too many others."""


async def find(
    identity: Identity,
    provider: int,
    addresses: Sequence[str],
    dialling: Dialling,
    *,
    measure: bool,
    up: Bucket | None = None,
) -> Found | None:
    """The address at which that provider answers first, of those that this machine may dial. None
    comes after the same time whatever has answered there, and whether anything was dialled; later
    only if the provider itself, known by its certificate, keeps this machine waiting."""
    if not addresses:
        return None
    loop = asyncio.get_running_loop()
    async with dialling.gate if not measure else contextlib.nullcontext():
        # Before the clock starts: judging takes a time of its own.
        allowed = await dialling.allowed(provider, addresses)
        said_at = loop.time() + _NOT_REACHED_S

        async def one(place: int, endpoint: Endpoint) -> Found:
            async with asyncio.timeout_at(said_at - _MARGIN_S):
                await asyncio.sleep(place * _NEXT_S)
                # Others may be dialling providers on the same host, which they then give back.
                while not dialling.reserve(endpoint):
                    await asyncio.sleep(_NEXT_S)
                line = await _dial(identity, provider, endpoint)
                dialling.give_back(endpoint)
            return await _converse(identity, provider, endpoint, line, measure=measure, up=up)

        found: Found | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BUSY_S + measure * (_CONVERSATION_S + _TURN_S)):
                found = await _first(one(*each) for each in enumerate(allowed))
        if found is None:
            await asyncio.sleep(said_at - loop.time())
        return found


async def _first(attempts: Iterable[Coroutine[Any, Any, Found]]) -> Found | None:
    """That succeeds; the others are given up. Failures are all alike, and not told."""
    tasks = [asyncio.create_task(attempt) for attempt in attempts]
    try:
        for done in asyncio.as_completed(tasks):
            with contextlib.suppress(Exception):
                return await done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return None


async def probe(
    identity: Identity,
    peers: Sequence[PeerAddress],
    dialling: Dialling,
    alone: asyncio.Lock,
    up: Bucket | None = None,
) -> tuple[PeerFigure, ...]:
    """Links to these. Speed 0: it cannot be reached directly. One that was found and could not be
    measured is left out: nothing is known about it. `alone` is held by whoever measures."""

    async def one(peer: PeerAddress) -> PeerFigure | None:
        id = peer.provider
        found = await find(identity, id, peer.addresses, dialling, measure=False)
        if found is None:
            return PeerFigure(provider=id)
        async with alone:
            found = await find(identity, id, (found.address,), dialling, measure=True, up=up)
        if found is None:
            return None
        return PeerFigure(provider=peer.provider, mbps=found.mbps, latency_ms=found.latency_ms)

    # Not everybody begins with the same one.
    shuffled = random.sample(list(peers), len(peers))
    figures = await asyncio.gather(*map(one, shuffled))
    return tuple(figure for figure in figures if figure is not None)


_Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _dial(identity: Identity, provider: int, endpoint: Endpoint) -> _Line:
    """A line to that provider: what answers there has shown its certificate."""
    return await asyncio.open_connection(
        str(endpoint.ip),
        endpoint.port,
        ssl=client_context(identity),
        server_hostname=provider_name(provider),
    )


async def _converse(
    identity: Identity,
    provider: int,
    endpoint: Endpoint,
    line: _Line,
    *,
    measure: bool,
    up: Bucket | None = None,
) -> Found:
    """On that line, and on others to the same place as long as the provider is busy and the
    deadline around this has not passed."""
    delay = _BUSY_DELAY_S
    while True:
        try:
            return await _measured(endpoint, line, measure=measure, up=up)
        except _BusyError:
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))
            delay = min(1.5 * delay, _LONGEST_BUSY_DELAY_S)
        async with asyncio.timeout(_CONNECT_S):
            line = await _dial(identity, provider, endpoint)


async def _measured(endpoint: Endpoint, line: _Line, *, measure: bool, up: Bucket | None) -> Found:
    reader, writer = line
    try:
        async with asyncio.timeout(_CONVERSATION_S):
            # With TLS 1.3 a refused certificate shows with the first answer only.
            latency_s = min([await _ping(reader, writer, n) for n in range(_PINGS)])
        if not measure:
            return Found(endpoint, latency_ms=latency_s * 1e3)
        async with asyncio.timeout(_TURN_S):
            await _ask(reader, writer, _TURN, 0)
        async with asyncio.timeout(_CONVERSATION_S):
            return Found(endpoint, await _speed(reader, writer, latency_s, up), latency_s * 1e3)
    finally:
        writer.transport.abort()


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: bytes, number: int
) -> None:
    writer.write(_FRAME.pack(kind, number))
    answer = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    if answer == (_BUSY, 0):
        raise _BusyError
    if answer != (kind, number):
        raise ValueError("not an answer to a probe")


async def _ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> float:
    began = time.perf_counter()
    await _ask(reader, writer, _PING, number)
    return time.perf_counter() - began


async def _speed(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    latency_s: float,
    up: Bucket | None,
) -> float:
    mbps, most = 0.0, _PIECE if up is None else _SMALL_PIECE
    for size in _BULKS:
        began = time.perf_counter()
        writer.write(_FRAME.pack(_BULK, size))
        for start in range(0, size, most):
            piece = _RANDOM[: min(most, size - start)]
            if up is not None:
                await asyncio.sleep(up.take(len(piece)))
            writer.write(piece)
            await writer.drain()
        if _FRAME.unpack(await reader.readexactly(_FRAME.size)) != (_DONE, 0):
            raise ValueError("not an answer to a probe")
        taken = time.perf_counter() - began
        mbps = size * 8 / 1e6 / max(taken - latency_s, taken / 4, 1e-6)
        if taken >= _LONG_ENOUGH_S:
            break
    return mbps
