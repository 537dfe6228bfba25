"""Files on their way out, whole or from where somebody had got to."""

from collections.abc import Callable
from pathlib import Path

from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

_TELL_EVERY = 4 << 20
"""Bytes of a download between two words about it: under a minute on the slowest line."""


class Download(FileResponse):
    """A file, or the part of it that was asked for; `told` hears now and then how much has gone."""

    chunk_size = 1 << 18

    def __init__(
        self,
        path: Path,
        *,
        headers: dict[str, str],
        filename: str | None = None,
        told: Callable[[int], object] | None = None,
    ) -> None:
        kind = "application/octet-stream"
        super().__init__(path, headers=headers, media_type=kind, filename=filename)
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told, gone = self._told, 0

        async def send_and_tell(message: Message) -> None:
            nonlocal gone
            await send(message)
            gone += len(message.get("body", b""))
            is_last = not message.get("more_body", True)
            if told is not None and (gone >= _TELL_EVERY or (gone and is_last)):
                told(gone)
                gone = 0

        await super().__call__(scope, receive, send if told is None else send_and_tell)
