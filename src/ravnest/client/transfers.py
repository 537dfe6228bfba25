"""Files to and from a server, each told by the hash of its content.

A download goes into a file beside its place, is taken up where it broke off, and is moved into
place when its hash is right: whoever finds a file there finds all of it. `progress` is called with
the bytes so far and may raise to end the transfer; a download can be taken up again later.
"""

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path

from ravnest.client.http import BrokenOffError, HttpClient, hash_file
from ravnest.errors import ServerError

Progress = Callable[[int], None]
PIECE_BYTES = 256 << 10
ATTEMPTS = 6
"""In a row without a byte that came through; whoever asks for one only tries again itself."""
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.5, 20.0


def upload(
    client: HttpClient,
    path: str,
    file: Path | BufferedReader,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
    attempts: int = ATTEMPTS,
) -> tuple[str, int]:
    """PUT a file, with its hash (computed if it is not known); returns hash and size."""
    known, size = _told(file, sha256)
    headers = {"X-Sha256": known, "Content-Length": str(size)}
    for attempt in range(attempts):
        try:
            with client.open("PUT", path, content=_pieces(file, progress), headers=headers):
                return known, size
        except BrokenOffError:
            if attempt + 1 == attempts or client.closed.wait(delay_s(attempt)):
                raise
    raise AssertionError("the last attempt returns or raises")


def upload_blob(
    client: HttpClient,
    file: Path,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> tuple[str, int]:
    """A file for a job, sent only if the server does not have its content yet."""
    known, size = (sha256, file.stat().st_size) if sha256 else hash_file(file)
    if client.exists(f"/blobs/{known}"):
        if progress is not None:
            progress(size)
        return known, size
    return upload(client, f"/blobs/{known}", file, sha256=known, progress=progress)


def download(
    client: HttpClient,
    path: str,
    target: Path,
    *,
    sha256: str | None = None,
    size: int | None = None,
    progress: Progress | None = None,
    attempts: int = ATTEMPTS,
    **query: str | int,
) -> None:
    """GET a file. Without `sha256` it must say its hash itself (header X-Sha256) to be checked."""
    part = target.with_name(target.name + ".part")
    if sha256 is None:
        part.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    was_there = part.exists()
    try:
        _Download(client, path, part, sha256, size, progress, query).run(attempts)
    except _OtherContentError:
        if not was_there:
            raise
        # What an earlier call has left was no beginning of it: a disk without power loses bytes.
        _Download(client, path, part, sha256, size, progress, query).run(attempts)
    part.replace(target)


class _OtherContentError(ServerError):
    pass


class _Download:
    """What is known of a file while it comes; `run` until all of it is there."""

    def __init__(
        self,
        client: HttpClient,
        path: str,
        part: Path,
        sha256: str | None,
        size: int | None,
        progress: Progress | None,
        query: dict[str, str | int],
    ) -> None:
        self._client, self._path, self._part = client, path, part
        self._sha256, self._size = sha256, size
        self._progress, self._query = progress, query
        self._tag: str | None = None
        self._hash = hashlib.sha256()
        self._done = 0
        if part.exists():
            self._take_up()

    def _take_up(self) -> None:
        if self._size is not None and self._part.stat().st_size > self._size:
            self._part.unlink()
            return
        with self._part.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                self._hash.update(piece)
                self._done += len(piece)

    def _from_the_start(self) -> None:
        self._hash = hashlib.sha256()
        self._done = 0

    def run(self, attempts: int) -> None:
        failures, before = 0, -1
        while True:
            try:
                self._go_on()
                break
            except BrokenOffError:
                failures = 1 if self._done > before else failures + 1
                before = self._done
                if failures == attempts or self._client.closed.wait(delay_s(failures - 1)):
                    raise
        self._check()

    def _go_on(self) -> None:
        if self._size is not None and self._done == self._size and self._part.exists():
            return
        headers = {}
        if self._done:
            headers["Range"] = f"bytes={self._done}-"
            if self._tag:
                # Another content under the same name must not become the rest of this one.
                headers["If-Range"] = self._tag
        with self._client.open(
            "GET", self._path, query=self._query, headers=headers, accept={416}
        ) as answer:
            if answer.status_code == 416:
                self._part.unlink(missing_ok=True)
                self._from_the_start()
                raise BrokenOffError(f"{self._client.address}: {self._path} is shorter than before")
            if answer.status_code != 206:
                self._from_the_start()
            self._tag = answer.headers.get("ETag", self._tag)
            self._sha256 = self._sha256 or answer.headers.get("X-Sha256")
            with self._part.open("ab" if self._done else "wb") as file:
                # As they come: to gather more of them would take as long as the server likes, and
                # `progress` is where a transfer can be ended.
                for piece in answer.iter_bytes():
                    self._done += len(piece)
                    if self._size is not None and self._done > self._size:
                        raise ServerError(f"{self._path} is larger than the {self._size} announced")
                    file.write(piece)
                    self._hash.update(piece)
                    if self._progress is not None:
                        self._progress(self._done)

    def _check(self) -> None:
        right_size = self._size is None or self._done == self._size
        if right_size and self._sha256 in (None, self._hash.hexdigest()):
            return
        self._part.unlink()
        raise _OtherContentError(
            f"{self._path} came from {self._client.address} with another content than announced "
            f"({self._done} bytes); nothing of it is kept"
        )


def _told(file: Path | BufferedReader, sha256: str | None) -> tuple[str, int]:
    """Hash and size."""
    if isinstance(file, Path):
        return (sha256, file.stat().st_size) if sha256 else hash_file(file)
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


def _from_the_start(
    file: Path | BufferedReader,
) -> contextlib.AbstractContextManager[BufferedReader]:
    if isinstance(file, Path):
        return file.open("rb")
    file.seek(0)
    return contextlib.nullcontext(file)


def _pieces(file: Path | BufferedReader, progress: Progress | None) -> Iterator[bytes]:
    done = 0
    with _from_the_start(file) as opened:
        while piece := opened.read(PIECE_BYTES):
            yield piece
            done += len(piece)
            if progress is not None:
                progress(done)


def delay_s(attempt: int) -> float:
    """Before the next attempt: longer every time, and never the same for many at once."""
    longest: float = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0**attempt)
    return longest * random.uniform(0.5, 1.0)
