"""Files by content: received as a stream, checked, kept under the hash of their bytes.

A file is under its name only when all of it is there and its hash is right. Disk work happens on a
few threads that all requests share.
"""

import asyncio
import contextlib
import hashlib
import math
import os
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from starlette.requests import ClientDisconnect

from ravnest.server.folders import Folders
from ravnest.server.room import leave_room
from ravnest.server.service.problems import Refusal
from ravnest.whole import make_folder, sync_folder

_PIECE, _LEAST_PIECE = 1 << 20, 64 << 10
"""Bytes of a file that are gathered before they are written: fewer, if many files come at once,"""
_PIECES = 64 << 20
"""so that those of all files are about so many."""
_AHEAD = 1 << 20
"""Bytes of the quota that a file has beyond those that have come, if so many were announced."""
_LOOK_EVERY = 8 << 20
"""Bytes of a file between two looks at how full the disk is."""
_Answer = TypeVar("_Answer")
_placing = threading.Lock()


class Files:
    def __init__(self, folders: Folders, *, most_bytes: int, quota_bytes: int) -> None:
        self._folders = folders
        self._most_bytes = most_bytes
        self._quota_bytes = quota_bytes
        self._threads = ThreadPoolExecutor(4, "files")
        self._receiving: dict[str, int] = {}
        """Files on their way, and how many bytes of the quota each has: those that have come, and
        a few more. Who only announces many keeps nobody from anything."""
        self._looking, self._counting = threading.Lock(), threading.Lock()
        self._blob_bytes = 0
        self._job_bytes: dict[str, int] = {}
        """What was made for each job, and brought back."""

    @property
    def held_bytes(self) -> int:
        """Of the quota."""
        with self._counting:
            return self._blob_bytes + sum(self._job_bytes.values())

    def begin(self) -> None:
        """Count what is there."""
        blobs = sum(found.st_size for _, found in self._blobs())
        with self._counting:
            self._blob_bytes = blobs
        for folder in self._folders.jobs.iterdir():
            self.count_job(folder.name)

    def count_job(self, job: str) -> None:
        """After a process has made something for this job, or all of a run was removed: looks at
        every file. Waits for the disk."""
        with self._looking:  # the last one to look has seen the last change
            size = self._folders.own_bytes(job)
            with self._counting:
                self._job_bytes[job] = size
                if not size:
                    del self._job_bytes[job]

    def change_job(self, job: str, change: Callable[[], int]) -> None:
        """Add single files to those of a job, or remove some: `change` does it, and says how many
        bytes more there are. Never while they are being looked at. Waits for the disk."""
        with self._looking:
            more = change()
            with self._counting:
                self._job_bytes[job] = self._job_bytes.get(job, 0) + more

    def close(self) -> None:
        self._threads.shutdown()

    async def off_loop(self, do: Callable[..., _Answer], *arguments: object) -> _Answer:
        """Something that waits for the disk."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, do, *arguments)

    def size(self, sha256: str) -> int | None:
        try:
            return self._folders.blob(sha256).stat().st_size
        except FileNotFoundError:
            return None

    def touch(self, sha256: str) -> int | None:
        """Its size; whoever asks for it needs it, so from now on it is as good as new. Waits for
        the disk, and for whoever removes a large file."""
        with _placing:
            with contextlib.suppress(OSError):
                now = time.time_ns()  # that of the file system may be some milliseconds behind
                os.utime(self._folders.blob(sha256), ns=(now, now))
            return self.size(sha256)

    async def receive_blob(self, sha256: str, size: int | None, body: AsyncIterator[bytes]) -> None:
        target = self._folders.blob(sha256)
        if await self.off_loop(self.touch, sha256) is not None:
            come = 0
            async for piece in body:  # the sender may expect no answer before it has said all
                come += len(piece)
                if come > self._most_bytes:
                    raise Refusal("too_large", f"more than the {self._most_bytes} bytes allowed")
            return
        await self.receive(target, sha256, size, self._most_bytes, body)

    async def receive(
        self,
        target: Path,
        sha256: str,
        size: int | None,
        most: int,
        body: AsyncIterator[bytes],
        *,
        job: str = "",
        before_it_is_kept: Callable[[], None] = lambda: None,
    ) -> int:
        """Its size, once the whole file is in its place, and counted: for the job whose result it
        is, or among those that were handed in.

        `before_it_is_kept` may still refuse it when all of it is there.
        """
        if size is not None and size > most:
            raise Refusal("too_large", f"{size} bytes are more than the {most} allowed here")
        fresh = self._folders.fresh()
        self._look_for_quota(fresh.name, size or 0, job)
        self._receiving[fresh.name] = min(size or 0, _AHEAD)
        try:
            await self._leave_room(size or 0)
            await self._receive(fresh, sha256, size, most, body, job)
            before_it_is_kept()
            received = fresh.stat().st_size
            place = partial(_put_in_place, fresh, target)
            if job:
                await self.off_loop(self.change_job, job, place)
            else:
                await self.off_loop(lambda: self._count_blob(place()))
            await self.off_loop(sync_folder, target.parent)
            return received
        except ClientDisconnect:
            raise Refusal("invalid", "the sender went away in the middle") from None
        finally:
            self._receiving.pop(fresh.name, None)
            fresh.unlink(missing_ok=True)

    async def _receive(
        self,
        fresh: Path,
        sha256: str,
        size: int | None,
        most: int,
        body: AsyncIterator[bytes],
        job: str,
    ) -> None:
        writer = _Writer(fresh)
        try:
            await self._take(writer, fresh.name, size, most, body, job)
        finally:
            await self.off_loop(writer.close)
        if size is not None and writer.size != size:
            raise Refusal("invalid", f"{writer.size} bytes came, {size} were announced")
        if writer.digest != sha256:
            raise Refusal("invalid", "what came does not have the hash that was announced")

    def _count_blob(self, size: int) -> None:
        """Files come in the event loop and are removed on threads."""
        with self._counting:
            self._blob_bytes += size

    def _look_for_quota(self, name: str, size: int, job: str) -> None:
        """A `Refusal` if there are not so many bytes of it for this file."""
        coming = sum(taken for other, taken in self._receiving.items() if other != name)
        taken = self.held_bytes + coming
        if taken + size > self._quota_bytes:
            # A result is not to be given up for that: its sender comes again.
            raise Refusal(
                "full" if job else "too_large",
                f"the server keeps at most {self._quota_bytes} bytes of files (--quota), and "
                f"{taken} are taken, {coming} of them by files on their way; delete jobs that are "
                "not needed any more",
            )

    async def _leave_room(self, size: int) -> None:
        try:
            await self.off_loop(leave_room, self._folders.root, size)
        except OSError as error:
            raise Refusal("full", str(error.strerror)) from error

    async def _take(
        self,
        writer: "_Writer",
        name: str,
        size: int | None,
        most: int,
        body: AsyncIterator[bytes],
        job: str,
    ) -> None:
        waiting = bytearray()
        unlooked = 0
        async for piece in body:
            waiting += piece
            come = writer.size + len(waiting)
            if come > most:
                raise Refusal("too_large", f"more than the {most} bytes allowed here")
            if come > self._receiving[name]:
                wanted = max(come, min(size or 0, come + _AHEAD))
                self._look_for_quota(name, wanted, job)
                self._receiving[name] = wanted
            if len(waiting) >= min(_PIECE, max(_LEAST_PIECE, _PIECES // len(self._receiving))):
                unlooked += len(waiting)
                if unlooked >= _LOOK_EVERY:
                    # Others write to this disk as well, and some do not say how much will come.
                    await self._leave_room(unlooked)
                    unlooked = 0
                await self.off_loop(writer.write, bytes(waiting))
                waiting.clear()
        await self.off_loop(writer.write, bytes(waiting))

    def forget_old(self, needed: set[str], before: float) -> int:
        """Remove files that no job needs and that came before that moment; how many."""
        old = {name for name, found in self._blobs() if found.st_mtime < before}
        return self.forget(old - needed, before)

    def _blobs(self) -> Iterator[tuple[str, os.stat_result]]:
        """Whatever else people have put there, such as links that lead nowhere, is left alone."""
        for path in self._folders.blobs.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if stat.S_ISREG(found.st_mode):
                    yield path.name, found

    def forget(self, hashes: set[str], before: float = math.inf) -> int:
        """Remove those that nobody has handed in or asked for since that moment; how many."""
        gone = 0
        for sha256 in hashes:
            path = self._folders.blob(sha256)
            with contextlib.suppress(FileNotFoundError), _placing:
                found = path.stat()
                if found.st_mtime < before:
                    path.unlink()
                    self._count_blob(-found.st_size)
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


def _put_in_place(fresh: Path, target: Path) -> int:
    """How many bytes more there are: of several at once that are the same, exactly one is told."""
    make_folder(target.parent)
    with _placing:
        before = target.stat().st_size if target.is_file() else 0
        size = fresh.stat().st_size
        fresh.replace(target)
    return size - before


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
