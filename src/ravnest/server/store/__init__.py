"""Records that survive whatever happens to the server: by kind and id, as JSON; events; curves.

Everything is written by one thread. Requests that come while it is at the disk share the next
transaction, so a thousand small writes cost a few syncs. What is told to be written is on disk when
the future is done, not before. Reading happens on another connection and another thread.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from ravnest.errors import ServerError
from ravnest.server.changes import Batch, Change, Event, Point
from ravnest.server.store.postgres import PostgresDatabase
from ravnest.server.store.sqlite import SqliteDatabase

_MOST_TOGETHER = 2000
_Answer = TypeVar("_Answer")
_Item = tuple[Sequence[Change], Future[None]]


class Reading(Protocol):
    """What can be asked of a database."""

    def records(self, kind: str) -> list[tuple[str, bytes]]: ...
    def record(self, kind: str, id: str) -> bytes | None: ...
    def last_numbers(self) -> tuple[int, int]: ...
    def events(
        self, limit: int, job: str | None = None, before: int | None = None
    ) -> list[Event]: ...
    def points(self, job: str, most: int) -> list[Point]: ...


class Database(Reading, Protocol):
    """A connection that holds the lock, and carries out a batch in one transaction."""

    def carry_out(self, batch: Batch) -> None: ...
    def beside(self) -> "Database": ...
    def expect(self, kind: str, id: str, body: bytes) -> None:
        """By this record it is recognised if the connection has to be made anew."""
        ...

    def hurry(self) -> None:
        """From any thread: whatever it waits for now or later, it waits no more."""
        ...

    def close(self) -> None: ...


class Store:
    """A database, used from many sides at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading = database.beside()
        self._reader = ThreadPoolExecutor(1, "store-reader")
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._write_all, name="store-writer", daemon=True)
        self._thread.start()

    def write(self, changes: Sequence[Change]) -> Future[None]:
        """Done when all of these are on disk; they get there together, in the order of calls."""
        done: Future[None] = Future()
        # It is written also if nobody waits for it any more: nothing can cancel it.
        done.set_running_or_notify_cancel()
        self._queue.put((changes, done))
        return done

    def ask(self, question: Callable[[Reading], _Answer]) -> Future[_Answer]:
        """An answer about what has been committed."""
        return self._reader.submit(question, self._reading)

    def expect(self, kind: str, id: str, body: bytes) -> None:
        """From now on a database without this record is another one, and not written to."""
        self._database.expect(kind, id, body)
        self._reading.expect(kind, id, body)

    def hurry(self) -> None:
        """The server is about to end: nobody is waited for who has to come back or to make room."""
        self._database.hurry()
        self._reading.hurry()

    def close(self) -> None:
        """Everything that was told before this is written first, if it can be in a hurry."""
        self.hurry()
        self._queue.put(None)
        self._thread.join()
        self._reader.shutdown()
        self._reading.close()
        self._database.close()

    def _write_all(self) -> None:
        open = True
        while open:
            items, open = self._next()
            if items:
                self._write_together(items)

    def _next(self) -> tuple[list[_Item], bool]:
        """Whatever waits now, at least one; and whether more may come."""
        items: list[_Item] = []
        item = self._queue.get()
        while item is not None:
            items.append(item)
            if len(items) == _MOST_TOGETHER:
                return items, True
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return items, True
        return items, False

    def _write_together(self, items: list[_Item]) -> None:
        if self._broken is None:
            batch = Batch()
            for changes, _ in items:
                batch.add(changes)
            try:
                if not batch.is_empty:
                    self._database.carry_out(batch)
            except Exception as error:
                # From here on memory and disk differ: nothing more may be acknowledged.
                self._broken = error
        for _, done in items:
            if self._broken is None:
                done.set_result(None)
            else:
                done.set_exception(ServerError(f"the store has failed: {self._broken}"))


def open_store(url: str | Path) -> Store:
    """A path or `sqlite:///path`, or `postgresql://…`."""
    text = str(url)
    if text.startswith(("postgresql://", "postgres://")):
        return Store(PostgresDatabase(text))
    path = text.removeprefix("sqlite:///")
    if "://" in path:
        scheme = path.partition("://")[0]
        raise ServerError(
            f"--store begins with {scheme}://; known are sqlite:///PATH and postgresql://…"
        )
    return Store(SqliteDatabase(Path(path)))
