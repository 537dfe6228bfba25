"""A plan as plain data: who holds which part of the model, and what that is predicted to cost.

Nothing here computes anything. `planning` produces these structures, `rundir` writes them,
providers and reports read them; all of them survive a trip through JSON unchanged.
"""

from typing import Literal

import msgspec

PLAN_FORMAT = 1
Role = Literal["Root", "Stem", "Leaf"]
Limit = Literal["compute", "link", "fixed"]


def bytes_per_s(mbps: float) -> float:
    return mbps * 1e6 / 8


class ProviderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of the pool, as its owner described it."""

    id: int
    address: str
    memory_bytes: int
    bandwidth_mbps: float
    gflops: float
    latency_ms: float = 0.0
    host_memory_bytes: int | None = None
    """Of the machine's memory, where `memory_bytes` is that of a device in it."""
    links: tuple[tuple[int, float], ...] = ()
    """Mbit/s measured from here to other providers, by their ids in ascending order."""

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def bytes_per_s(self) -> float:
        return bytes_per_s(self.bandwidth_mbps)


class MemoryEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted peak memory of one stage, split by what it is spent on."""

    weights: int
    gradients: int
    optimizer: int
    versions: int
    activations: int
    messages: int = 0
    averaging: int = 0
    """Among several clusters: a snapshot of what is averaged, and about as much on its way."""
    working: int

    @property
    def total(self) -> int:
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + self.versions
            + self.activations
            + self.messages
            + self.averaging
            + self.working
        )


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's share of the model. `start` and `stop` count operators of the train graph."""

    index: int
    provider: ProviderSpec
    role: Role
    start: int
    stop: int
    parameters: int
    first_parameter: str
    flops: int
    compute_s: float
    sent_bytes: int
    received_bytes: int
    tied_bytes: int
    link_s: float
    in_flight: int
    """Micro-batches that will be between their forward and their backward."""
    memory: MemoryEstimate
    most_in_flight: int = 1
    """Micro-batches that the provider's memory has room for."""
    recompute: bool = False
    """Activations are not kept for the backward but computed again, to fit into memory."""
    fixed_s: float = 0.0
    """What a batch takes besides, however little there is to compute."""
    part_s: float = 0.0
    """Of that, the share of each micro-batch."""

    @property
    def step_s(self) -> float:
        return max(self.busy_s, self.link_s)

    @property
    def busy_s(self) -> float:
        """While it cannot begin anything else."""
        return self.compute_s + self.fixed_s

    @property
    def limit(self) -> Limit:
        if self.busy_s < self.link_s:
            return "link"
        return "compute" if self.compute_s >= self.fixed_s else "fixed"


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Stages in pipeline order; together they hold the whole model once."""

    id: int
    stages: tuple[StagePlan, ...]
    micro_batches: int = 1
    """Parts into which the pipeline divides each batch."""

    @property
    def bottleneck(self) -> StagePlan:
        return max(self.stages, key=lambda stage: stage.step_s)

    @property
    def step_s(self) -> float:
        return self.bottleneck.step_s


class RingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A run of tensors with one owner in every cluster. `owners[c]` is cluster c's provider id."""

    id: int
    names: tuple[str, ...]
    owners: tuple[int, ...]
    first_parameter: str
    """What the ring is called by; the first name if it averages buffers only."""
    bytes: int = 0
    """Of its tensors, once."""
    order: tuple[int, ...] = ()
    """Cluster ids in the order in which the ring is walked; () is 0, 1, 2, …"""

    @property
    def walk(self) -> tuple[int, ...]:
        """`order`, written out."""
        return self.order or tuple(range(len(self.owners)))


class IdleProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A provider the plan does not use, and the reason its owner is told."""

    provider: ProviderSpec
    reason: str


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the whole model that the report quotes."""

    name: str
    parameters: int
    parameter_bytes: int
    training_bytes: int
    operators: int
    batch_size: int
    flops: int
    fixed_s: float = 0.0
    """What a batch takes on one machine alone, however fast it computes."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer: clusters, rings, who is idle and why, and what is expected of it."""

    format: int = PLAN_FORMAT
    plan_id: str
    model: ModelSummary
    clusters: tuple[ClusterPlan, ...]
    rings: tuple[RingPlan, ...]
    idle: tuple[IdleProvider, ...]
    single_machine_s: float
    warnings: tuple[str, ...] = ()

    @property
    def steps_per_s(self) -> float:
        """Batches per second of the whole run: every cluster works on batches of its own."""
        return sum(1.0 / cluster.step_s for cluster in self.clusters)

    @property
    def addresses(self) -> dict[int, str]:
        """Provider id → address, of everyone who takes part."""
        return {
            stage.provider.id: stage.provider.address
            for cluster in self.clusters
            for stage in cluster.stages
        }
