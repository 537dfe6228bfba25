"""Records in a PostgreSQL database. A second server on the same database is refused.

A connection that breaks is made again; since a batch may be carried out twice without harm, it
does not matter whether the server had committed it.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ravnest.errors import ServerError
from ravnest.server.changes import Batch, Event, Point
from ravnest.server.store.statements import MIGRATIONS, SCHEMA_VERSION, Statements

logger = logging.getLogger("ravnest.server")

LOCK = 0x7261766E657374
"""An advisory lock is a number; this one is "ravnest"."""
_LOCK_WAIT_S = 3.0
RECONNECT_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0

_Answer = TypeVar("_Answer")


class PostgresDatabase:
    """One connection; the writing one holds the lock."""

    def __init__(self, url: str, *, writes: bool = True) -> None:
        self._url = url
        self._writes = writes
        self._statements = Statements("%s")
        self._hurried = threading.Event()
        self._psycopg = _psycopg()
        self._connection = self._connect()

    def _connect(self) -> Any:
        try:
            connection = self._psycopg.connect(self._url, autocommit=True, connect_timeout=10)
        except self._psycopg.Error as error:
            # The URL holds a password; what psycopg says does not.
            raise ServerError(f"PostgreSQL cannot be reached: {error}") from error
        try:
            if self._writes:
                self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Any) -> None:
        cursor = connection.cursor()
        # PostgreSQL may need a moment to notice that the server before this one is dead.
        cursor.execute(f"SET lock_timeout = {int(_LOCK_WAIT_S * 1000)}")
        try:
            cursor.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        except self._psycopg.errors.LockNotAvailable:
            raise ServerError(
                "another server is running on this database; stop it first, or give this one a "
                "database of its own (--store URL)"
            ) from None
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

    def carry_out(self, batch: Batch) -> None:
        def once(connection: Any) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                self._statements.carry_out(cursor, batch)

        self._persistently(once)

    def _persistently(self, do: Callable[[Any], _Answer]) -> _Answer:
        """With a new connection if the old one is gone, until it has taken too long."""
        deadline, pause_s = time.monotonic() + RECONNECT_S, _FIRST_PAUSE_S
        while True:
            try:
                if self._connection.closed:
                    self._connection = self._connect()
                return do(self._connection)
            except (self._psycopg.OperationalError, ServerError) as error:
                late = time.monotonic() + pause_s > deadline
                if not self._connection.closed or late or self._hurried.wait(pause_s):
                    raise
                logger.warning("PostgreSQL is gone, trying again: %s", error)
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

    def hurry(self) -> None:
        self._hurried.set()

    def close(self) -> None:
        self._connection.close()


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise ServerError(
            "a store in PostgreSQL needs psycopg: pip install 'psycopg[binary]'"
        ) from None
    return psycopg
