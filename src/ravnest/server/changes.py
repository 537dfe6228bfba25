"""What can be written to a store, as plain data; writing it twice does no harm."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from ravnest.api.limits import plain


class Put(msgspec.Struct, frozen=True, array_like=True):
    """A record takes the place of the one with its kind and id, if there is one."""

    kind: str
    id: str
    body: bytes
    """JSON."""


class Remove(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    id: str


class Event(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened; numbers are given once and only grow."""

    number: int
    at: float
    level: str
    text: str
    job: str | None = None
    provider: int | None = None


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A value of a curve of a job."""

    number: int
    job: str
    series: str
    cluster: int
    step: int
    epoch: float
    at: float
    value: float | None


class Forget(msgspec.Struct, frozen=True, array_like=True):
    """All points of a job."""

    job: str


def clean(text: str) -> str:
    """What every database can store and every terminal can show."""
    return plain(text.replace("\0", "")).encode("utf-8", "replace").decode()


Change = Put | Remove | Event | Point | Forget


@dataclass
class Batch:
    """Many changes as few statements: of several writes to a record only the last one counts."""

    records: dict[tuple[str, str], bytes | None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            match change:
                case Put():
                    self.records[change.kind, change.id] = change.body
                case Remove():
                    self.records[change.kind, change.id] = None
                case Event():
                    self.events.append(change)
                case Point():
                    self.points.append(change)
                case Forget():
                    self.points = [point for point in self.points if point.job != change.job]
                    self.forgotten.append(change.job)

    @property
    def is_empty(self) -> bool:
        return not (self.records or self.events or self.points or self.forgotten)

    @property
    def puts(self) -> list[tuple[str, str, str]]:
        return [
            (kind, id, body.decode())
            for (kind, id), body in self.records.items()
            if body is not None
        ]

    @property
    def removals(self) -> list[tuple[str, str]]:
        return [key for key, body in self.records.items() if body is None]
