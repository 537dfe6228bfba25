"""Connections to the server: how many of each caller, how long without a request, how slowly read.

Enough for a server on a LAN or a home line. A flood from many addresses is for nginx, HAProxy or
Caddy in front (docs/server.md). Each connection counts from accept to close: for its address until
a request on it has shown a good token, for that token afterwards. The oldest make room for new
ones, also those that are being answered. This module knows sockets and time, not what is asked.
"""

import asyncio
import asyncio.sslproto
import contextlib
import functools
import ipaddress
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame

from ravnest.descriptors import for_callers

MAX_PER_CALLER = 500
"""Connections of one address without a token, and of one token or credential: a provider may have
256 relayed links."""
MAX_STRANGERS = 1000
"""Connections without a token. asyncio holds 300 kB for a TLS connection, also for one that says
nothing."""
PENDING_S = 30.0
"""From accept to the end of a request's headers, and again from an answer to the next request."""
READ_PATIENCE_S, READ_BYTES_PER_S = 300.0, 2048.0
"""How long a connection may keep its answers waiting; each so many bytes that it takes give it a
second of that back. The thinnest line that a provider may offer takes 12,500 in a second, but nginx
between the two stands still for two minutes and then takes a megabyte."""
WRITE_BUFFER_BYTES = 64 << 10
"""Of an answer; asyncio would let eight times as much wait in a TLS connection."""
_LINUX_OPTIONS = {
    # Until its first byte a connection is the kernel's, and costs this process nothing.
    "TCP_DEFER_ACCEPT": int(PENDING_S),
    # Accepted sockets inherit these. The kernel ends a connection whose peer acknowledges nothing,
    # or keeps its window shut, for so long: WebSockets too, and what is left after an answer.
    "TCP_USER_TIMEOUT": int(READ_PATIENCE_S) * 1000,
    # With megabytes of an answer in the kernel a slow reader seems to stand still for minutes.
    "TCP_NOTSENT_LOWAT": WRITE_BUFFER_BYTES,
}
HEADER_BYTES = 64 << 10
MAX_CONTROL_FRAMES, CONTROL_FRAMES_S = 300, 10.0
"""Pings and small fragments of messages, on one WebSocket in so many seconds. Whole messages have a
rate limit of their own (`ratelimit`)."""
SMALL_FRAGMENT_BYTES = 1024
TLS_BUFFER_BYTES = 32 << 10
"""asyncio takes four times as much for each connection; a TLS record has at most 16 kB."""
_RESET = struct.pack("ii", 1, 0)
RELAY_PATH = "/api/v1/relay/"


class _Connection(socket.socket):
    """An accepted socket that knows when it is closed, whatever asyncio made of it."""

    address: str
    account: tuple["_Accounts", str] | None = None
    """What it counts for; None once it is dropped or closed."""
    answering = 0
    """Requests in progress."""
    patience = READ_PATIENCE_S
    deadline: asyncio.TimerHandle | None = None
    transport: asyncio.Transport | None = None
    """From the end of the TLS handshake on."""
    on_close: Callable[["_Connection"], None]

    def close(self) -> None:
        if self.fileno() != -1:
            self.on_close(self)
        super().close()

    def is_blocked(self) -> bool:
        """Whether asyncio holds bytes that the kernel does not take yet."""
        poll = select.poll()
        poll.register(self, select.POLLOUT)
        return not poll.poll(0)


_Accounts = dict[str, dict[_Connection, None]]
"""Connections of each account, the one that has asked last at the end."""


class ConnectionLimits:
    """`LimitedListener` tells it of connections, `asgi` of requests, `Desk` of whose they are.

    A new connection is always let in, at the cost of the oldest one: of the same account if that
    has too many, else of the account that has most. A caller that asks at once is hardly ever the
    oldest, also if it shares the address of a flood.
    """

    def __init__(self, *, per_address: bool = True) -> None:
        self._max_per_address = MAX_PER_CALLER if per_address else MAX_STRANGERS
        self._max_open = for_callers()
        self._open: set[_Connection] = set()
        self._leaving: set[_Connection] = set()
        """Dropped, and not closed yet."""
        self._strangers: _Accounts = {}
        self._callers: _Accounts = {}

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def strangers(self) -> int:
        return sum(map(len, self._strangers.values()))

    @property
    def is_full(self) -> bool:
        """Until the connection that makes room for the newest one is closed."""
        return self.open > self._max_open

    def admit(self, connection: _Connection) -> None:
        connection.on_close = self._closed
        self._open.add(connection)
        if self.is_full and not self._leaving:
            # All strangers together count as one caller.
            most = max(map(len, self._callers.values()), default=0)
            larger = self._callers if most > self.strangers else self._strangers
            self._drop_oldest_of_largest(larger)
        self._put(connection, None)
        self._await_request(connection)

    def asgi(self, app: ASGIApp) -> ASGIApp:
        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            connection = scope.get("state", {}).get("connection")
            if connection is None:
                return await app(scope, receive, send)
            if connection.deadline is not None:
                connection.deadline.cancel()
            connection.answering += 1
            scope["count_for"] = functools.partial(self._count_for, connection)
            if scope["type"] == "http":
                send = self._read_in_time(connection, send)
            try:
                await app(scope, receive, send)
            finally:
                connection.answering -= 1
                if not connection.answering and connection.account is not None:
                    self._await_request(connection)

        return counted

    def close_pending(self) -> None:
        for connection in list(self._open):
            if not connection.answering:
                self._drop(connection)

    def _await_request(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.deadline = loop.call_later(PENDING_S, self._no_request, connection)

    def _no_request(self, connection: _Connection) -> None:
        if connection.is_blocked() and connection.patience > PENDING_S:
            connection.patience -= PENDING_S  # the end of the last answer is being read
            self._await_request(connection)
        else:
            self._drop(connection)

    def _read_in_time(self, connection: _Connection, send: Send) -> Send:
        """`send` of an answer. uvicorn waits in it until little of what went before is left."""
        loop = asyncio.get_running_loop()

        async def send_while_patient(message: Message) -> None:
            began = loop.time()
            impatient = loop.call_later(connection.patience, self._drop, connection)
            try:
                await send(message)
            finally:
                impatient.cancel()
            gained = len(message.get("body", b"")) / READ_BYTES_PER_S
            left = connection.patience - (loop.time() - began) + gained
            connection.patience = min(READ_PATIENCE_S, left)

        return send_while_patient

    def _count_for(self, connection: _Connection, caller: str | None) -> None:
        """From now on. None is a stranger, who is known by the address."""
        if connection.account is not None:  # else it was dropped meanwhile
            self._remove(connection)
            self._put(connection, caller)

    def _put(self, connection: _Connection, caller: str | None) -> None:
        if caller is None:
            accounts, name = self._strangers, address_group(connection.address)
            most = self._max_per_address
        else:
            accounts, name, most = self._callers, caller, MAX_PER_CALLER
        connection.account = accounts, name
        account = accounts.setdefault(name, {})
        account[connection] = None
        if len(account) > most:
            self._drop(next(iter(account)))
        elif self.strangers > MAX_STRANGERS:
            self._drop_oldest_of_largest(self._strangers)

    def _remove(self, connection: _Connection) -> None:
        if connection.account is not None:
            accounts, name = connection.account
            connection.account = None
            del accounts[name][connection]
            if not accounts[name]:
                del accounts[name]

    def _drop_oldest_of_largest(self, accounts: _Accounts) -> None:
        largest = max(accounts.values(), key=len)
        self._drop(next(iter(largest)))

    def _drop(self, connection: _Connection) -> None:
        if connection.account is None:
            return
        self._remove(connection)
        self._leaving.add(connection)
        if connection.answering:
            # Or a slow reader would leave the rest of its answer in the kernel.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        with contextlib.suppress(OSError):  # the peer has gone already
            connection.shutdown(socket.SHUT_RDWR)  # asyncio reads an end, and closes it
        if connection.transport is not None:
            connection.transport.abort()  # also if it is not reading

    def _closed(self, connection: _Connection) -> None:
        if connection.deadline is not None:
            connection.deadline.cancel()
        self._remove(connection)
        self._leaving.discard(connection)
        self._open.discard(connection)


class LimitedListener(socket.socket):
    """A listening socket for `asyncio` (the selector event loop, which calls `accept`)."""

    limits: ConnectionLimits

    def accept(self) -> tuple[socket.socket, Any]:
        if self.limits.is_full:
            raise BlockingIOError  # asyncio comes back after what else there is to do
        accepted, address = super().accept()
        connection = _Connection(
            accepted.family, accepted.type, accepted.proto, fileno=accepted.detach()
        )
        connection.address = address[0]
        self.limits.admit(connection)
        return connection, address


def listen(host: str, port: int, backlog: int, limits: ConnectionLimits) -> LimitedListener:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: asyncio looks at it before it turns off Nagle's algorithm, which
    # would add the 40 ms of a delayed acknowledgement to every answer.
    asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
    listener = LimitedListener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.limits = limits
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for name, value in _LINUX_OPTIONS.items():
            if hasattr(socket, name):
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        listener.bind((host, port))
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def address_group(address: str) -> str:
    """Which addresses are counted as one: of IPv6 those with the same first 64 bits, for the owner
    of one of them has all."""
    if ":" not in address:
        return address
    whole = ipaddress.IPv6Address(address.partition("%")[0])
    return str(whole.ipv4_mapped or whole.exploded[:19])


class HttpProtocol(H11Protocol):
    """uvicorn's, with little of an answer in memory, and requests that know their connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        connection = transport.get_extra_info("socket")._sock
        if isinstance(connection, _Connection):
            connection.transport = transport
            self.app_state = {**self.app_state, "connection": connection}

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self.transport.set_write_buffer_limits()  # the relay is faster so
        super().handle_websocket_upgrade(event)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's, with a rate limit for frames that carry nothing."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._began = self.loop.time()
        self._control_frames = 0

    def handle_ping(self) -> None:
        self._count()
        super().handle_ping()

    def handle_cont(self, event: Frame) -> None:
        if len(event.data) < SMALL_FRAGMENT_BYTES:
            self._count()
        super().handle_cont(event)

    def _count(self) -> None:
        now = self.loop.time()
        if now - self._began >= CONTROL_FRAMES_S:
            self._began, self._control_frames = now, 0
        self._control_frames += 1
        if self._control_frames > MAX_CONTROL_FRAMES:
            self.transport.abort()

    def start_keepalive(self) -> None:
        # What goes through the relay may fill a thin line, and a pong that waits behind it says
        # nothing. The two ends find out by themselves whether they are there.
        if not self.scope["path"].startswith(RELAY_PATH):
            super().start_keepalive()

    def shutdown(self) -> None:
        # uvicorn raises for a WebSocket whose peer has closed it at the same moment, and would not
        # come to the end of the server's own shutdown.
        with contextlib.suppress(InvalidState):
            super().shutdown()
