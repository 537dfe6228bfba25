"""A port of TLS on which strangers may knock, and few of them stand at the door at once.

Before its certificate is seen nobody knows who a caller is, and each holds a file descriptor. So
many and no more are given time to show one; when another comes, whoever has taken longest must go,
of the address that has most callers there. Those who have a certificate need a moment.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable

MOST_AT_THE_DOOR = 64
HANDSHAKE_S = 10.0
_ACCEPT_AGAIN_S = 1.0
"""When the system had no descriptor left for a caller."""
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Doorstep:
    """`talk` is called for those whose certificate was accepted, in a task of its own."""

    def __init__(self, context: ssl.SSLContext, talk: Talk, limit: int) -> None:
        self._context = context
        self._talk = talk
        self._limit = limit
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._callers: set[asyncio.Task[None]] = set()
        self._at_the_door: dict[asyncio.Task[None], str] = {}
        """From which address; who came first is first."""

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self, host: str, port: int) -> int:
        """Returns the port: 0 is any that is free. Needs a running event loop."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=100)
        self._socket.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._socket))
        return int(self._socket.getsockname()[1])

    async def close(self) -> None:
        listening, self._socket = self._socket, None
        if listening is None or self._accepting is None:
            return
        tasks = [self._accepting, *self._callers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                caller, address = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            self._make_room()
            task = asyncio.create_task(self._receive(caller))
            self._callers.add(task)
            self._at_the_door[task] = str(address[0])
            task.add_done_callback(self._gone)
            # Where many wait, the next is accepted at once: this gives each of them a moment.
            await asyncio.sleep(0)

    def _make_room(self) -> None:
        if len(self._at_the_door) < MOST_AT_THE_DOOR:
            return
        ((most, _),) = Counter(self._at_the_door.values()).most_common(1)
        longest = next(task for task, address in self._at_the_door.items() if address == most)
        del self._at_the_door[longest]
        longest.cancel()

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._callers.discard(task)
        self._at_the_door.pop(task, None)

    async def _receive(self, caller: socket.socket) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        reader = asyncio.StreamReader(limit=self._limit, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        with contextlib.suppress(OSError, EOFError):
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, caller, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )
            self._at_the_door.pop(task, None)
            try:
                await self._talk(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
            finally:
                transport.abort()
