"""A provider's part of a run: what the server hands to the agent, and the agent to the worker."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ravnest.api.jobs import DataSpec, Recipe, ScriptSpec, TrainingSpec
from ravnest.api.limits import (
    Address,
    Count,
    Figure,
    FileRef,
    Identifier,
    Name,
    Positive,
    ProviderId,
    Reasoned,
    Seconds,
    Series,
    Strict,
    Text,
    Word,
)

WORKER_OVERHEAD_BYTES = 400 << 20
"""What a worker takes before it holds anything of a model: Python, torch, the network. Plans do not
count it; whatever measures a worker as a whole does."""


DEVICE_CONTEXT_BYTES = 600 << 20
"""What a GPU's libraries take of its memory before there is anything of a model. Of the machine's
they take `DEVICE_WORKER_BYTES`, Python and torch included."""
DEVICE_WORKER_BYTES = 2 << 30


def offered_bytes(for_a_stage: int, device_memory_bytes: int) -> int:
    """Memory as its owner counts it, who caps it: all that a worker takes of it, on the device if
    that has memory of its own."""
    beside = DEVICE_CONTEXT_BYTES if device_memory_bytes else WORKER_OVERHEAD_BYTES
    return for_a_stage + beside


ALLOWED_OPERATORS = "RAVNEST_ALLOW_OPERATORS"
"""Variable: operators that the owner of a machine allows, with commas between their names. Set by
`--allow-operator` of `ravnest join` and `ravnest server` for the processes that they start."""
STOPPED_WITHIN_S = 900.0
"""How long a worker may take to save and end after it was told to stop. It ends a validation that
it has begun; those of the other stages wait for that."""


MOST_METRICS = 256
MOST_LINKS, MOST_SPANS, MOST_ROUNDS, MOST_POINTS, MOST_NOTES = 256, 2000, 1000, 2000, 50
"""Of one report."""


class RowRange(Strict, frozen=True, kw_only=True):
    """Rows [first, first + rows) of a dataset, inside the listed shards."""

    first: Count
    """Counted from the beginning of the first listed shard."""
    rows: Count


class DataPart(Strict, frozen=True, kw_only=True):
    """What of a dataset one provider holds: some fields, some shards, of those a range of rows.

    Root and Leaf of a cluster have the same range: the Root of the fields that are inputs, the Leaf
    of those that are targets.
    """

    data: DataSpec
    """Cut down to the shards and fields that the provider gets; file paths lie under data/."""
    range: RowRange


class Neighbour(Strict, frozen=True, kw_only=True):
    """Another provider of the run that this one will talk to."""

    provider: ProviderId
    node: Word
    plan_address: Address
    """What plan and documents call it: provider-7:1."""
    addresses: Annotated[tuple[Address, ...], Meta(max_length=16)] = ()
    """Where it may be reached directly."""


class Assignment(Strict, frozen=True, kw_only=True):
    """One provider's part of one run, complete but for the bytes of its files."""

    id: Identifier
    job: Identifier
    job_name: Name
    run: Positive
    provider: ProviderId
    node: Word
    cluster: Count
    clusters: Positive
    stage: Count
    stages: Positive
    role: Literal["Root", "Stem", "Leaf"]
    memory_bytes: Count
    """Predicted peak of this stage."""
    files: Annotated[tuple[FileRef, ...], Meta(max_length=1_000_000)]
    """node.json (the node document), package/…, data/train/…, data/validation/…, script.py."""
    neighbours: Annotated[tuple[Neighbour, ...], Meta(max_length=100_000)] = ()
    train: DataPart | None = None
    train_rows: Count = 0
    """Of its cluster, in an epoch; on every provider: a Stem, which gets no data, must know how
    many updates an epoch has where the learning rate changes with each. 0: those in `train`."""
    validation: DataPart | None = None
    """Only cluster 0 validates."""
    validates: bool = False
    """On every provider of the cluster that does."""
    recipe: Recipe | None = None
    script: ScriptSpec | None = None
    training: TrainingSpec
    epochs_done: Count = 0
    """By earlier runs, whose weights are in the package."""


class WorkOrder(Strict, frozen=True, kw_only=True):
    """What the agent adds for the worker: places on this machine. Written to order.json."""

    assignment: Assignment
    listen: Address
    routes: dict[str, Address]
    """Plan address → where to dial."""
    device: Text = "cpu"
    threads: Positive = 1
    bandwidth_mbps: Figure | None = None
    memory_bytes: Count = 0
    """Most that the worker may take; 0 is no limit."""
    device_share: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Of the device's memory, that torch may take."""
    report_s: Figure = 1.0
    clock_offset_s: float = 0.0
    """What to add to this machine's clock to have the server's."""


# ---- what the worker reports ----


_Number = Annotated[int, Meta(ge=-1, le=1 << 40)]
"""-1: of none."""


SpanKind = Literal["forward", "backward", "update", "average", "evaluate"]


class Span(Strict, frozen=True, array_like=True):
    """The compute thread was busy with this, from … to …, in seconds since 1970."""

    kind: SpanKind
    """Everybody who may look sees it, so it is no word of the worker's choice."""
    batch: _Number
    part: _Number
    start: Seconds
    end: Seconds


class LinkBytes(Strict, frozen=True, kw_only=True):
    """Since the worker began."""

    node: Word
    sent: Count
    received: Count


class RoundReport(Strict, frozen=True, kw_only=True):
    """A round of averaging that has ended."""

    ring: Count
    number: Count
    began: Seconds
    ended: Seconds
    members: Count
    outcome: Literal["applied", "given up", "skipped"]


class Point(Strict, frozen=True, array_like=True):
    """A value of a curve. Series are named like train/loss, eval/accuracy."""

    series: Series
    step: Count
    epoch: Figure
    at: Seconds
    value: float | None
    """None: not a finite number."""


class WorkReport(Strict, frozen=True, kw_only=True):
    """What happened in a worker since its last report; totals are since it began."""

    at: Seconds
    epoch: Count = 0
    step: Count = 0
    samples: Count = 0
    samples_per_second: Figure = 0.0
    busy: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Of the compute thread, since the last report."""
    in_flight: Count = 0
    updates: Count = 0
    staleness: Figure = 0.0
    memory_bytes: Count = 0
    links: Annotated[tuple[LinkBytes, ...], Meta(max_length=MOST_LINKS)] = ()
    spans: Annotated[tuple[Span, ...], Meta(max_length=MOST_SPANS)] = ()
    spans_dropped: Count = 0
    rounds: Annotated[tuple[RoundReport, ...], Meta(max_length=MOST_ROUNDS)] = ()
    points: Annotated[tuple[Point, ...], Meta(max_length=MOST_POINTS)] = ()
    notes: Annotated[tuple[Text, ...], Meta(max_length=MOST_NOTES)] = ()
    """Warnings worth an event."""


class WorkEnd(Reasoned, frozen=True, kw_only=True):
    """How a worker ended."""

    outcome: Literal["done", "stopped", "failed"]
    epochs_done: Count = 0
    """Whole epochs whose result is in the saved weights, earlier runs included."""
    saved: bool = False
    """There are trained weights in package/ to be brought back."""
    metrics: Annotated[dict[Series, float], Meta(max_length=MOST_METRICS)] = msgspec.field(
        default_factory=dict
    )
    culprit: Word | None = None
    """The node that failed first, if it was not this one."""
    signal: Annotated[int, Meta(ge=1, le=64)] | None = None
    """The one that ended the process, which the agent did not send."""
    out_of_memory: bool = False
    """It needed more than the owner of the machine allows."""
    distrusts: Annotated[tuple[Count, ...], Meta(max_length=MOST_LINKS)] = ()
    """Clusters that it has seen to spoil a round of averaging."""


# ---- how the worker says so: a line of JSON on its stdout each


MOST_LINE_BYTES = 1 << 20


class Started(Strict, frozen=True, tag="started", tag_field="type"):
    """The order was understood; the stage is being loaded."""


class Report(Strict, frozen=True, tag="report", tag_field="type"):
    report: WorkReport


class End(Strict, frozen=True, tag="end", tag_field="type"):
    """The last line."""

    end: WorkEnd


Line = Started | Report | End
