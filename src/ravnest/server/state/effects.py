"""What follows from an event: records to keep, instructions for the service, words for people."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from ravnest.api.control import FromServer
from ravnest.plan import ProviderSpec
from ravnest.server.changes import Change, Event, Forget, Put, Remove
from ravnest.server.state.records import Record

Level = Literal["info", "warning", "error"]


class Instruction(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Send(Instruction, frozen=True, kw_only=True):
    """To an agent, if it is connected; it will be told anew when it next says hello."""

    provider: int
    message: FromServer


class Hand(Instruction, frozen=True, kw_only=True):
    """Send the assignment of this part, which the service has in the run's folder."""

    provider: int
    part: str


class Close(Instruction, frozen=True, kw_only=True):
    """The connection of an agent, with these last words."""

    provider: int
    reason: str
    final: bool


class MakePlan(Instruction, frozen=True, kw_only=True):
    job: str
    attempt: int
    run: int
    pool: tuple[ProviderSpec, ...]
    fused_run: int
    """Begin from the result of this run; 0 is the model as it was handed in."""
    epochs_done: int


class DropPlan(Instruction, frozen=True, kw_only=True):
    """The plan that is being made for this job is not wanted any more."""

    job: str


class Fuse(Instruction, frozen=True, kw_only=True):
    job: str
    run: int
    cluster: int


class Discard(Instruction, frozen=True, kw_only=True):
    """The files of a job that was deleted."""

    job: str


class Wake(Instruction, frozen=True, kw_only=True):
    """Say `Tick` at this moment, at the latest."""

    at: float


Order = Send | Hand | Close | MakePlan | DropPlan | Fuse | Discard | Wake


@dataclass
class Effects:
    """In the order in which they were decided."""

    orders: list[Order] = field(default_factory=list)
    notes: list[Event] = field(default_factory=list)
    providers: set[int] = field(default_factory=set)
    """Those that look different now; jobs alike."""
    jobs: set[str] = field(default_factory=set)
    _saved: dict[tuple[str, str], Record | None] = field(default_factory=dict)
    _forgotten: list[str] = field(default_factory=list)
    _changes: list[Change] | None = None

    def save(self, record: Record) -> None:
        self._saved[record.kind, record.key] = record

    def remove(self, kind: str, key: str) -> None:
        self._saved[kind, key] = None

    def forget(self, job: str) -> None:
        self._forgotten.append(job)

    def seal(self) -> None:
        """The records as they are now; whatever happens to them later is another event."""
        self._changes = [Forget(job) for job in self._forgotten]
        for (kind, id), record in self._saved.items():
            body = None if record is None else msgspec.json.encode(record)
            self._changes.append(Remove(kind, id) if body is None else Put(kind, id, body))
        self._changes += self.notes

    @property
    def changes(self) -> list[Change]:
        assert self._changes is not None, "not sealed"
        return self._changes
