"""Write a plan to disk: one metadata file and one stage package per provider.

The packages are read back and checked against the model before the new plan replaces the old one.
"""

from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from ravnest.errors import CaptureError
from ravnest.plan import ClusterPlan, Plan, RingPlan, StagePlan
from ravnest.planning.selfcheck import SelfCheck
from ravnest.planning.study import Study
from ravnest.planning.weights import WeightSource
from ravnest.rundir import ModelIndex, RunDir, StateEntry
from ravnest.stage.package import load_package, write_package

_CHECKED_CLUSTERS = 3
"""Cuts differ between clusters; checking a few of them finds what is wrong with the capture."""


def write_plan(
    plan: Plan, study: Study, run: RunDir, *, weights: WeightSource | None, check: bool
) -> Path | None:
    """Put the plan in place of the one before; returns where results of that one were archived.

    Without `weights` the packages hold graphs only.
    """

    def write(fresh: RunDir) -> None:
        index = ModelIndex(
            plan_id=plan.plan_id,
            state=state_entries(study),
            versions=state_versions(study.model),
        )
        fresh.model_file.write_bytes(_pretty(index))
        fresh.plan_file.write_bytes(_pretty(plan))
        self_check = SelfCheck(study)
        for cluster in plan.clusters:
            packages = _write_cluster(plan, study, cluster, fresh, weights)
            if check and cluster.id < _CHECKED_CLUSTERS and study.has_weights:
                self_check([load_package(path).module(model=study.model) for path in packages])
        _write_nodes(plan, run, fresh)

    return run.replace_plan(write)


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


def state_entries(study: Study) -> tuple[StateEntry, ...]:
    """Every key of the original state_dict with the tensor behind it."""
    by_identity = {id(held.tensor): held.name for held in study.held.values()}
    by_memory = {
        _memory(held.tensor): held.name
        for held in study.held.values()
        if held.tensor.numel() and not held.tensor.is_meta
    }
    entries = []
    for key, value in study.model.state_dict(keep_vars=True).items():
        name = by_identity.get(id(value))
        if name is None and isinstance(value, torch.Tensor) and not value.is_meta:
            name = by_memory.get(_memory(value))
        if name is None:
            raise CaptureError(
                f"the model's state_dict holds {key!r}, which is neither a parameter nor a buffer; "
                "it could not be restored after training. Register it with register_buffer."
            )
        entries.append(StateEntry(key, name))
    return tuple(entries)


def state_versions(model: nn.Module) -> dict[str, int]:
    metadata = getattr(model.state_dict(), "_metadata", {})
    return {
        path: entry["version"]
        for path, entry in metadata.items()
        if isinstance(entry.get("version"), int)
    }


def _memory(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], torch.dtype]:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)


def _write_nodes(plan: Plan, run: RunDir, fresh: RunDir) -> None:
    (fresh.root / "nodes").mkdir()
    for cluster in plan.clusters:
        for stage in cluster.stages:
            document = node_document(plan, cluster, stage, run)
            fresh.node_file(stage.provider.id).write_bytes(_pretty(document))
    for idle in plan.idle:
        host, _, port = idle.provider.address.rpartition(":")
        document = {
            "node_id": idle.provider.id,
            "local_host": host,
            "local_port": int(port),
            "node_type": "Idle",
            "reason": idle.reason,
        }
        fresh.node_file(idle.provider.id).write_bytes(_pretty(document))


def node_document(
    plan: Plan, cluster: ClusterPlan, stage: StagePlan, run: RunDir
) -> dict[str, Any]:
    """What a provider is told about itself; the first keys are documented and fixed."""
    host, port = _split(stage.provider.address)
    forward = _neighbour(cluster, stage.index + 1)
    backward = _neighbour(cluster, stage.index - 1)
    rings = rings_of(plan, cluster, stage)
    addresses = plan.addresses
    folder = run.package_dir(cluster.id, stage.provider.address)
    return {
        "node_id": stage.provider.id,
        "local_host": host,
        "local_port": port,
        "template_path": folder.as_posix(),
        "rank": cluster.id,
        "ring_size": len(plan.clusters),
        "cluster_length": len(cluster.stages),
        "param_addresses": param_addresses(plan, cluster, stage),
        "ring_ids": {str(ring.id): ring.first_parameter for ring in rings},
        "forward_target_host": forward[0],
        "forward_target_port": forward[1],
        "backward_target_host": backward[0],
        "backward_target_port": backward[1],
        "node_type": stage.role,
        "plan_id": plan.plan_id,
        "stage": stage.index,
        "stages": len(cluster.stages),
        "rings": [
            {"id": ring.id, "members": [addresses[owner] for owner in ring.owners]}
            for ring in rings
        ],
    }


def _neighbour(cluster: ClusterPlan, index: int) -> tuple[str | None, int | None]:
    if not 0 <= index < len(cluster.stages):
        return None, None
    return _split(cluster.stages[index].provider.address)


def rings_of(plan: Plan, cluster: ClusterPlan, stage: StagePlan) -> list[RingPlan]:
    """The rings this provider takes part in."""
    return [ring for ring in plan.rings if ring.owners[cluster.id] == stage.provider.id]


def param_addresses(plan: Plan, cluster: ClusterPlan, stage: StagePlan) -> dict[str, str]:
    """Ring neighbour's address → first parameter of the ring shared with it."""
    found: dict[str, str] = {}
    addresses = plan.addresses
    for ring in rings_of(plan, cluster, stage):
        neighbour = ring.owners[(cluster.id + 1) % len(ring.owners)]
        if neighbour != stage.provider.id:
            found.setdefault(addresses[neighbour], ring.first_parameter)
    return found


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
