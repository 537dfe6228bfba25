"""What the requester may decide about a plan. Plain data; `clusters` explains how it is used."""

from dataclasses import dataclass, field

from ravnest.errors import PlanError
from ravnest.planning.costing.costs import TrainingMemory


@dataclass(frozen=True)
class PlanOptions:
    """Every plan for the same pool, tables and options is the same plan."""

    min_cluster_size: int = 2
    """Smaller pools, and models with fewer places to cut, lower it."""
    max_clusters: int | None = None
    idle_gain: float = 1.5
    """Leave a provider out if the run is so many times faster without it: 1 looks for nothing but
    speed, infinity uses everyone who can be used."""
    seed: int = 0
    training: TrainingMemory = field(default_factory=TrainingMemory)
    effort: int = 250
    """Evaluations per provider that the search may spend; up to twice as many in large pools."""
    exact_up_to: int = 8
    """Pools up to this size are solved exactly instead of searched."""

    def __post_init__(self) -> None:
        for name in ("min_cluster_size", "max_clusters", "seed"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise PlanError(f"{name} is {value!r}; it has to be a whole number")
        gain: object = self.idle_gain
        if not isinstance(gain, int | float) or isinstance(gain, bool):
            raise PlanError(f"idle_gain is {self.idle_gain!r}; it has to be a number, 1 or more")
        least = {"min_cluster_size": 1, "max_clusters": 1, "idle_gain": 1, "effort": 0}
        for name, limit in least.items():
            value = getattr(self, name)
            if value is not None and not value >= limit:
                raise PlanError(f"{name} is {value}; it has to be {limit} or more")
