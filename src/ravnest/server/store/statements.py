"""The tables and statements that SQLite and PostgreSQL share, and how a batch is carried out.

`{p}` stands for a place where a value goes; the two write it differently.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from ravnest.server.changes import Batch, Event, Point

SCHEMA_VERSION = 1
MOST_EVENTS = 200_000
"""Older ones are forgotten, now and then."""
_PRUNE_EVERY = 1000

MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: (
        "CREATE TABLE ravnest_records (kind TEXT NOT NULL, id TEXT NOT NULL, body TEXT NOT NULL, "
        "PRIMARY KEY (kind, id))",
        "CREATE TABLE ravnest_events (number BIGINT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, "
        "level TEXT NOT NULL, text TEXT NOT NULL, job TEXT, provider BIGINT)",
        "CREATE INDEX ravnest_events_job ON ravnest_events (job, number)",
        "CREATE TABLE ravnest_points (number BIGINT PRIMARY KEY, job TEXT NOT NULL, "
        "series TEXT NOT NULL, cluster BIGINT NOT NULL, step BIGINT NOT NULL, "
        "epoch DOUBLE PRECISION NOT NULL, at DOUBLE PRECISION NOT NULL, value DOUBLE PRECISION)",
        "CREATE INDEX ravnest_points_job ON ravnest_points (job, series, cluster, number)",
    ),
}
"""What leads from the version before to this one. A released one is never changed again."""

_PUT = (
    "INSERT INTO ravnest_records (kind, id, body) VALUES ({p}, {p}, {p}) "
    "ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body"
)
_REMOVE = "DELETE FROM ravnest_records WHERE kind = {p} AND id = {p}"
_EVENT = (
    "INSERT INTO ravnest_events (number, at, level, text, job, provider) "
    "VALUES ({p}, {p}, {p}, {p}, {p}, {p}) ON CONFLICT (number) DO NOTHING"
)
_POINT = (
    "INSERT INTO ravnest_points (number, job, series, cluster, step, epoch, at, value) "
    "VALUES ({p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}) ON CONFLICT (number) DO NOTHING"
)
_FORGET = "DELETE FROM ravnest_points WHERE job = {p}"
_PRUNE = "DELETE FROM ravnest_events WHERE number <= {p}"
_RECORDS = "SELECT id, body FROM ravnest_records WHERE kind = {p} ORDER BY id"
_ONE = "SELECT body FROM ravnest_records WHERE kind = {p} AND id = {p}"
_LAST = (
    "SELECT COALESCE((SELECT MAX(number) FROM ravnest_events), 0), "
    "COALESCE((SELECT MAX(number) FROM ravnest_points), 0)"
)
_EVENTS = "SELECT number, at, level, text, job, provider FROM ravnest_events"
_CURVES = (
    "SELECT series, cluster, COUNT(*), MAX(number) FROM ravnest_points WHERE job = {p} "
    "GROUP BY series, cluster"
)
# Every n-th point, counted from the beginning, and the last one. Which these are is in the index:
# of the others, which may be a million, nothing is read.
_CURVE = (
    "SELECT number, job, series, cluster, step, epoch, at, value FROM ravnest_points "
    "WHERE number IN (SELECT number FROM (SELECT number, ROW_NUMBER() OVER (ORDER BY number) "
    "AS place FROM ravnest_points WHERE job = {p} AND series = {p} AND cluster = {p}) AS placed "
    "WHERE (place - 1) % {p} = 0 OR number = {p})"
)


class Cursor(Protocol):
    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Any: ...
    def executemany(self, statement: str, values: Sequence[Sequence[Any]], /) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Statements:
    """Carries out changes and questions on an open cursor; transactions are the caller's."""

    def __init__(self, place: str) -> None:
        # Doubled where % has a meaning of its own.
        remainder = "%%" if place == "%s" else "%"
        self._text = {
            text: text.replace("%", remainder).replace("{p}", place)
            for text in (
                *(_PUT, _REMOVE, _EVENT, _POINT, _FORGET, _PRUNE),
                *(_RECORDS, _ONE, _LAST, _CURVES, _CURVE),
            )
        }
        self._place = place

    def carry_out(self, cursor: Cursor, batch: Batch) -> None:
        for job in batch.forgotten:
            cursor.execute(self._text[_FORGET], (job,))
        for statement, rows in (
            (_PUT, batch.puts),
            (_REMOVE, batch.removals),
            (_EVENT, [_row(event) for event in batch.events]),
            (_POINT, [_row(point) for point in batch.points]),
        ):
            if rows:
                cursor.executemany(self._text[statement], rows)
        if batch.events:
            before, last = batch.events[0].number - 1, batch.events[-1].number
            # Whoever writes several at once need not end with a round number.
            if before // _PRUNE_EVERY < last // _PRUNE_EVERY:
                cursor.execute(self._text[_PRUNE], (last - MOST_EVENTS,))

    def records(self, cursor: Cursor, kind: str) -> list[tuple[str, bytes]]:
        cursor.execute(self._text[_RECORDS], (kind,))
        return [(id, body.encode()) for id, body in cursor.fetchall()]

    def record(self, cursor: Cursor, kind: str, id: str) -> bytes | None:
        cursor.execute(self._text[_ONE], (kind, id))
        found = cursor.fetchall()
        return found[0][0].encode() if found else None

    def last_numbers(self, cursor: Cursor) -> tuple[int, int]:
        cursor.execute(self._text[_LAST])
        event, point = cursor.fetchall()[0]
        return event, point

    def events(
        self, cursor: Cursor, limit: int, job: str | None, before: int | None
    ) -> list[Event]:
        """The last ones, oldest first."""
        conditions, values = [], []
        for condition, value in (("job =", job), ("number <", before)):
            if value is not None:
                conditions.append(f"{condition} {self._place}")
                values.append(value)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        statement = f"{_EVENTS}{where} ORDER BY number DESC LIMIT {self._place}"
        cursor.execute(statement, (*values, limit))
        return [Event(*row) for row in reversed(cursor.fetchall())]

    def points(self, cursor: Cursor, job: str, most: int) -> list[Point]:
        """At most about `most` of every curve, in the order in which they came."""
        found: list[Point] = []
        cursor.execute(self._text[_CURVES], (job,))
        for series, cluster, total, last in cursor.fetchall():
            every = -(-total // most)
            cursor.execute(self._text[_CURVE], (job, series, cluster, every, last))
            found += [Point(*row) for row in cursor.fetchall()]
        return sorted(found, key=lambda point: point.number)


def _row(value: Event | Point) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in value.__struct_fields__)
