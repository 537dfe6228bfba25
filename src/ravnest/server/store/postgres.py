"""Records in a PostgreSQL database. A second server on the same database is refused.

A connection that breaks, or on which no answer comes, is made again; since a batch may be carried
out twice without harm, it does not matter whether the server had committed it. What it does after
it was given up cannot undo anything: as long as it is at it, it holds the lock.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ravnest.errors import ServerError
from ravnest.server.changes import Batch, Event, Point
from ravnest.server.store.statements import MIGRATIONS, SCHEMA_VERSION, Statements
from ravnest.server.store.watch import Watch

logger = logging.getLogger("ravnest.server")

LOCK = 0x7261766E657374
"""An advisory lock is a number; this one is "ravnest"."""
_LOCK_WAIT_S = 3.0
_LOCKED_S = 10.0
"""How long a statement waits for whoever has locked the tables, VACUUM FULL for example."""
_CONNECT_S = 10
ANSWER_S = 30.0
"""How long an answer is waited for before the connection is given up;"""
_HURRIED_S = 5.0
"""and when the server is being ended."""
RECONNECT_S = 60.0
"""How long it is tried again, all in all."""
_PASSES = ("40", "53", "55P03", "57014")
"""States, or classes of them, that pass: deadlocks; no room, memory or connections; a lock that
somebody has; a statement that somebody has cancelled."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0

_Answer = TypeVar("_Answer")


class _AnotherError(ServerError):
    """It will not become the right one by being asked again."""


class PostgresDatabase:
    """One connection; the writing one holds the lock."""

    def __init__(self, url: str, *, writes: bool = True) -> None:
        self._url = url
        self._writes = writes
        self._statements = Statements("%s")
        self._hurried = threading.Event()
        self._psycopg = _psycopg()
        self._watch = Watch("PostgreSQL")
        self._line: socket.socket | None = None
        self._expected: tuple[str, str, bytes] | None = None
        try:
            self._connection = self._connect()
        except BaseException:
            self._watch.close()
            raise

    def _connect(self) -> Any:
        if self._line is not None:
            self._line.close()
        try:
            connection = self._psycopg.connect(
                self._url, autocommit=True, connect_timeout=_CONNECT_S
            )
            # Another descriptor of the same socket: the library may close its own at any time.
            self._line = socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)
            try:
                with self._watch.within(ANSWER_S, self._line):
                    self._prepare(connection)
            except BaseException:
                connection.close()
                self._line.close()
                raise
        except self._psycopg.Error as error:
            # The URL holds a password; what psycopg says does not.
            raise ServerError(f"PostgreSQL cannot be reached: {error}") from error
        return connection

    def _prepare(self, connection: Any) -> None:
        cursor = connection.cursor()
        if self._writes:
            self._take_lock(cursor)
        cursor.execute(f"SET lock_timeout = {int(_LOCKED_S * 1000)}")
        if self._expected is not None:
            self._recognise(cursor, *self._expected)
        elif self._writes:
            self._migrate(connection, cursor)

    def _take_lock(self, cursor: Any) -> None:
        # PostgreSQL may need a moment to notice that the server before this one is dead.
        cursor.execute(f"SET lock_timeout = {int(_LOCK_WAIT_S * 1000)}")
        try:
            cursor.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        except self._psycopg.errors.LockNotAvailable:
            raise ServerError(
                "another server is running on this database; stop it first, or give this one a "
                "database of its own (--store URL)"
            ) from None

    def _migrate(self, connection: Any, cursor: Any) -> None:
        with connection.transaction():
            cursor.execute("CREATE TABLE IF NOT EXISTS ravnest_schema (version INTEGER NOT NULL)")
            cursor.execute("SELECT MAX(version) FROM ravnest_schema")
            version = cursor.fetchone()[0] or 0
            if version > SCHEMA_VERSION:
                raise ServerError(
                    f"this database was written by a newer release (schema {version}, this one "
                    f"knows {SCHEMA_VERSION}); use that release"
                )
            for number in range(version + 1, SCHEMA_VERSION + 1):
                for statement in MIGRATIONS[number]:
                    cursor.execute(statement)
                cursor.execute("INSERT INTO ravnest_schema (version) VALUES (%s)", (number,))

    def _recognise(self, cursor: Any, kind: str, id: str, body: bytes) -> None:
        try:
            found = self._statements.record(cursor, kind, id)
        except self._psycopg.errors.UndefinedTable:
            found = None
        if found != body:
            raise _AnotherError(
                "PostgreSQL is back with another database than the one that was begun with (it "
                "was made anew, or restored); restore what belongs to this server, and start it"
            )

    def carry_out(self, batch: Batch) -> None:
        def once(connection: Any) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                self._statements.carry_out(cursor, batch)

        self._persistently(once)

    def _persistently(self, do: Callable[[Any], _Answer]) -> _Answer:
        """Again if it may go better, with a new connection if the old one is gone, until it has
        taken too long."""
        deadline, pause_s = time.monotonic() + RECONNECT_S, _FIRST_PAUSE_S
        while True:
            try:
                if self._connection.closed:
                    self._connection = self._connect()
                assert self._line is not None
                with self._watch.within(ANSWER_S, self._line):
                    return do(self._connection)
            except _AnotherError:
                raise
            except (self._psycopg.OperationalError, ServerError) as error:
                late = time.monotonic() + pause_s > deadline
                passes = self._connection.closed or _passes(error)
                if not passes or late or self._hurried.wait(pause_s):
                    raise
                gone = "is gone" if self._connection.closed else "cannot do this now"
                logger.warning("PostgreSQL %s, trying again: %s", gone, error)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _ask(self, question: Callable[[Any], _Answer]) -> _Answer:
        def once(connection: Any) -> _Answer:
            with connection.cursor() as cursor:
                return question(cursor)

        return self._persistently(once)

    def records(self, kind: str) -> list[tuple[str, bytes]]:
        return self._ask(lambda cursor: self._statements.records(cursor, kind))

    def record(self, kind: str, id: str) -> bytes | None:
        return self._ask(lambda cursor: self._statements.record(cursor, kind, id))

    def last_numbers(self) -> tuple[int, int]:
        return self._ask(self._statements.last_numbers)

    def events(self, limit: int, job: str | None = None, before: int | None = None) -> list[Event]:
        return self._ask(lambda cursor: self._statements.events(cursor, limit, job, before))

    def points(self, job: str, most: int) -> list[Point]:
        return self._ask(lambda cursor: self._statements.points(cursor, job, most))

    def beside(self) -> "PostgresDatabase":
        return PostgresDatabase(self._url, writes=False)

    def expect(self, kind: str, id: str, body: bytes) -> None:
        self._expected = kind, id, body

    def hurry(self) -> None:
        self._hurried.set()
        self._watch.hurry(_HURRIED_S)

    def close(self) -> None:
        self._watch.close()
        self._connection.close()
        if self._line is not None:
            self._line.close()


def _passes(error: Exception) -> bool:
    """Whether it may go better another time, on the same connection."""
    return (getattr(error, "sqlstate", None) or "").startswith(_PASSES)


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise ServerError(
            "a store in PostgreSQL needs psycopg: pip install 'psycopg[binary]'"
        ) from None
    return psycopg
