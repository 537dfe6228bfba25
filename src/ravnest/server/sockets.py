"""WebSockets of the server, from the first word up to and including their end.

What is said is limited where it is understood; this limits what is said without saying anything:
pings, and messages in tiny pieces. It knows frames, not messages.
"""

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState, ProtocolError
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

SMALL_BYTES = 1024
MOST_SMALL = 300
"""Frames in `WINDOW_S` that say nothing by themselves: pings, pongs, and pieces of messages that
are smaller than `SMALL_BYTES` and not the last of theirs. Other frames are messages, and counted
as such, or as large as they are."""
WINDOW_S = 10.0
PIPES = "/api/v1/relay/"
"""Sockets on which nobody is pinged: what goes through them may fill a thin line, and an answer
that waits behind it says nothing. Their two ends find out by themselves whether they are there."""


class _Frames(ServerProtocol):
    """What the library understands of the bytes that come; it stops at the first frame too many."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._small = 0
        self._since = time.monotonic()

    def recv_frame(self, frame: Frame) -> None:
        if not frame.fin:
            if len(frame.data) < SMALL_BYTES:
                self._count()
        elif frame.opcode >= Opcode.CLOSE:
            self._count()
        super().recv_frame(frame)

    def _count(self) -> None:
        self._small += 1
        if self._small > MOST_SMALL:
            now = time.monotonic()
            if now - self._since < WINDOW_S:
                raise ProtocolError("too many frames that say nothing")
            self._small, self._since = 1, now


class Sockets(WebSocketsSansIOProtocol):
    """WebSockets as they are; one that its peer is closing does not keep the server from ending."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = _Frames(max_size=self.config.ws_max_size, logger=self.logger)
        self.when_lost: Callable[[], None] | None = None

    def start_keepalive(self) -> None:
        if not self.scope["path"].startswith(PIPES):
            super().start_keepalive()

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

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                # Then it is no text, and whoever expects text says so. The library would write a
                # traceback to the log.
                self.curr_msg_data_type = "bytes"
        super().send_receive_event_to_app()

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
