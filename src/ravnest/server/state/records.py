"""What the server keeps of providers, jobs, runs and parts of runs; each is a JSON record."""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from ravnest.api.jobs import JobSpec
from ravnest.api.limits import (
    MOST_PROVIDERS,
    Count,
    Figure,
    FileRef,
    Positive,
    ProviderId,
    Text,
    Word,
)
from ravnest.api.machine import Caps, Figures, MachineFacts, Precision
from ravnest.api.views import JobState
from ravnest.api.work import WorkEnd

RunState = Literal["preparing", "running", "paused", "stopping", "fusing", "over"]
PartState = Literal["assigned", "prepared", "training", "ended", "failed", "dropped"]
GRAPH = "graph.json"
OPEN: frozenset[PartState] = frozenset({"assigned", "prepared", "training"})


class Record(msgspec.Struct, kw_only=True):
    """Changed in place, written as a whole."""

    kind: ClassVar[str]
    key_fields: ClassVar[tuple[str, ...]] = ("id",)
    """Those that tell it from all others of its kind."""

    @property
    def key(self) -> str:
        return "/".join(str(getattr(self, name)) for name in self.key_fields)


class Provider(Record, kw_only=True):
    kind: ClassVar[str] = "provider"

    id: int
    name: str
    digest: str
    """Of the secret in its credential; empty once it was removed."""
    facts: MachineFacts
    caps: Caps
    token: str = ""
    """Id of the token it enrolled with; of some that enrolled long ago it is not known."""
    awaited_since: float | None = None
    """From its enrolment to its first connection."""
    figures: Figures | None = None
    paused: bool = False
    """By request from elsewhere; its own pauses it tells by its state."""
    leaves: bool = False
    """It is to be removed once its work has ended."""
    removed: bool = False
    """Kept for a while all the same: others may have worked with it."""
    removed_at: float = 0.0


class PlannedPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan gives to one provider."""

    provider: ProviderId
    node: Word
    cluster: Count
    stage: Count
    role: Literal["Root", "Stem", "Leaf"]
    parameters: Count = 0
    memory_bytes: Count = 0
    compute_s: Figure = 0.0


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Of a plan, what the server decides by; the rest is in the run's folder."""

    run: Count
    parts: Annotated[tuple[PlannedPart, ...], Meta(max_length=MOST_PROVIDERS)]
    parameters: Count = 0
    clusters: Positive = 1
    steps_per_s: Figure = 0.0


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """How fused weights do on rows that were held out of training."""

    rows: Count = 0
    """0: they were not judged, see `note`."""
    loss: float | None = None
    """None: not a finite number; so below."""
    last_loss: float | None = None
    """Of the last good fusion, on the same rows."""
    untrained_loss: float | None = None
    """Of the weights that the model came with."""
    not_finite: Text = ""
    """A tensor in which there are such numbers."""
    note: Text = ""


class Job(Record, kw_only=True):
    kind: ClassVar[str] = "job"

    id: str
    name: str
    owner: str
    """Id of the token it was submitted with."""
    owner_name: str
    owner_role: str = "requester"
    submission: str = ""
    """What its requester calls the submission: sent again, it is still this job."""
    submission_digest: str = ""
    """By which it is known whether it is the same that is sent again."""
    submitted_at: float
    state: JobState = "waiting"
    reason: str = ""
    began_at: float | None = None
    ended_at: float | None = None
    epochs: int
    batch_size: int = 0
    precision: Precision | None = None
    max_providers: int | None = None
    max_runs: int = 3
    has_script: bool = False
    asked: bool = True
    """Training may begin as soon as there is a plan."""
    stop_wanted: bool = False
    run: int = 0
    """The last one that was begun."""
    plan: PlanFacts | None = None
    """Made and not begun yet."""
    lost_runs: int = 0
    """In a row, without progress in between."""
    cause: str = ""
    """Of the first of those."""
    plan_crashes: int = 0
    """In a row: processes that died over its plan."""
    refused: dict[int, str] = msgspec.field(default_factory=dict)
    """Providers that do not take this job, and what they said."""
    left_out: dict[int, str] = msgspec.field(default_factory=dict)
    """Providers that failed at this job while others were there to do it, and how."""
    excused: list[int] = msgspec.field(default_factory=list)
    """Those whose failure was not counted as a lost run; it is not a second time."""
    graph: str = ""
    """SHA-256 of the file that holds the model's graph."""
    epochs_done: int = 0
    fused_run: int = 0
    """Whose weights are in the result; 0 is none yet."""
    result_bytes: int = 0
    curves: tuple[str, ...] = ()
    """What they may be called; () is whatever workers say: a script has names of its own."""
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    parameters: int = 0
    files: int = 0
    bytes: int = 0

    @classmethod
    def of(
        cls, id: str, spec: JobSpec, owner: str, owner_name: str, owner_role: str, now: float
    ) -> "Job":
        files = spec.files()
        return cls(
            id=id,
            name=spec.name,
            owner=owner,
            owner_name=owner_name,
            owner_role=owner_role,
            submitted_at=now,
            epochs=spec.training.epochs,
            batch_size=spec.training.batch_size,
            precision=spec.training.precision,
            max_providers=spec.planning.max_providers,
            max_runs=spec.planning.max_runs,
            has_script=spec.script is not None,
            graph=next((file.sha256 for file in spec.model if file.path == GRAPH), ""),
            asked=spec.start == "at once",
            files=len(files),
            bytes=sum(file.size for file in files.values()),
        )


class Killer(Record, kw_only=True):
    """A graph of an owner that has killed workers. Kept apart from jobs: neither resuming a job nor
    deleting it and submitting the graph again makes the graph harmless."""

    kind: ClassVar[str] = "killer"
    key_fields: ClassVar[tuple[str, ...]] = ("owner", "graph")

    owner: str
    graph: str
    workers: dict[int, str] = msgspec.field(default_factory=dict)
    """Providers whose workers it has killed, by a signal or for their memory, and how."""
    last_at: float = 0.0

    @classmethod
    def of(cls, job: Job) -> "Killer":
        """Jobs of earlier releases did not note their graph."""
        return cls(owner=f"{job.owner_role}:{job.owner_name}", graph=job.graph or job.id)


class Run(Record, kw_only=True):
    kind: ClassVar[str] = "run"
    key_fields: ClassVar[tuple[str, ...]] = ("job", "number")

    job: str
    number: int
    state: RunState = "preparing"
    began_at: float
    clusters: int = 1
    training_at: float | None = None
    stopped_at: float | None = None
    """When it was told to end."""
    ended_at: float | None = None
    lost: bool = False
    cause: str = ""
    secondhand: bool = False
    """The cause is what another provider says of it."""
    excused: bool = False
    """It was lost by a provider that the next one does without."""
    departing: str = ""
    """Why it is stopped in good order to go on without somebody."""
    fuses: int | None = None
    """The cluster whose stages are put together."""
    unfusible: list[int] = msgspec.field(default_factory=list)
    """Clusters whose stages were brought back and do not make a model."""
    fusing_crashes: int = 0
    """In a row: processes that died over the cluster that is put together."""


class Part(Record, kw_only=True):
    """One provider's part of a run; its assignment, without the bulk of it."""

    kind: ClassVar[str] = "part"

    id: str
    job: str
    run: int
    provider: int
    node: str
    cluster: int
    stage: int
    role: str
    parameters: int = 0
    memory_bytes: int = 0
    compute_s: float = 0.0
    state: PartState = "assigned"
    reason: str = ""
    relayed: tuple[int, ...] = ()
    end: WorkEnd | None = None
    ended_at: float | None = None
    results: tuple[FileRef, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def has_results(self) -> bool:
        return (
            self.state == "ended"
            and self.end is not None
            and self.end.saved
            and any(file.path == "trained.json" for file in self.results)
        )


def node_name(provider: int) -> str:
    return f"node_{provider}"


def part_id(job: str, run: int, provider: int) -> str:
    return f"{job}-{run}-{provider}"
