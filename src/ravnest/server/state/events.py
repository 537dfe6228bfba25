"""What can happen to the server, as data."""

from typing import Literal

import msgspec

from ravnest.api.control import FromAgent, Hello
from ravnest.api.dialling import Ip
from ravnest.api.limits import FileRef
from ravnest.api.machine import Caps, MachineFacts
from ravnest.api.work import WorkEnd, WorkReport
from ravnest.server.state.records import Job, PlanFacts, Validation


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Started(Happening, frozen=True, kw_only=True):
    """The server has read its records."""


class ClockMoved(Happening, frozen=True, kw_only=True):
    """Somebody has set the clock, or the machine has slept: times that were noted before are not
    of the clock that is looked at now."""

    by_s: float
    """Ahead, or back."""


class EnrolledNow(Happening, frozen=True, kw_only=True):
    provider: int
    name: str
    digest: str
    facts: MachineFacts
    caps: Caps
    token: str = ""
    """Its id."""


class Connected(Happening, frozen=True, kw_only=True):
    provider: int
    hello: Hello
    source: Ip | None = None
    """Where it connects from; None if the server cannot know that."""
    """Where its agent connects from; by that it is judged what others may dial for it."""


class Disconnected(Happening, frozen=True, kw_only=True):
    provider: int
    reason: str = ""


class Heard(Happening, frozen=True, kw_only=True):
    """A message of an agent that is neither its first nor one of those below."""

    provider: int
    message: FromAgent


class WorkReported(Happening, frozen=True, kw_only=True):
    """A worker says how far it is."""

    provider: int
    assignment: str
    report: WorkReport


class Fetched(Happening, frozen=True, kw_only=True):
    """A provider has got a file of its part, or some of it."""

    provider: int
    assignment: str
    bytes: int


class NotHanded(Happening, frozen=True, kw_only=True):
    """A part that is not told to its provider: what the plan says about it cannot be read."""

    part: str
    reason: str


class PartEnded(Happening, frozen=True, kw_only=True):
    """A worker has ended; `results` are files that the server has looked at and found whole."""

    provider: int
    assignment: str
    end: WorkEnd
    results: tuple[FileRef, ...] = ()


class ProviderSteered(Happening, frozen=True, kw_only=True):
    provider: int
    action: Literal["pause", "resume", "remove", "leave"]
    by: str


class Submitted(Happening, frozen=True, kw_only=True):
    job: Job


class JobSteered(Happening, frozen=True, kw_only=True):
    job: str
    action: Literal["start", "stop", "pause", "continue", "resume", "delete"]
    by: str
    by_operator: bool = False


class PlanMade(Happening, frozen=True, kw_only=True):
    job: str
    attempt: int
    plan: PlanFacts


class PlanFailed(Happening, frozen=True, kw_only=True):
    job: str
    attempt: int
    reason: str
    hopeless: bool
    """Another pool would not help."""
    crashed: bool = False
    """It is not known whether there is a plan: the process died."""
    full: bool = False
    """The disk was: that is not the job's fault, and passes."""


class Fused(Happening, frozen=True, kw_only=True):
    job: str
    run: int
    bytes: int
    validation: Validation | None = None


class FusingFailed(Happening, frozen=True, kw_only=True):
    job: str
    run: int
    reason: str
    refused: bool = False
    """The stages make a model, and it is not good enough (`why_refused`)."""
    crashed: bool = False
    """Nothing is known about the stages: the process died."""
    full: bool = False
    """The disk was: that is not the job's fault, and passes."""
    stage: int | None = None
    """The one that is at fault, if it is one alone."""


class Noted(Happening, frozen=True, kw_only=True):
    """Something that people should know, and that nothing follows from."""

    level: Literal["info", "warning", "error"]
    text: str
    job: str | None = None
    provider: int | None = None


class LongAgo(Happening, frozen=True, kw_only=True):
    """What ended before that moment, and what nothing refers to any more, may be forgotten."""

    before: float


class Tick(Happening, frozen=True, kw_only=True):
    """A moment has come that was asked for."""


Event = (
    Started
    | ClockMoved
    | EnrolledNow
    | Connected
    | Disconnected
    | Heard
    | WorkReported
    | Fetched
    | NotHanded
    | PartEnded
    | ProviderSteered
    | Submitted
    | JobSteered
    | PlanMade
    | PlanFailed
    | Fused
    | FusingFailed
    | Noted
    | LongAgo
    | Tick
)
