"""WebSockets of the server, up to and including their end."""

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState


class Sockets(WebSocketsSansIOProtocol):
    """WebSockets as they are; one that its peer is closing does not keep the server from ending."""

    def shutdown(self) -> None:
        # The library raises for one whose other end has said goodbye and was answered, and the
        # server's own end would stop there. Nothing is left to be said on such a line, so the
        # server does not wait for it either.
        try:
            super().shutdown()
        except InvalidState:
            self.connections.discard(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.add(self)  # super() takes it out, and it may be out already
        super().connection_lost(exc)
