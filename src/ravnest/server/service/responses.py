"""Answers as they are written: JSON or text, large ones in pieces.

A large answer that its caller does not read is in memory until its connection is given up. In
pieces it waits for its reader, and its lease of the memory budget ends when the last
piece is on its way.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ravnest.server.service.ratelimit import Lease

PIECE_BYTES = 64 << 10
_encoder = msgspec.json.Encoder()


def written(answer: Any) -> Response:
    if isinstance(answer, Response):
        return answer
    if answer is None:
        return Response(status_code=204)
    if isinstance(answer, str):
        return Response(answer, media_type="text/plain; charset=utf-8")
    return Response(_encoder.encode(answer), media_type="application/json")


def pieces(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]


class LargeResponse:
    """A response whose body is in memory, and the lease that counts it."""

    def __init__(self, response: Response, lease: Lease) -> None:
        self._response = response
        self._lease = lease

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_pieces(message: Message) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            for piece in pieces(message["body"]):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            # uvicorn waits for the reader before it writes, not after; so there is one more.
            await send({"type": "http.response.body", "body": b""})

        with self._lease:
            await self._response(scope, receive, send_in_pieces)
