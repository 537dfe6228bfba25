"""`clusterize`: the documented way from a model and a pool to a plan on disk."""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ravnest.errors import CaptureError, PlanError
from ravnest.plan import Plan
from ravnest.planning import dryrun
from ravnest.planning.planned import (
    PlanRequest,
    optimizer_factor,
    plan_only,
    shown,
    write_planned,
)
from ravnest.planning.pool import read_pool
from ravnest.planning.report import SEPARATOR, node_blocks, render_report
from ravnest.planning.selfcheck import as_it_runs
from ravnest.planning.study import Study, study
from ravnest.planning.weights import FromFiles, WeightSource
from ravnest.rundir import RunDir

logger = logging.getLogger("ravnest.planning")


def clusterize(
    model: nn.Module | None = None,
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    pass_data: bool = False,
    *,
    min_cluster_size: int = 2,
    max_clusters: int | None = None,
    idle_gain: float = math.inf,
    optimizer: str | float | type = "adam",
    micro_batches: int | Literal["auto"] = "auto",
    seed: int = 0,
    self_check: bool | None = None,
    weights: str | Path | None = None,
    node_data: str | Path = "node_data",
    quiet: bool = False,
) -> Plan:
    """Cut `model` to fit the providers in `node_data/node_configs.json` and write everything down.

    Args:
        model: any `nn.Module`, or a TorchScript module from `torch.jit.load`.
        example_args: a sample batch as the model takes it by position.
        example_kwargs: a sample batch as the model takes it by keyword.
        pass_data: measure by a real pass over the sample batch instead of predicting.
        min_cluster_size: fewest providers in a cluster; 1 lets one provider hold the whole model.
        max_clusters: most clusters to form; as many as useful if not given.
        idle_gain: leave a provider out only if the run is predicted to be this many times faster
            without it. By default everybody who can be used is used, and a note says what it would
            gain to leave somebody out; 1.0 seeks speed alone.
        optimizer: how much memory its state takes: "sgd", "momentum", "adam", "adamw",
            "nadam", "nadamw", "muon", one of torch's classes of these names, or a number of bytes
            per byte of weights.
        micro_batches: parts into which the pipeline divides each batch; still one update per batch.
            "auto" chooses by the number of stages, and leaves batches whole where the results of
            their rows depend on each other (BatchNorm).
        seed: equal seeds give equal plans.
        self_check: compare the finished stages with the model; by default for models up to 2 GB.
        weights: a safetensors file, or a folder of them, to take the weights from; for a model on
            the meta device, which has none. Without it such a plan holds graphs only.
        node_data: folder of the pool's description and of everything written.
        quiet: do not print the plan.

    Returns the plan. Raises `ValueError` (a subclass that says what and why) if the model cannot be
    cut, the pool is described wrongly, or its memory does not suffice; then nothing is changed.
    Logs its steps to the logger "ravnest.planning" at level INFO.
    """
    overrides = dryrun.current()
    run = RunDir(_path("node_data", node_data))
    request = PlanRequest(
        min_cluster_size=overrides.min_cluster_size or min_cluster_size,
        max_clusters=overrides.max_clusters or max_clusters,
        idle_gain=idle_gain,
        optimizer_factor=optimizer_factor(optimizer),
        micro_batches=_parts(micro_batches),
        seed=seed,
        self_check=self_check,
    )
    pool = read_pool(overrides.pool or run.pool_file)
    if model is None:
        raise CaptureError("clusterize needs a model: clusterize(model=…, example_args=(batch,))")
    args = example_args if isinstance(example_args, tuple | list) else (example_args,)
    _check_keywords(example_kwargs)
    if weights is not None:
        weights = _path("weights", weights)
    logger.info("capturing %s …", type(model).__name__)
    studied = study(model, args, example_kwargs, pass_data=pass_data)

    def planned(studied: Study) -> tuple[Plan, Path | None]:
        try:
            plan = plan_only(studied, pool, request)
        except PlanError:
            _log(studied.warnings)  # there will be no plan to carry them
            raise
        overrides.deliver(plan)
        source = _weight_source(studied, weights)
        return write_planned(plan, studied, request, run, weights=source)

    plan, archived = as_it_runs(studied, planned)
    if quiet:
        _log(plan.warnings)
    else:
        print(node_blocks(plan))
        print(SEPARATOR)
        print(render_report(plan))
        if archived is not None:
            print(f"The earlier plan had trained weights; it was moved to {archived}.")
    return plan


def _log(warnings: Sequence[str]) -> None:
    for warning in warnings:
        logger.warning(warning)


def _parts(micro_batches: object) -> int | None:
    """The number asked for; None leaves it to the plan."""
    if micro_batches == "auto":
        return None
    if not isinstance(micro_batches, int) or isinstance(micro_batches, bool) or micro_batches < 1:
        raise PlanError(
            f"micro_batches is {shown(micro_batches)}; give a whole number from 1, or 'auto'"
        )
    return micro_batches


def _path(name: str, value: object) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise PlanError(f"{name} is {value!r}; give the path of a folder as a string or a Path")
    return Path(value)


def _check_keywords(example_kwargs: object) -> None:
    named = isinstance(example_kwargs, Mapping) and all(isinstance(k, str) for k in example_kwargs)
    if example_kwargs is not None and not named:
        raise CaptureError(
            f"example_kwargs is {shown(example_kwargs)}; give a dictionary from the names of the "
            "model's arguments to sample tensors, like {'input_ids': tokens}"
        )


def _weight_source(studied: Study, weights: str | Path | None) -> WeightSource | None:
    if weights is not None:
        if studied.has_weights:
            raise CaptureError(
                f"weights={str(weights)!r} is given, but the model has weights of its own: load "
                "them into the model, or build it on the meta device"
            )
        return FromFiles(Path(weights), studied)
    return None
