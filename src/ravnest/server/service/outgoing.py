"""Large answers: sent in pieces, and counted until the last of them is on its way.

An answer that nobody reads is in memory until its connection is given up. Written at once it would
be there twice, and nobody would know when it has gone.
"""

from collections.abc import Iterator

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ravnest.server.service.holding import Share

PIECE_BYTES = 64 << 10


def pieces(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]


class Outgoing:
    """A response whose body has been made, and the share that it holds."""

    def __init__(self, response: Response, share: Share) -> None:
        self._response = response
        self._share = share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_pieces(message: Message) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            for piece in pieces(message["body"]):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            # Whoever sends waits before a piece, not after it; so there is one more.
            await send({"type": "http.response.body", "body": b""})

        with self._share:
            await self._response(scope, receive, send_in_pieces)
