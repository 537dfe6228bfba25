"""Files by content: received as a stream, checked, kept under the hash of their bytes, for each
owner apart; and how much of them there may be: in all, of one owner, and beside a reserve for
results.

A file is under its name only when all of it is there and its hash is right. Disk work happens on a
few threads that all requests share.
"""

import asyncio
import contextlib
import errno
import hashlib
import math
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from starlette.requests import ClientDisconnect

from ravnest.server.folders import Folders, blob_key
from ravnest.server.room import SPARE_BYTES, leave_room
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


@dataclass(frozen=True)
class Quota:
    """How many bytes of files the server keeps."""

    total_bytes: int = 1 << 40
    owner_bytes: int | None = None
    """Of one owner: what was handed in, plans and results. Operators have no share of their own."""
    reserve_bytes: int = 0
    """Of the total and of the disk, for what comes back: nothing that is handed in takes it."""


@dataclass(frozen=True)
class _Whose:
    """For whom a file comes."""

    owner: str
    job: str = ""
    """Whose result it is; empty for a file that is handed in."""
    has_share: bool = True


class Files:
    def __init__(
        self,
        folders: Folders,
        *,
        most_bytes: int,
        quota: Quota,
        owner_of: Callable[[str], str] = lambda job: "",
    ) -> None:
        """`owner_of` is whose a job is."""
        self._folders = folders
        self._most_bytes = most_bytes
        self.quota = quota
        self._owner_of = owner_of
        self._threads = ThreadPoolExecutor(4, "files")
        self._receiving: dict[str, tuple[str, int]] = {}
        """Files on their way: their owner, and how many bytes of the quota each has: those that
        have come, and a few more. An announced size takes nothing of the quota."""
        self._looking, self._counting = threading.Lock(), threading.Lock()
        self._blob_bytes: Counter[str] = Counter()
        """By owner."""
        self._job_bytes: dict[str, int] = {}
        """What was made for each job, and brought back."""

    @property
    def held_bytes(self) -> int:
        """Of the quota."""
        with self._counting:
            return self._blob_bytes.total() + sum(self._job_bytes.values())

    def held_by(self, owner: str) -> int:
        """Of the share of this owner."""
        with self._counting:
            jobs = [size for job, size in self._job_bytes.items() if self._owner_of(job) == owner]
            return self._blob_bytes[owner] + sum(jobs)

    def must_be_within_share(self, owner: str) -> None:
        """An `OSError` of the kind that a full disk is, if this owner has more than its share."""
        held, most = self.held_by(owner), self.quota.owner_bytes
        if most is not None and held > most:
            raise OSError(
                errno.EDQUOT,
                f"this owner's jobs hold {held} bytes, more than the {most} that one owner may "
                "have (--owner-quota); delete jobs that are not needed any more",
            )

    def begin(self) -> None:
        """Count what is there."""
        blobs: Counter[str] = Counter()
        for key, found in self._blobs():
            blobs[key.partition("/")[0]] += found.st_size
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

    def size(self, key: str) -> int | None:
        try:
            return self._folders.blob(key).stat().st_size
        except FileNotFoundError:
            return None

    def touch(self, key: str) -> int | None:
        """Its size; whoever asks for it needs it, so from now on it is as good as new. Waits for
        the disk, and for whoever removes a large file."""
        with _placing:
            with contextlib.suppress(OSError):
                now = time.time_ns()  # that of the file system may be some milliseconds behind
                os.utime(self._folders.blob(key), ns=(now, now))
            return self.size(key)

    async def receive_blob(
        self,
        owner: str,
        sha256: str,
        size: int | None,
        body: AsyncIterator[bytes],
        *,
        has_share: bool = True,
    ) -> None:
        """A file that is handed in. Only what this owner has uploaded before is not kept again."""
        key = blob_key(owner, sha256)
        if await self.off_loop(self.touch, key) is not None:
            come = 0
            async for piece in body:  # the sender may expect no answer before it has said all
                come += len(piece)
                if come > self._most_bytes:
                    raise Refusal("too_large", f"more than the {self._most_bytes} bytes allowed")
            return
        whose = _Whose(owner, has_share=has_share)
        await self._into(self._folders.blob(key), sha256, size, self._most_bytes, body, whose)

    async def receive_result(
        self,
        job: str,
        target: Path,
        sha256: str,
        size: int | None,
        most: int,
        body: AsyncIterator[bytes],
        *,
        has_share: bool = True,
        before_it_is_kept: Callable[[], None] = lambda: None,
    ) -> int:
        """Its size, once it is in its place. `before_it_is_kept` may still refuse it when all of it
        is there."""
        whose = _Whose(self._owner_of(job), job, has_share)
        return await self._into(target, sha256, size, most, body, whose, before_it_is_kept)

    async def _into(
        self,
        target: Path,
        sha256: str,
        size: int | None,
        most: int,
        body: AsyncIterator[bytes],
        whose: _Whose,
        before_it_is_kept: Callable[[], None] = lambda: None,
    ) -> int:
        if size is not None and size > most:
            raise Refusal("too_large", f"{size} bytes are more than the {most} allowed here")
        fresh = self._folders.fresh()
        self._look_for_quota(fresh.name, size or 0, whose)
        self._receiving[fresh.name] = whose.owner, min(size or 0, _AHEAD)
        try:
            await self._leave_room(size or 0, whose)
            await self._receive(fresh, sha256, size, most, body, whose)
            before_it_is_kept()
            received = fresh.stat().st_size
            place = partial(_put_in_place, fresh, target)
            if whose.job:
                await self.off_loop(self.change_job, whose.job, place)
            else:
                await self.off_loop(lambda: self._count_blob(whose.owner, place()))
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
        whose: _Whose,
    ) -> None:
        writer = _Writer(fresh)
        try:
            await self._take(writer, fresh.name, size, most, body, whose)
        finally:
            await self.off_loop(writer.close)
        if size is not None and writer.size != size:
            raise Refusal("invalid", f"{writer.size} bytes came, {size} were announced")
        if writer.digest != sha256:
            raise Refusal("invalid", "what came does not have the hash that was announced")

    def _count_blob(self, owner: str, size: int) -> None:
        """Files come in the event loop and are removed on threads."""
        with self._counting:
            self._blob_bytes[owner] += size

    def _look_for_quota(self, name: str, size: int, whose: _Whose) -> None:
        """A `Refusal` if there are not so many bytes of it for this file."""
        others = [each for other, each in self._receiving.items() if other != name]
        coming = sum(taken for _, taken in others)
        taken, most = self.held_bytes + coming, self.quota.total_bytes
        kept = "" if whose.job else f" beside {self.quota.reserve_bytes} for results (--reserve)"
        own = sum(n for owner, n in others if owner == whose.owner)
        if whose.job:
            self._look_for_balance(size, whose, own, most - taken)
        else:
            most -= self.quota.reserve_bytes
            self._look_for_share(size, whose, own)
        if taken + size > most:
            # A result is not to be given up for that: its sender comes again.
            raise Refusal(
                "full" if whose.job else "too_large",
                f"the server keeps at most {most} bytes of files (--quota){kept}, and "
                f"{taken} are taken, {coming} of them by files on their way; delete jobs that are "
                "not needed any more",
            )

    def _look_for_share(self, size: int, whose: _Whose, coming: int) -> None:
        share = self.quota.owner_bytes
        held = self.held_by(whose.owner)
        if whose.has_share and share is not None and held + coming + size > share:
            raise Refusal(
                "too_large",
                f"one owner may have {share} bytes of files on this server (--owner-quota); yours "
                f"are {held}, {coming} more are on their way, and this file would add {size}: "
                "delete jobs that you do not need any more (ravnest job delete)",
            )

    def _look_for_balance(self, size: int, whose: _Whose, coming: int, free: int) -> None:
        """What results take beyond the share of their owner is no more than they leave free (a
        dynamic threshold, as switches have for their buffers): whatever the machines of some owners
        bring back, those of another one find room."""
        share = self.quota.owner_bytes
        if not whose.has_share or share is None:
            return
        beyond = self.held_by(whose.owner) + coming + size - share
        if beyond > 0 and beyond > free - size:
            raise Refusal(
                "full",
                f"results of this owner's jobs would be {beyond} bytes beyond its share of {share} "
                f"(--owner-quota), which is more than they would leave of the {free} bytes that "
                "are free; delete jobs of this owner that are not needed any more",
            )

    async def _leave_room(self, size: int, whose: _Whose) -> None:
        spare = SPARE_BYTES if whose.job else SPARE_BYTES + self.quota.reserve_bytes
        try:
            await self.off_loop(leave_room, self._folders.root, size, spare)
        except OSError as error:
            raise Refusal("full", str(error.strerror)) from error

    async def _take(
        self,
        writer: "_Writer",
        name: str,
        size: int | None,
        most: int,
        body: AsyncIterator[bytes],
        whose: _Whose,
    ) -> None:
        waiting = bytearray()
        unlooked = 0
        async for piece in body:
            waiting += piece
            come = writer.size + len(waiting)
            if come > most:
                raise Refusal("too_large", f"more than the {most} bytes allowed here")
            if come > self._receiving[name][1]:
                wanted = max(come, min(size or 0, come + _AHEAD))
                self._look_for_quota(name, wanted, whose)
                self._receiving[name] = whose.owner, wanted
            if len(waiting) >= min(_PIECE, max(_LEAST_PIECE, _PIECES // len(self._receiving))):
                unlooked += len(waiting)
                if unlooked >= _LOOK_EVERY:
                    # Others write to this disk as well, and some do not say how much will come.
                    await self._leave_room(unlooked, whose)
                    unlooked = 0
                await self.off_loop(writer.write, bytes(waiting))
                waiting.clear()
        await self.off_loop(writer.write, bytes(waiting))

    def forget_old(self, needed: set[str], before: float) -> int:
        """Remove files that no job needs and that came before that moment; how many."""
        old = {key for key, found in self._blobs() if found.st_mtime < before}
        return self.forget(old - needed, before)

    def _blobs(self) -> Iterator[tuple[str, os.stat_result]]:
        """Whatever else people have put there, such as links that lead nowhere, is left alone."""
        for path in self._folders.blobs.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if stat.S_ISREG(found.st_mode):
                    yield blob_key(path.parent.name, path.name), found

    def forget(self, keys: set[str], before: float = math.inf) -> int:
        """Remove those that nobody has handed in or asked for since that moment; how many."""
        gone = 0
        for key in keys:
            path = self._folders.blob(key)
            with contextlib.suppress(FileNotFoundError), _placing:
                found = path.stat()
                if found.st_mtime < before:
                    path.unlink()
                    self._count_blob(key.partition("/")[0], -found.st_size)
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
