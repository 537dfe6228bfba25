"""The connection on which agent and server talk: opened again and again, for ever.

Knows how messages travel, not what they mean. Whatever is not through when a connection breaks is
lost; `control.py` says again what matters.
"""

import asyncio
import contextlib
import random
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from ravnest.api.control import FromAgent, FromServer, server_decoder
from ravnest.api.dialling import Ip, bare_ip
from ravnest.api.limits import NOT_UNDERSTOOD, encode
from ravnest.client.address import ServerAddress
from ravnest.client.answers import TokenRefusedError, failure_in_words, refusal
from ravnest.client.http import HttpClient
from ravnest.errors import ServerError

_MOST_MESSAGE_BYTES = 64 << 20
_SHORTEST_S, _LONGEST_S = 0.5, 30.0
_OPEN_S = 20.0
_GOODBYE_S = 5.0
_SILENCE_S = 20.0
"""Between pings; a server that does not answer one for as long is gone."""


class Listener(Protocol):
    """Whom a channel tells what happens."""

    def opened(self) -> None: ...
    def closed(self, why: str) -> None: ...
    def heard(self, message: FromServer) -> None: ...


@dataclass(frozen=True)
class Pauses:
    """Between two attempts; longer and longer, and never the same for many agents at once."""

    shortest_s: float = _SHORTEST_S
    longest_s: float = _LONGEST_S

    def after(self, failures: int) -> float:
        longest = min(self.longest_s, self.shortest_s * 2.0 ** min(failures, 16))
        return longest * random.uniform(0.5, 1.0)


class Channel:
    """`run` until `close`; `send` puts a message in line for the present connection, if any."""

    def __init__(
        self, client: HttpClient, listener: Listener, pauses: Pauses | None = None
    ) -> None:
        self._client = client
        self._listener = listener
        self._pauses = pauses or Pauses()
        self._outgoing: asyncio.Queue[bytes | None] | None = None
        self._closing = asyncio.Event()
        self.server_ip: Ip | None = None
        """The other end of the connection that stands. None: there is none, or a proxy is there.
        What DNS says about the server's name is the server's own word, and proves nothing."""

    def send(self, message: FromAgent) -> None:
        if self._outgoing is not None:
            self._outgoing.put_nowait(encode(message))

    def close(self) -> None:
        """What is in line is still said."""
        self._closing.set()
        if self._outgoing is not None:
            self._outgoing.put_nowait(None)

    async def run(self) -> None:
        """Raises only if the server says that this identity is not welcome."""
        failures, loop = 0, asyncio.get_running_loop()
        while not self._closing.is_set():
            try:
                async with open_socket(self._client, "/agent", most=_MOST_MESSAGE_BYTES) as socket:
                    began = loop.time()
                    why = await self._talk(socket)
                    # One that is closed at once is no better than none: perhaps another agent has
                    # the same identity, and each of them is sent away when the other one comes.
                    if loop.time() - began >= self._pauses.longest_s:
                        failures = 0
            except TokenRefusedError as error:
                if error.code == "foreign":  # somebody in between, not the server itself
                    why = str(error)
                else:
                    raise
            except ServerError as error:
                why = str(error)
            self._listener.closed(why)
            if not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pauses.after(failures)):
                        await self._closing.wait()
            failures += 1

    async def _talk(self, socket: ClientConnection) -> str:
        self._outgoing = asyncio.Queue()
        if not _has_proxy(self._client.address):
            self.server_ip = bare_ip(str(socket.remote_address[0]))
        writer = asyncio.create_task(_write(socket, self._outgoing))
        try:
            self._listener.opened()
            async for frame in socket:
                self._hear(frame)
            return "the server has closed the connection"
        except ConnectionClosed as error:
            return f"the connection broke: {error}"
        except _NotUnderstoodError as error:
            return f"the server says something this release does not understand: {error}"
        finally:
            self._outgoing = self.server_ip = None
            if not self._closing.is_set():
                writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def _hear(self, frame: str | bytes) -> None:
        try:
            message = server_decoder.decode(frame)
        except NOT_UNDERSTOOD as error:
            raise _NotUnderstoodError(str(error)) from error
        self._listener.heard(message)


class _NotUnderstoodError(Exception):
    """Never leaves this file."""


async def _write(socket: ClientConnection, outgoing: asyncio.Queue[bytes | None]) -> None:
    """Until told to end; then the socket is closed, which ends the reading as well."""
    with contextlib.suppress(ConnectionClosed):
        while (message := await outgoing.get()) is not None:
            await socket.send(message, text=True)
        async with asyncio.timeout(_GOODBYE_S):
            await socket.close()


def _has_proxy(address: ServerAddress) -> bool:
    """Between this machine and the server, as its owner has set up; perhaps for other schemes."""
    proxies = set(urllib.request.getproxies()) - {"no"}
    is_direct = address.is_local or urllib.request.proxy_bypass(address.host_port)
    return bool(proxies) and not is_direct


class _Direct(connect):
    """A redirect is a refusal: a server must not make this machine call at another place."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


@contextlib.asynccontextmanager
async def open_socket(
    client: HttpClient, path: str, *, most: int, pings: bool = True
) -> AsyncIterator[ClientConnection]:
    """A WebSocket to the server, with the errors that `client` would raise."""
    address = client.address
    try:
        socket = await _Direct(
            address.websocket_api + path,
            ssl=client.context,
            additional_headers={"Authorization": f"Bearer {client.bearer}"},
            proxy=True if _has_proxy(address) else None,
            compression=None,
            max_size=most,
            open_timeout=_OPEN_S,
            close_timeout=_GOODBYE_S,
            ping_interval=_SILENCE_S if pings else None,
            ping_timeout=_SILENCE_S,
        )
    except InvalidStatus as error:
        answer = error.response
        raise refusal(answer.status_code, bytes(answer.body or b""), path) from error
    except (OSError, InvalidHandshake, TimeoutError, EOFError) as error:
        raise ServerError(failure_in_words(error, address)) from error
    async with socket:
        yield socket
