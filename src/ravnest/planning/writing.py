"""Write a plan to disk: one metadata file and one stage package per provider.

The packages are read back and checked against the model before the new plan replaces the old one.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

import msgspec

from ravnest.plan import ClusterPlan, Plan
from ravnest.planning.capture.surroundings import as_in_training
from ravnest.planning.nodes import node_documents
from ravnest.planning.planner import with_larger_parts, with_warning
from ravnest.planning.selfcheck import OneRowError, SelfCheck
from ravnest.planning.state import model_index
from ravnest.planning.study import Study
from ravnest.planning.weights import WeightSource
from ravnest.rundir import RunDir
from ravnest.stage.graph import MODES
from ravnest.stage.package import load_package, write_package

logger = logging.getLogger("ravnest.planning")

_CHECKED_CUTS = 3
"""Clusters cut in different places; checking a few of them finds what is wrong with the capture."""


@as_in_training()
def write_plan(
    plan: Plan, study: Study, run: RunDir, *, weights: WeightSource | None, check: bool
) -> tuple[Plan, Path | None]:
    """Put the plan in place of the one before; returns it, with what the self-check had to add, and
    where results of the one before were archived.

    Without `weights` the packages hold graphs only.
    """
    written = plan

    def write(fresh: RunDir) -> None:
        nonlocal written
        while True:
            try:
                return _write(written, study, run, fresh, weights, check=check)
            except OneRowError as error:
                study.needs_two_rows(error.mode)
                written = _without_single_rows(written, error)
                for part in fresh.root.iterdir():
                    shutil.rmtree(part) if part.is_dir() else part.unlink()

    if not check:
        for mode in MODES:
            study.needs_two_rows(mode)
    archived = run.replace_plan(write)
    return written, archived


def _without_single_rows(plan: Plan, error: OneRowError) -> Plan:
    if error.mode == "eval":
        return with_warning(plan, f"{error}; batches of one row are refused in evaluation")
    note = f"{error}; such batches are refused in training (drop_last=True in the DataLoader)"
    return with_larger_parts(with_warning(plan, note), least_rows=2)


def _write(
    plan: Plan,
    study: Study,
    run: RunDir,
    fresh: RunDir,
    weights: WeightSource | None,
    *,
    check: bool,
) -> None:
    fresh.model_file.write_bytes(_pretty(model_index(study, plan.plan_id)))
    fresh.plan_file.write_bytes(_pretty(plan))
    self_check = SelfCheck(study)
    checked: set[tuple[int, ...]] = set()
    logger.info("writing the stages …")
    for cluster in plan.clusters:
        packages = _write_cluster(plan, study, cluster, fresh, weights)
        cuts = tuple(stage.start for stage in cluster.stages)
        if check and cuts not in checked and len(checked) < _CHECKED_CUTS:
            checked.add(cuts)
            logger.info("checking the stages of cluster %d against the model …", cluster.id)
            self_check([load_package(path).module(model=study.model) for path in packages])
    (fresh.root / "nodes").mkdir()
    for provider, document in node_documents(plan, run):
        fresh.node_file(provider).write_bytes(_pretty(document))


def _pretty(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


def _write_cluster(
    plan: Plan, study: Study, cluster: ClusterPlan, fresh: RunDir, weights: WeightSource | None
) -> list[Path]:
    graphs = study.stages([stage.start for stage in cluster.stages[1:]])
    paths = []
    for stage, graph in zip(cluster.stages, graphs, strict=True):
        path = fresh.package_dir(cluster.id, stage.provider.address)
        tensors = None if weights is None else weights.read(graph.tensors)
        write_package(path, graph, tensors, plan_id=plan.plan_id, cluster=cluster.id)
        paths.append(path)
    return paths
