"""What people and programs see of the server: the dashboard, `ravnest status`, the JSON API.

`GET /api/v1/overview` is an `Overview`. `GET /api/v1/stream` (server-sent events) begins with the
event `overview` (the same) and goes on with `update` events, each a `Changes`: whoever applies them
in order has what a new `overview` would say. Details of one job: `/api/v1/jobs/{id}` (`JobDetail`),
`…/series` (`Series`), `…/timeline` (`Timeline`), `…/events` (list of `EventView`). Who is looking:
`/api/v1/whoami` (`Me`).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ravnest.api.limits import (
    MOST_PROVIDERS,
    MOST_REPORT,
    Bytes,
    Count,
    Figure,
    ProviderId,
    Report,
    Shown,
    Text,
    Warnings,
    short,
)

JobState = Literal[
    "waiting",
    "planning",
    "planned",
    "preparing",
    "running",
    "paused",
    "stopping",
    "fusing",
    "stopped",
    "done",
    "failed",
]
"""waiting: the pool cannot hold the model yet (see `reason`). planned: waits to be started.
preparing: providers fetch their parts. fusing: stages are put together. stopped: by request, can be
resumed."""
ENDED_JOBS: frozenset[JobState] = frozenset({"stopped", "done", "failed"})
ProviderState = Literal[
    "idle", "preparing", "ready", "training", "returning", "paused", "resting", "away"
]
"""away: registered, and not heard of at present."""


class ProviderView(Shown, frozen=True, kw_only=True):
    id: int
    name: str
    state: ProviderState
    since: float
    seen_at: float
    hostname: str = ""
    system: str = ""
    ravnest: str = ""
    torch: str = ""
    device: str = "cpu"
    device_name: str = ""
    cores: int = 1
    memory_bytes: int = 0
    """Offered for a stage, as plans have it."""
    memory_free_bytes: int = 0
    worker_memory_bytes: int = 0
    """Of the worker as a whole."""
    worker_limit_bytes: int = 0
    """What its owner offers: `memory_bytes`, and what Python and torch take beside the stage, if
    that is in the same memory."""
    cpu: float = 0.0
    gflops: float = 0.0
    rates: dict[str, float] = msgspec.field(default_factory=dict)
    """GFLOP/s in half precisions, by their names in jobs."""
    up_mbps: float = 0.0
    down_mbps: float = 0.0
    latency_ms: float = 0.0
    reachable: bool = False
    """Whether another provider, or the server, has reached it directly."""
    scripts: str = "never"
    no_sandbox: str = ""
    """Why foreign graphs run there without a sandbox; empty if they run in one."""
    hours: str | None = None
    job: str | None = None
    cluster: int | None = None
    stage: int | None = None
    measured: bool = False
    paused: bool = False
    """Gets no new work; what it is at goes on all the same."""

    @property
    def doing(self) -> str:
        """Its state in words: of one that is paused at work, both."""
        at_work = self.state in ("preparing", "ready", "training", "returning")
        return f"{self.state}, then paused" if self.paused and at_work else self.state


class StageView(Shown, frozen=True, kw_only=True):
    provider: int
    name: str
    role: str
    stage: int
    parameters: int
    memory_bytes: int
    """Predicted for the whole worker: its stage, and Python with torch."""
    state: str = ""
    """Of its assignment: assigned, prepared, training, ended, failed."""
    memory_used_bytes: int = 0
    busy: float = 0.0
    in_flight: int = 0
    updates: int = 0
    staleness: float = 0.0
    compute_s: float = 0.0
    """Predicted, per batch."""


class ClusterView(Shown, frozen=True, kw_only=True):
    id: int
    stages: tuple[StageView, ...]
    step: int = 0
    epoch: float = 0.0
    samples_per_second: float = 0.0
    loss: float | None = None


LinkKind = Literal["pipeline", "ring"]


class LinkView(Shown, frozen=True, kw_only=True):
    """Between two providers of a run; speeds are of the last few seconds."""

    source: int
    target: int
    kind: LinkKind
    path: Literal["direct", "relay", "unknown"]
    forward_bytes_per_s: float = 0.0
    """From source to target."""
    backward_bytes_per_s: float = 0.0
    measured_mbps: float = 0.0


class RingView(Shown, frozen=True, kw_only=True):
    id: Count
    first_parameter: Text
    bytes: Bytes
    providers: Annotated[tuple[ProviderId, ...], Meta(max_length=MOST_PROVIDERS)]


class RoundView(Shown, frozen=True, kw_only=True):
    ring: int
    number: int
    began: float
    ended: float
    members: int
    outcome: str


class PlanView(Shown, frozen=True, kw_only=True):
    """What the plan promises, before and beside what happens. A process at which a foreign model
    was at work has made it, so all of it has limits."""

    steps_per_s: Figure
    single_machine_steps_per_s: Figure
    batch_size: Count
    parameters: Count
    model: Text
    clusters: Count
    providers: Count
    idle: Annotated[tuple[tuple[ProviderId, Text], ...], Meta(max_length=MOST_PROVIDERS)] = ()
    """Provider id and why it is not used."""
    warnings: Warnings = ()
    report: Report = ""
    """The same report that `clusterize` prints."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "warnings", short(self.warnings))
        msgspec.structs.force_setattr(self, "report", self.report[:MOST_REPORT])


class JobView(Shown, frozen=True, kw_only=True):
    id: str
    name: str
    owner: str
    owner_role: str = "requester"
    """Of the token that it was submitted with: with the name, who may steer it (`Me.owns`)."""
    state: JobState
    reason: str = ""
    submitted_at: float
    began_at: float | None = None
    ended_at: float | None = None
    run: int = 0
    epoch: float = 0.0
    epochs: int = 1
    batch_size: int = 0
    """0: not known, of a job that an older release has taken."""
    step: int = 0
    samples_per_second: float = 0.0
    loss: float | None = None
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    """Of the last validation."""
    parameters: int = 0
    result_bytes: int = 0
    """Of the fused weights; 0 while there are none."""


class RunView(Shown, frozen=True, kw_only=True):
    job: str
    run: int
    clusters: tuple[ClusterView, ...]
    links: tuple[LinkView, ...]
    rings: tuple[RingView, ...]
    rounds: tuple[RoundView, ...] = ()
    """The last ones, at most 50."""


class EventView(Shown, frozen=True, kw_only=True):
    """Something that happened, and why."""

    number: int
    at: float
    level: Literal["info", "warning", "error"]
    text: str
    job: str | None = None
    provider: int | None = None


class ServerView(Shown, frozen=True, kw_only=True):
    name: str
    version: str
    started_at: float
    now: float
    providers: int
    heard: int
    """Of the providers, how many are connected."""
    memory_bytes: int
    """What those offer: the sum of their `worker_limit_bytes`."""
    gflops: float
    relayed_bytes: int = 0
    relayed_bytes_per_s: float = 0.0
    no_sandbox: str = ""
    """Why it looks at models without a sandbox; empty if it has one."""


class Overview(Shown, frozen=True, kw_only=True):
    server: ServerView
    providers: tuple[ProviderView, ...]
    jobs: tuple[JobView, ...]
    runs: tuple[RunView, ...]
    """Of the jobs that are at work."""
    events: tuple[EventView, ...]
    """The last ones, oldest first, at most 100."""


NewPoint = tuple[str, int, int, float, float, float | None]
"""Series, cluster, step, epoch, at, value."""


class Changes(Shown, frozen=True, kw_only=True):
    """What is different now: whole entries by id, and the ids of those that are gone."""

    server: ServerView
    providers: tuple[ProviderView, ...] = ()
    gone_providers: tuple[int, ...] = ()
    jobs: tuple[JobView, ...] = ()
    gone_jobs: tuple[str, ...] = ()
    runs: tuple[RunView, ...] = ()
    gone_runs: tuple[str, ...] = ()
    """Job ids."""
    events: tuple[EventView, ...] = ()
    points: dict[str, tuple[NewPoint, ...]] = msgspec.field(default_factory=dict)
    """Job id → new points of its curves."""


class Me(Shown, frozen=True, kw_only=True):
    """Who the server takes its caller for."""

    role: Literal["requester", "viewer", "operator", "provider", "onlooker"]
    """provider: with a token to join with. onlooker: without one, where that is allowed."""
    name: str

    @property
    def may_submit(self) -> bool:
        return self.role in ("requester", "operator")

    def owns(self, job: JobView) -> bool:
        """By the token it came with, or by a later one of the same name and role."""
        return self.may_submit and (self.role, self.name) == (job.owner_role, job.owner)


class JobDetail(Shown, frozen=True, kw_only=True):
    job: JobView
    plan: PlanView | None = None
    run: RunView | None = None
    files: int = 0
    bytes: int = 0


class Series(Shown, frozen=True, kw_only=True):
    """Curves of a job. Of a long run every n-th point is given, the last one always."""

    points: dict[str, tuple[tuple[float, ...], ...]]
    """`train/loss@0` (series and cluster) → (step, epoch, at, value)."""


class TimelineRow(Shown, frozen=True, kw_only=True):
    provider: int
    node: str
    cluster: int
    stage: int
    spans: tuple[tuple[str, int, int, float, float], ...]
    """kind, batch, part, start, end; seconds since 1970 by the server's clock."""


class Timeline(Shown, frozen=True, kw_only=True):
    """The last seconds of a run: who computed what when."""

    began: float
    ended: float
    rows: tuple[TimelineRow, ...]
