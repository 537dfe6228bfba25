"""Connections that say nothing, never come to the point, or do not listen: closed soon.

Before its first request nobody knows who a connection belongs to; the door counts it until then.
This knows sockets and time, not what is asked.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from ssl import SSLContext
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ravnest.server.door import Door
from ravnest.server.sockets import Sockets
from ravnest.server.taking import Taking

SILENCE_S = 15.0
"""From a connection, or the first byte of a request, to the end of the request's headers."""
MOST_WAITING = 8
"""Requests that have come on a connection while an earlier one is answered."""
MOST_HEADER_BYTES = 64 << 10
_MOST_AROUND_BODY = 512 << 10
"""Of one request, what is not its body: twice as much as is read at once, for the limit above is
looked at only when headers are complete, and what comes before they are has to be kept."""
_AROUND_CHUNK = 32
"""Beside that, for each chunk of a body that comes in chunks: its length and the ends of lines."""
_MOST_UNSENT = 64 << 10
"""Bytes of an answer that may wait in its connection; TLS would have eight times as many."""

_TOO_MUCH = "The headers of this request are too large."


class Watched(HttpToolsProtocol):
    """HTTP as it is, for those who say in time what they want, and take what they are told."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._patience: asyncio.TimerHandle | None = None
        self.when_heard: Callable[[], None] | None = None
        self._taking: Taking | None = None
        self._answered: RequestResponseCycle | None = None
        """The request that is answered now, or was last; `cycle` is the one that came last."""
        self._around_body = 0
        """Bytes of this request that are not its body, beyond those that chunks may have."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(_MOST_UNSENT)
        self._taking = Taking(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()
        # super() leaves this to its time if the connection was broken, and all that was unsent too.
        self._unset_keepalive_if_required()
        if self._answered is not None and self._is_answering:
            # super() tells only the request that came last; this one would be answered for ever.
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return  # over, or a WebSocket from now on
        self._around_body += len(data)
        if self._around_body > _MOST_AROUND_BODY:
            self.send_400_response(_TOO_MUCH)
        elif self._patience is None and not self._is_answering:
            self._wait()  # whatever this was, it has to become a request

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._around_body = 0
        if self._patience is None:
            self._wait()

    def on_headers_complete(self) -> None:
        if sum(len(name) + len(value) for name, value in self.headers) > MOST_HEADER_BYTES:
            raise ValueError(_TOO_MUCH)  # which the parser takes for a request that is none
        if self.parser.should_upgrade() and self._should_upgrade():
            if self._is_answering:
                raise ValueError("a WebSocket begins by itself, behind no other request")
        elif len(self.pipeline) >= MOST_WAITING:
            self.transport.abort()
            raise ValueError("too many requests at once")
        else:
            self._heard()
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        sockets = self.transport.get_protocol()
        assert isinstance(sockets, Sockets)
        sockets.when_lost = self._gone
        self.transport.set_write_buffer_limits()  # as it was: the relay wants it so
        if not self.transport.is_closing():
            self._heard()
        # Else it was none, and has been told so. Whoever does not go now is as good as silent.

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_chunk_header(self) -> None:
        self._around_body -= _AROUND_CHUNK

    def on_body(self, body: bytes) -> None:
        self._around_body -= len(body)
        super().on_body(body)

    @property
    def _is_answering(self) -> bool:
        return self._answered is not None and not self._answered.response_complete

    def _wait(self) -> None:
        self._patience = self.loop.call_later(SILENCE_S, self._lose_patience)

    def _heard(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self.when_heard is not None:
            self.when_heard()
            self.when_heard = None

    def _gone(self) -> None:
        self._heard()
        if self._taking is not None:
            self._taking.stop()

    def _lose_patience(self) -> None:
        if self._is_answering:
            self._wait()  # a request is being answered, and half of the next has come already
        else:
            self.transport.abort()


@contextlib.contextmanager
def our_door() -> Iterator[None]:
    """Servers that are made in this block count connections from the moment they are taken, and
    close those that do not finish TLS in time."""
    loop: Any = asyncio.get_running_loop()

    async def create_server(
        make: Callable[[], Watched], *, sock: socket.socket, ssl: SSLContext | None, backlog: int
    ) -> Door:
        return Door(make, sock, ssl, SILENCE_S)

    loop.create_server = create_server
    try:
        yield
    finally:
        del loop.create_server
