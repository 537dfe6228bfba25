"""Files by content: received as a stream, checked, kept under the hash of their bytes.

A file is under its name only when all of it is there and its hash is right. Disk work happens on a
few threads that all requests share.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse

from ravnest.server.folders import Folders, sync_folder
from ravnest.server.service.problems import Refusal

_PIECE = 1 << 20
_SPARE_BYTES = 256 << 20
"""Of the disk, for the records and the system."""
_Answer = TypeVar("_Answer")


class Download(FileResponse):
    """A file, or the part of it that was asked for."""

    chunk_size = 1 << 18


class Files:
    def __init__(self, folders: Folders, *, most_bytes: int, quota_bytes: int) -> None:
        self._folders = folders
        self._most_bytes = most_bytes
        self._quota_bytes = quota_bytes
        self._threads = ThreadPoolExecutor(4, "files")
        self._receiving: dict[str, int] = {}
        """Files on their way, and how large they may still become."""
        self.held_bytes = 0

    def begin(self) -> None:
        """Throw away what was not complete when the server ended, and count what is there."""
        shutil.rmtree(self._folders.incoming, ignore_errors=True)
        self._folders.incoming.mkdir(parents=True)
        self.held_bytes = sum(path.stat().st_size for path in self._folders.blobs.glob("*/*"))

    def close(self) -> None:
        self._threads.shutdown()

    async def off_loop(self, do: Callable[..., _Answer], *arguments: object) -> _Answer:
        """Something that waits for the disk."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, do, *arguments)

    def has(self, sha256: str) -> bool:
        return self._folders.blob(sha256).is_file()

    def size(self, sha256: str) -> int | None:
        try:
            return self._folders.blob(sha256).stat().st_size
        except FileNotFoundError:
            return None

    async def receive_blob(self, sha256: str, size: int | None, body: AsyncIterator[bytes]) -> None:
        target = self._folders.blob(sha256)
        if target.is_file():
            async for _ in body:  # the sender may not expect an answer before it has said all
                pass
            return
        room = self._quota_bytes - self.held_bytes - sum(self._receiving.values())
        if size is not None and size > room:
            raise Refusal(
                "too_large",
                f"the server keeps at most {self._quota_bytes} bytes of files (--quota), and "
                f"{self.held_bytes} are taken; delete jobs that are not needed any more",
            )
        most = min(self._most_bytes, max(0, room))
        received = await self.receive(target, sha256, size, most, body)
        self.held_bytes += received

    async def receive(
        self,
        target: Path,
        sha256: str,
        size: int | None,
        most: int,
        body: AsyncIterator[bytes],
    ) -> int:
        """Its size, once the whole file is in its place."""
        if size is not None and size > most:
            raise Refusal("too_large", f"{size} bytes are more than the {most} allowed here")
        fresh = self._folders.fresh()
        free = (await self.off_loop(shutil.disk_usage, self._folders.root)).free
        if (size or 0) + _SPARE_BYTES > free:
            raise Refusal("too_large", "the disk of the server is full")
        self._receiving[fresh.name] = size or 0
        try:
            writer = _Writer(fresh)
            try:
                await self._take(writer, most, body)
            finally:
                await self.off_loop(writer.close)
            if size is not None and writer.size != size:
                raise Refusal("invalid", f"{writer.size} bytes came, {size} were announced")
            if writer.digest != sha256:
                raise Refusal("invalid", "what came does not have the hash that was announced")
            await self.off_loop(_put_in_place, fresh, target)
            return writer.size
        except ClientDisconnect:
            raise Refusal("invalid", "the sender went away in the middle") from None
        finally:
            del self._receiving[fresh.name]
            fresh.unlink(missing_ok=True)

    async def _take(self, writer: "_Writer", most: int, body: AsyncIterator[bytes]) -> None:
        waiting = bytearray()
        async for piece in body:
            waiting += piece
            if writer.size + len(waiting) > most:
                raise Refusal("too_large", f"more than the {most} bytes allowed here")
            if len(waiting) >= _PIECE:
                await self.off_loop(writer.write, bytes(waiting))
                waiting.clear()
        await self.off_loop(writer.write, bytes(waiting))

    def forget_old(self, needed: set[str], before: float) -> int:
        """Remove files that no job needs and that came before that moment; how many."""
        old = [p.name for p in self._folders.blobs.glob("*/*") if p.stat().st_mtime < before]
        return self.forget(set(old) - needed)

    def forget(self, hashes: set[str]) -> int:
        gone = 0
        for sha256 in hashes:
            path = self._folders.blob(sha256)
            with contextlib.suppress(FileNotFoundError):
                size = path.stat().st_size
                path.unlink()
                self.held_bytes -= size
                gone += 1
        return gone


class _Writer:
    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._hash.update(piece)
        self.size += len(piece)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def _put_in_place(fresh: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh.replace(target)
    sync_folder(target.parent)


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
