"""Files on their way out, whole or from where somebody had got to."""

from collections.abc import Callable
from pathlib import Path

from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

_TELL_EVERY = 4 << 20
"""Bytes of a download between two words about it: under a minute on the slowest line."""


class Download(FileResponse):
    """A file, or the part of it that was asked for; `told` is called now and then while it goes."""

    chunk_size = 1 << 18

    def __init__(
        self,
        path: Path,
        *,
        headers: dict[str, str],
        filename: str | None = None,
        told: Callable[[], object] | None = None,
    ) -> None:
        kind = "application/octet-stream"
        super().__init__(path, headers=headers, media_type=kind, filename=filename)
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told, left = self._told, 0

        async def send_and_tell(message: Message) -> None:
            nonlocal left
            await send(message)
            left -= len(message.get("body", b""))
            if left <= 0 and told is not None:
                left = _TELL_EVERY
                told()

        await super().__call__(scope, receive, send if told is None else send_and_tell)
