"""What each provider is told about itself and its neighbours: `nodes/node_<id>.json`."""

from collections.abc import Iterator, Mapping
from typing import Any

from ravnest.plan import ClusterPlan, Plan, RingPlan, StagePlan
from ravnest.rundir import RunDir


def node_documents(plan: Plan, run: RunDir) -> Iterator[tuple[int, dict[str, Any]]]:
    """For every provider its id and what it is told, the idle ones included."""
    for cluster in plan.clusters:
        for stage in cluster.stages:
            yield stage.provider.id, node_document(plan, cluster, stage, run)
    for idle in plan.idle:
        yield (
            idle.provider.id,
            {
                "node_id": idle.provider.id,
                "local_host": idle.provider.host,
                "local_port": idle.provider.port,
                "node_type": "Idle",
                "reason": idle.reason,
            },
        )


def node_document(
    plan: Plan, cluster: ClusterPlan, stage: StagePlan, run: RunDir
) -> dict[str, Any]:
    """What a provider is told about itself; the first keys are documented and fixed."""
    forward = _neighbour(cluster, stage.index + 1)
    backward = _neighbour(cluster, stage.index - 1)
    rings = rings_of(plan, cluster, stage)
    folder = run.package_dir(cluster.id, stage.provider.address)
    return {
        "node_id": stage.provider.id,
        "local_host": stage.provider.host,
        "local_port": stage.provider.port,
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
        "forward_node": _name(cluster, stage.index + 1),
        "backward_node": _name(cluster, stage.index - 1),
        "plan_id": plan.plan_id,
        "stage": stage.index,
        "stages": len(cluster.stages),
        "micro_batches": cluster.micro_batches,
        "most_in_flight": stage.most_in_flight,
        "recompute": stage.recompute,
        "rings": [_ring_document(ring, cluster, plan.addresses) for ring in rings],
    }


def _ring_document(
    ring: RingPlan, cluster: ClusterPlan, addresses: Mapping[int, str]
) -> dict[str, Any]:
    """A ring as `provider/document.py` reads it: its members in the order they pass things on."""
    return {
        "id": ring.id,
        "names": list(ring.names),
        "members": [
            {
                "node": f"node_{ring.owners[number]}",
                "address": addresses[ring.owners[number]],
                "cluster": number,
            }
            for number in ring.walk
        ],
        "place": ring.walk.index(cluster.id),
    }


def _neighbour(cluster: ClusterPlan, index: int) -> tuple[str | None, int | None]:
    if not 0 <= index < len(cluster.stages):
        return None, None
    provider = cluster.stages[index].provider
    return provider.host, provider.port


def _name(cluster: ClusterPlan, index: int) -> str:
    if not 0 <= index < len(cluster.stages):
        return ""
    return f"node_{cluster.stages[index].provider.id}"


def rings_of(plan: Plan, cluster: ClusterPlan, stage: StagePlan) -> list[RingPlan]:
    """The rings this provider takes part in."""
    return [ring for ring in plan.rings if ring.owners[cluster.id] == stage.provider.id]


def param_addresses(plan: Plan, cluster: ClusterPlan, stage: StagePlan) -> dict[str, str]:
    """Address of the next member of the ring → first parameter of the ring shared with it."""
    found: dict[str, str] = {}
    addresses = plan.addresses
    for ring in rings_of(plan, cluster, stage):
        walk = ring.walk
        neighbour = ring.owners[walk[(walk.index(cluster.id) + 1) % len(walk)]]
        if neighbour != stage.provider.id:
            found.setdefault(addresses[neighbour], ring.first_parameter)
    return found
