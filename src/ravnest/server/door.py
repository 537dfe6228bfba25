"""The door: connections are counted from the moment they are taken until they ask for something.

The event loop's own server takes whatever comes and counts nothing; each connection then holds a
descriptor and, for TLS, 300 kB, whether it ever says a word or not. Here one address has few that
may speak, the rest of its own wait without costing anything but their descriptor, and who has come
with many makes room for others. This knows sockets and addresses, not what is said.
"""

import asyncio
import contextlib
import functools
import ipaddress
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ravnest.descriptors import for_callers

logger = logging.getLogger("ravnest.server")

MOST_SILENT = 1000
"""Connections of one address that have not asked for anything yet; more are closed at once."""
MOST_SPEAKING = 200
"""Of those, how many may begin to speak; the others wait for their turn."""
MOST_IN_ALL = 2000
"""Connections that have not asked for anything yet; more wait where the system keeps them."""
_MANY = 20
"""Whose address has more is let go when there are too many in all."""
_AT_ONCE = 64
_RETRY_S = 1.0
_SAID_EVERY_S = 60.0


class Silent(Protocol):
    """What is made for each connection."""

    when_heard: Callable[[], None] | None
    """To be called when it has asked for something, or is gone."""


@dataclass
class _Origin:
    """An address, and its connections that have not asked for anything."""

    name: str
    waiting: deque[socket.socket] = field(default_factory=deque)
    speaking: dict[socket.socket, None] = field(default_factory=dict)
    """The oldest first."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self.speaking)


class Door:
    """In place of an `asyncio.Server`, as far as uvicorn uses one."""

    def __init__(
        self,
        make: Callable[[], Silent],
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        handshake_s: float,
    ) -> None:
        self._make = make
        self._tls = {"ssl": tls, "ssl_handshake_timeout": handshake_s} if tls else {}
        self._loop: Any = asyncio.get_running_loop()
        self._origins: dict[str, _Origin] = {}
        self.silent = 0
        """Connections that are inside and have not asked for anything yet."""
        self._most = min(MOST_IN_ALL, for_callers())
        self._room = asyncio.Event()
        self._said_at = -_SAID_EVERY_S
        self._beginnings: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._taking = asyncio.create_task(self._take_all(listener))

    def close(self) -> None:
        """Nobody else comes in; those who have asked for something stay."""
        self._taking.cancel()
        for task in self._beginnings:
            task.cancel()
        for origin in self._origins.values():
            while origin.waiting:
                origin.waiting.pop().close()

    async def wait_closed(self) -> None:
        await asyncio.wait([self._taking, *self._beginnings])

    async def _take_all(self, listener: socket.socket) -> None:
        while True:
            # Taking one does not wait if there is one; whoever is inside has to have a turn too.
            await asyncio.sleep(0)
            for _ in range(_AT_ONCE):
                while self.silent >= self._most and not self._let_one_go():
                    self._room.clear()
                    await self._room.wait()  # each speaks, or is silent for too long
                try:
                    connection, address = await self._loop.sock_accept(listener)
                except ConnectionAbortedError:
                    continue
                except OSError as error:
                    self._say(error)
                    await asyncio.sleep(_RETRY_S)
                else:
                    self._take(connection, origin_of(address[0]))

    def _say(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._said_at >= _SAID_EVERY_S:
            self._said_at = now
            logger.error(
                "no connection can be taken: %s; trying on (said once a minute; if it stays so, "
                "allow this server more open files: ulimit -n, or LimitNOFILE of its service)",
                error.strerror,
            )

    def _take(self, connection: socket.socket, name: str) -> None:
        origin = self._origins.setdefault(name, _Origin(name))
        if len(origin) >= MOST_SILENT:
            connection.close()
            return
        self.silent += 1
        origin.waiting.append(connection)
        self._go_on(origin)

    def _go_on(self, origin: _Origin) -> None:
        while origin.waiting and len(origin.speaking) < MOST_SPEAKING:
            connection = origin.waiting.popleft()
            origin.speaking[connection] = None
            task = asyncio.create_task(self._begin(origin, connection))
            self._beginnings.add(task)
            task.add_done_callback(self._beginnings.discard)

    async def _begin(self, origin: _Origin, connection: socket.socket) -> None:
        """Until TLS stands; then the connection belongs to its protocol."""
        heard = functools.partial(self._heard, origin, connection)

        def made() -> Silent:
            protocol = self._make()
            protocol.when_heard = heard
            return protocol

        try:
            await self._loop.connect_accepted_socket(made, connection, **self._tls)
        except Exception as error:  # whatever it was that TLS did not like, or that did not come
            if not isinstance(error, OSError):
                logger.error("a connection could not be begun", exc_info=error)
            # It has gone through frames that hold the error; the two, and with them the buffers of
            # TLS, would stay until the garbage is collected.
            error.__traceback__ = None
            heard()

    def _heard(self, origin: _Origin, connection: socket.socket) -> None:
        if connection in origin.speaking:
            del origin.speaking[connection]
            self._less(origin)

    def _less(self, origin: _Origin) -> None:
        self.silent -= 1
        self._room.set()
        if origin:
            self._go_on(origin)
        else:
            self._origins.pop(origin.name, None)

    def _let_one_go(self) -> bool:
        """Of an address that has many: nobody needs to wait for those who keep all places."""
        origin = max(self._origins.values(), key=len)
        if len(origin) <= _MANY:
            return False
        if origin.waiting:
            origin.waiting.pop().close()
            self._less(origin)
        else:
            oldest = next(iter(origin.speaking))
            with contextlib.suppress(OSError):  # it is closed already
                oldest.shutdown(socket.SHUT_RDWR)  # which its protocol takes for its end
            self._heard(origin, oldest)
        return True


def origin_of(address: str) -> str:
    """Whose connections are counted together: of IPv6 those with the same first half, for whoever
    has one of them has all."""
    if ":" not in address:
        return address
    whole = ipaddress.IPv6Address(address.partition("%")[0])
    return str(whole.ipv4_mapped or whole.exploded[:19])
