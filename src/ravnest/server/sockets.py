"""WebSockets of the server, from the first word up to and including their end."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

class Sockets(WebSocketsSansIOProtocol):
    """WebSockets as they are; one that its peer is closing does not keep the server from ending."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.when_lost: Callable[[], None] | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated and not self.transport.is_closing():
            # A request has come, whole, and the library says nothing about it.
            self._refuse()

    def _refuse(self) -> None:
        said = b"".join(self.conn.data_to_send())
        if not said:
            said = self.conn.reject(HTTPStatus.BAD_REQUEST, "This is no WebSocket.\n").serialize()
        self.close_sent = True
        self.transport.write(said)
        self.transport.close()

    def handle_parser_exception(self) -> None:
        if self.conn.close_sent is not None:
            super().handle_parser_exception()
        else:  # before it was accepted there is no frame to close it with
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
            # Nothing that is decided about it later can be said to it.
            self.handshake_complete = self.close_sent = self.disconnected = True
            self.transport.close()

    def shutdown(self) -> None:
        # The library raises for one whose other end has said goodbye and was answered, and the
        # server's own end would stop there. Nothing is left to be said on such a line, so the
        # server does not wait for it either.
        try:
            super().shutdown()
        except InvalidState:
            self.connections.discard(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.when_lost is not None:
            self.when_lost()
        self.connections.add(self)  # super() takes it out, and it may be out already
        super().connection_lost(exc)
