"""From a studied model and a pool to a plan, and to its packages on disk.

What `clusterize` does once it has a model, and what a server does with a model that was handed
over. The two steps can be taken apart: a plan may be looked at before anything is written.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ravnest.errors import PlanError
from ravnest.plan import Plan, ProviderSpec
from ravnest.planning.costing.costs import Division, TrainingMemory
from ravnest.planning.figures import quantity, size
from ravnest.planning.planner import make_plan, with_warning
from ravnest.planning.rowwise import division_of, why_rows_mix
from ravnest.planning.search.clusters import PlanOptions
from ravnest.planning.study import Study
from ravnest.planning.weights import FromModel, WeightSource
from ravnest.planning.writing import write_plan
from ravnest.rundir import RunDir

logger = logging.getLogger("ravnest.planning")

OPTIMIZER_FACTORS = {
    "sgd": 0.0,
    "momentum": 1.0,
    "adam": 2.0,
    "adamw": 2.0,
    "nadam": 2.0,
    "nadamw": 2.0,
    # One for hidden matrices; embeddings, heads and vectors may be nearly all there is of a stage.
    "muon": 2.0,
}
"""Bytes of optimizer state per byte of trainable weights."""

_SELF_CHECK_LIMIT = 2_000_000_000
"""Weights above this many bytes are not checked by default: it takes two copies of the model."""


@dataclass(frozen=True)
class PlanRequest:
    """What may be asked of a plan; see `clusterize` for what each of these means."""

    min_cluster_size: int = 2
    max_clusters: int | None = None
    idle_gain: float = 1.5
    optimizer_factor: float = OPTIMIZER_FACTORS["adam"]
    micro_batches: int | None = None
    """None leaves the number to the plan."""
    seed: int = 0
    self_check: bool | None = None
    """None compares unless the model is large."""

    def __post_init__(self) -> None:
        self.options(Division())  # a wrong value is told before a model is captured for it

    def options(self, division: Division) -> PlanOptions:
        return PlanOptions(
            min_cluster_size=self.min_cluster_size,
            max_clusters=self.max_clusters,
            idle_gain=self.idle_gain,
            seed=self.seed,
            training=TrainingMemory(optimizer_factor=self.optimizer_factor, division=division),
        )


def plan_only(studied: Study, pool: Sequence[ProviderSpec], request: PlanRequest) -> Plan:
    """The plan, and nothing written. `PlanError` if there is none for this pool."""
    logger.info("planning for %s …", quantity(len(pool), "provider"))
    undivided = ""
    if request.micro_batches is None:
        undivided = _why_unchecked(studied, request.self_check) or why_rows_mix(studied)
    division = division_of(studied, request.micro_batches, undivided=bool(undivided))
    plan = make_plan(studied, pool, request.options(division))
    if undivided and any(len(cluster.stages) > 1 for cluster in plan.clusters):
        return with_warning(
            plan,
            f"batches are not divided into micro-batches: {undivided}. In a deep pipeline whole "
            "batches make gradients old, which costs steps from about five stages on: "
            "optimizer='muon' the fewest; micro_batches=N divides them all the same",
        )
    return plan


def write_planned(
    plan: Plan,
    studied: Study,
    request: PlanRequest,
    run: RunDir,
    *,
    weights: WeightSource | None = None,
) -> tuple[Plan, Path | None]:
    """Put the packages of a plan into `run`, compared with the model as far as was asked for.

    Returns the plan, with what there is to add to it, and where results of a plan that was there
    before were archived. `weights` is for a model that has none of its own.
    """
    unchecked = _why_unchecked(studied, request.self_check)
    if unchecked:
        plan = with_warning(plan, f"the stages were not compared with the model: {unchecked}")
    if weights is None and studied.has_weights:
        weights = FromModel(studied)
    return write_plan(plan, studied, run, weights=weights, check=not unchecked)


def optimizer_factor(optimizer: object) -> float:
    """Bytes of state per byte of weights, of an optimizer by name, by class or by this number."""
    given = optimizer
    if isinstance(given, type):  # SGD may have momentum: plan for it
        given = "momentum" if given is torch.optim.SGD else given.__name__
    if isinstance(given, str) and given.lower() in OPTIMIZER_FACTORS:
        return OPTIMIZER_FACTORS[given.lower()]
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < 100:
        return float(given)
    raise PlanError(
        f"optimizer is {shown(given)}; give one of {', '.join(OPTIMIZER_FACTORS)}, "
        "or its bytes of state per byte of weights as a number from 0 to 100"
    )


def shown(value: object) -> str:
    """A value in an error message: itself if it is short, else what it is."""
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def _why_unchecked(studied: Study, self_check: bool | None) -> str:
    """Why the finished stages will not be compared with the model, "" if they will."""
    if not studied.has_weights:
        return "its weights are not in memory"
    if any(leaf.is_meta for leaf in studied.call.leaves):  # it was handed over without them
        return "its example batch has no values"
    if self_check is None and studied.parameter_bytes > _SELF_CHECK_LIMIT:
        return (
            f"it is larger than {size(_SELF_CHECK_LIMIT)} (self_check=True compares all the same)"
        )
    return "" if self_check is None or self_check else "self_check=False"
