"""Files of an assignment: fetched a few at a time, checked by size and hash; results sent back."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ravnest.agent.folders import AssignmentFolder
from ravnest.agent.keeping import KeptFiles
from ravnest.agent.machine import free_disk
from ravnest.agent.pacing import Bucket
from ravnest.agent.results import Results, most_bytes, results_in
from ravnest.api.limits import FileRef
from ravnest.api.work import Assignment
from ravnest.client.answers import AnswerError
from ravnest.client.http import BrokenOffError, HttpClient, hash_file
from ravnest.client.transfers import delay_s, download, upload
from ravnest.errors import JobError

_AT_ONCE = 3
_SPARE_DISK = 256 << 20
"""Left free beside the files; what a worker saves is as large as its package."""
_SERVER_AWAY_S = 600.0
"""Without a byte of any file; then a server that does not answer ends the fetching."""
_SOON, _LATER = 8, 10.0
"""So many attempts to bring results back follow soon, the others after ten times as long: each
sends a whole file."""
Share = Callable[[float], None]


class _Cancelled(Exception):  # noqa: N818 - never leaves this file
    pass


async def fetch(
    client: HttpClient,
    assignment: Assignment,
    folder: AssignmentFolder,
    kept: KeptFiles,
    *,
    on_share: Share,
    bucket: Bucket | None = None,
) -> None:
    """All files, each in its place. What is there already, or was kept of an earlier run of the
    job, is checked, not fetched again."""
    targets = [(file, folder.target(file.path)) for file in assignment.files]
    if len({target for _, target in targets}) != len(targets):
        raise JobError("the assignment has two files of the same name")
    total = sum(file.size for file, _ in targets)
    await asyncio.to_thread(_find_room, assignment, folder, kept)
    cancelled, lock, done = threading.Event(), threading.Lock(), 0
    deadline = time.monotonic() + _SERVER_AWAY_S

    def advance(size: int) -> None:
        nonlocal done, deadline
        if cancelled.is_set():
            raise _Cancelled
        with lock:
            done += size
            if size:
                deadline = time.monotonic() + _SERVER_AWAY_S
            on_share(min(1.0, done / max(1, total)))  # some bytes may have come twice

    def one(file: FileRef, target: Path) -> None:
        if target.is_file() and hash_file(target) == (file.sha256, file.size):
            kept.keep(assignment.job, file, target)
            advance(file.size)
            return
        if kept.put(assignment.job, file, target):
            advance(file.size)
            return
        before = failures = 0

        def progress(so_far: int) -> None:
            nonlocal before, failures
            before, new = so_far, max(0, so_far - before)
            failures = 0
            advance(new)
            if bucket is not None:
                cancelled.wait(bucket.take(new))

        path = f"/assignments/{assignment.id}/files/{file.sha256}"
        while True:
            try:
                download(
                    client,
                    path,
                    target,
                    sha256=file.sha256,
                    size=file.size,
                    progress=progress,
                    attempts=1,
                )
                kept.keep(assignment.job, file, target)
                return
            except (BrokenOffError, AnswerError) as error:
                # The server may be starting anew.
                late = time.monotonic() > deadline
                if not _passes(error) or late or cancelled.wait(delay_s(failures)):
                    raise
                failures += 1

    await _few_at_a_time([lambda pair=pair: one(*pair) for pair in targets], cancelled)  # type: ignore[misc]


def _find_room(assignment: Assignment, folder: AssignmentFolder, kept: KeptFiles) -> None:
    kept.expect(assignment.job, assignment.files)
    missing = results = 0
    for file in assignment.files:
        if file.path.startswith("package/"):
            results += file.size
        target = folder.target(file.path)
        here = target.is_file() and target.stat().st_size == file.size
        if not here and not kept.has(assignment.job, file):
            missing += file.size
    needed = missing + results + _SPARE_DISK
    if needed > free_disk(folder.path):
        kept.make_room(assignment.job)
    free = free_disk(folder.path)
    if needed > free:
        # No fault of the job: there may be room another day.
        raise OSError(f"not enough disk: {needed >> 20} MB are needed, {free >> 20} MB are free")


async def _few_at_a_time(acts: list[Callable[[], None]], cancelled: threading.Event) -> None:
    gate = asyncio.Semaphore(_AT_ONCE)
    threads: list[asyncio.Task[None]] = []

    async def gated(act: Callable[[], None]) -> None:
        async with gate:
            if not cancelled.is_set():
                threads.append(asyncio.create_task(asyncio.to_thread(act)))
                await asyncio.shield(threads[-1])

    tasks = [asyncio.create_task(gated(act)) for act in acts]
    try:
        await asyncio.gather(*tasks)
    finally:
        # Threads cannot be ended from outside: they are told, and waited for.
        cancelled.set()
        await asyncio.gather(*tasks, *threads, return_exceptions=True)


def _passes(error: BrokenOffError | AnswerError) -> bool:
    return isinstance(error, BrokenOffError) or error.passes


async def bring_back(
    client: HttpClient,
    assignment: Assignment,
    folder: AssignmentFolder,
    *,
    on_delay: Callable[[str], None] = lambda _: None,
    bucket: Bucket | None = None,
) -> tuple[FileRef, ...]:
    """What the worker has saved, until all of it is there: a server that is away, or cannot take it
    now, is waited for. `on_delay` gets the reason, in a thread."""
    cancelled = threading.Event()

    def send(results: Results, name: str) -> FileRef:
        sent = 0

        def progress(so_far: int) -> None:
            nonlocal sent
            if cancelled.is_set():
                raise _Cancelled
            sent, new = so_far, so_far - sent
            if bucket is not None:
                cancelled.wait(bucket.take(max(0, new)))

        path = f"/assignments/{assignment.id}/results/{name}"
        failures = 0
        while True:
            try:
                with results.open(name) as file:
                    sha256, size = upload(client, path, file, progress=progress, attempts=1)
                return FileRef(path=name, sha256=sha256, size=size)
            except (BrokenOffError, AnswerError) as error:
                if not _passes(error):
                    raise
                on_delay(str(error))
                longer = 1.0 if failures < _SOON else _LATER
                if cancelled.wait(delay_s(failures) * longer):
                    raise
                failures += 1

    try:
        with results_in(folder.package) as results:
            names = await asyncio.to_thread(_checked, results, most_bytes(assignment))
            return tuple([await asyncio.to_thread(send, results, name) for name in names])
    finally:
        cancelled.set()


def _checked(results: Results, most: int) -> list[str]:
    names = results.names()
    if (found := sum(map(results.size, names))) > most:
        raise JobError(
            f"the worker has saved {found >> 20} MB, at most {most >> 20} MB are expected"
        )
    return names
