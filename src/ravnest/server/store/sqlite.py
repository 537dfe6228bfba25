"""Records in one SQLite file. A second server on the same file is refused.

If the disk is full, or somebody else holds the file, a backup for example, writing waits for a
while: whoever has filled it has to make room again.
"""

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ravnest.errors import ServerError
from ravnest.locks import only_one
from ravnest.server.changes import Batch, Event, Point
from ravnest.server.store.statements import MIGRATIONS, SCHEMA_VERSION, Statements

logger = logging.getLogger("ravnest.server")

_BUSY_S = 5.0
"""How long SQLite waits for somebody else by itself; nothing can interrupt it."""
ROOM_S = 60.0
"""How long room is waited for, and whoever holds the file."""
_PAUSE_S = 1.0
_PASSES = {
    sqlite3.SQLITE_FULL: "room on the disk",
    sqlite3.SQLITE_IOERR_SHMSIZE: "room on the disk",
    sqlite3.SQLITE_BUSY: "somebody else who has locked them",
}


class SqliteDatabase:
    """One connection. The writing one holds the lock of the file; others may read beside it."""

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self._path = path
        self._statements = Statements("?")
        self._hurried = threading.Event()
        with contextlib.ExitStack() as held:
            if writes:
                held.enter_context(self._locked())
            try:
                self._connection = sqlite3.connect(
                    path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
                )
                held.callback(self._connection.close)
                if writes:
                    self._prepare()
            except sqlite3.Error as error:
                raise ServerError(f"{path} cannot be used as a store: {error}") from error
            self._held = held.pop_all()

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return only_one(
            self._path.with_name(f"{self._path.name}.lock"),
            otherwise=ServerError(
                f"another server is running on {self._path}; stop it first, or give this one a "
                "folder of its own (--data DIR)"
            ),
        )

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA journal_mode = WAL")
        # What was acknowledged must survive a power cut; one sync serves many requests.
        execute("PRAGMA synchronous = FULL")
        version = execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise ServerError(
                f"{self._path} was written by a newer release (schema {version}, this one knows "
                f"{SCHEMA_VERSION}); use that release"
            )
        for number in range(version + 1, SCHEMA_VERSION + 1):
            execute("BEGIN IMMEDIATE")
            for statement in MIGRATIONS[number]:
                execute(statement)
            execute(f"PRAGMA user_version = {number}")
            execute("COMMIT")

    def carry_out(self, batch: Batch) -> None:
        deadline = time.monotonic() + ROOM_S
        while True:
            try:
                return self._carry_out(batch)
            except sqlite3.Error as error:
                late = time.monotonic() >= deadline
                awaited = _PASSES.get(getattr(error, "sqlite_errorcode", -1))
                if awaited is None or late:
                    raise
                logger.warning("the records wait for %s: %s", awaited, error)
                if self._hurried.wait(_PAUSE_S):
                    raise

    def _carry_out(self, batch: Batch) -> None:
        cursor = self._connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            self._statements.carry_out(cursor, batch)
            cursor.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _asked(self) -> Iterator[sqlite3.Cursor]:
        try:
            yield self._connection.cursor()
        except sqlite3.Error as error:
            raise ServerError(
                f"{self._path} cannot be read: {error}; if it is damaged, restore a backup"
            ) from error

    def records(self, kind: str) -> list[tuple[str, bytes]]:
        with self._asked() as cursor:
            return self._statements.records(cursor, kind)

    def record(self, kind: str, id: str) -> bytes | None:
        with self._asked() as cursor:
            return self._statements.record(cursor, kind, id)

    def last_numbers(self) -> tuple[int, int]:
        with self._asked() as cursor:
            return self._statements.last_numbers(cursor)

    def events(self, limit: int, job: str | None = None, before: int | None = None) -> list[Event]:
        with self._asked() as cursor:
            return self._statements.events(cursor, limit, job, before)

    def points(self, job: str, most: int) -> list[Point]:
        with self._asked() as cursor:
            return self._statements.points(cursor, job, most)

    def beside(self) -> "SqliteDatabase":
        return SqliteDatabase(self._path, writes=False)

    def expect(self, kind: str, id: str, body: bytes) -> None:
        """Nobody can put another file in the place of one that is open."""

    def hurry(self) -> None:
        self._hurried.set()

    def close(self) -> None:
        self._held.close()
