"""What an agent is to do next: the answers of `control.py`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ravnest.api.control import FromAgent, PeerAddress
from ravnest.api.work import Assignment, WorkEnd


@dataclass(frozen=True)
class Say:
    message: FromAgent


@dataclass(frozen=True)
class Pulse:
    """A heartbeat out of turn."""


@dataclass(frozen=True)
class Tell:
    """A line for whoever sits at this machine."""

    event: str
    text: str


Show = Callable[[str, str], None]
"""Gets the event and the text of what is told."""


@dataclass(frozen=True)
class KeepTime:
    """Heartbeats and reports so often; the server's clock is so far ahead of ours."""

    heartbeat_s: float
    report_s: float
    offset_s: float


@dataclass(frozen=True)
class MeasureLinks:
    """To the server, unless that has been done."""


@dataclass(frozen=True)
class RenewCertificate:
    """The one that other providers are shown, if it ends soon."""


@dataclass(frozen=True)
class RemoveOld:
    """Files of jobs that are not needed any more; those of `job`, which is at work, are."""

    job: str | None


@dataclass(frozen=True)
class ProbePeers:
    peers: tuple[PeerAddress, ...]


@dataclass(frozen=True)
class AdmitPeer:
    """On the port on which other providers may measure the line."""

    provider: int
    seconds: float


@dataclass(frozen=True)
class Prepare:
    """Fetch the files, find the paths."""

    assignment: Assignment


@dataclass(frozen=True)
class CancelPreparing:
    assignment: str


@dataclass(frozen=True)
class StartWorker:
    assignment: Assignment
    paused: bool = False


@dataclass(frozen=True)
class SteerWorker:
    assignment: str
    action: Literal["stop", "pause", "resume"]


@dataclass(frozen=True)
class EndWorker:
    """At once; what it has is lost. `worker_ended` follows."""

    assignment: str


@dataclass(frozen=True)
class BringBack:
    """Upload what the worker has saved; `brought_back` follows. `end` is for the record."""

    assignment: Assignment
    end: WorkEnd


@dataclass(frozen=True)
class CleanUp:
    """Nothing of this assignment is needed any more."""

    assignment: str
    failed: bool = False


@dataclass(frozen=True)
class AcceptCall:
    call: str
    caller: int
    assignment: str


@dataclass(frozen=True)
class Finish:
    """The agent ends; `problem` says why, unless it was asked to."""

    problem: str | None = None


Instruction = (
    Say
    | Pulse
    | Tell
    | KeepTime
    | MeasureLinks
    | RenewCertificate
    | RemoveOld
    | ProbePeers
    | AdmitPeer
    | Prepare
    | CancelPreparing
    | StartWorker
    | SteerWorker
    | EndWorker
    | BringBack
    | CleanUp
    | AcceptCall
    | Finish
)
