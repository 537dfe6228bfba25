"""From a studied model and a pool to a complete `Plan`.

The search decides who works with whom and where the cuts fall; here the decision is written out
with every figure the report, the files and the providers need.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import torch
import xxhash

from ravnest.in_flight import least_in_flight
from ravnest.plan import (
    ClusterPlan,
    IdleProvider,
    MemoryEstimate,
    ModelSummary,
    Plan,
    ProviderSpec,
    Role,
    StagePlan,
    bytes_per_s,
)
from ravnest.planning.averaging import plan_rings
from ravnest.planning.costing.costs import CutCosts, TrainingMemory
from ravnest.planning.notes import (
    layout_notes,
    leaving_out_notes,
    pool_notes,
    recompute_notes,
)
from ravnest.planning.search.clusters import ClusterLayout, PlanOptions, form_clusters
from ravnest.planning.search.links import measured_mbps, speed_mbps
from ravnest.planning.search.partition import recomputes
from ravnest.planning.study import Study

MOST_IN_FLIGHT = 1024


def make_plan(study: Study, pool: Sequence[ProviderSpec], options: PlanOptions) -> Plan:
    """The best plan found for this model on this pool; `PlanError` if there is none."""
    layout = form_clusters(study.costs, pool, options)
    training = replace(options.training, averages=len(layout.clusters) > 1)
    clusters = tuple(
        _cluster_plan(study, number, cluster, training)
        for number, cluster in enumerate(layout.clusters)
    )
    plan = Plan(
        plan_id="",
        model=_summary(study, options),
        clusters=clusters,
        rings=plan_rings(study, clusters),
        idle=tuple(IdleProvider(provider=who, reason=why) for who, why in layout.idle),
        single_machine_s=_single_machine_seconds(study.costs, pool),
        warnings=(
            *study.warnings,
            *pool_notes(pool),
            *layout_notes(layout, study.costs, pool, options),
            *leaving_out_notes(layout, study.costs, pool, options),
            *recompute_notes(clusters),
        ),
    )
    return msgspec.structs.replace(plan, plan_id=_fingerprint(study, plan))


def role_of(stage: int, stages: int) -> Role:
    """A cluster's only provider is both Root and Leaf; it answers to Root."""
    if stage == 0:
        return "Root"
    return "Leaf" if stage == stages - 1 else "Stem"


def _cluster_plan(
    study: Study, number: int, layout: ClusterLayout, training: TrainingMemory
) -> ClusterPlan:
    points = layout.cut.points
    stages = len(points) - 1
    in_flight = _micro_batches_in_flight(study.costs, layout, training)
    return ClusterPlan(
        id=number,
        stages=tuple(_stage_plan(study, layout, k, in_flight[k], training) for k in range(stages)),
        micro_batches=training.division.parts(stages),
    )


def _micro_batches_in_flight(
    costs: CutCosts, layout: ClusterLayout, training: TrainingMemory
) -> list[int]:
    """What each stage will keep in flight: see `provider/schedule/window.py`, which measures what
    is predicted here."""
    points, providers = layout.cut.points, layout.providers
    stages = len(providers)
    parts = training.division.parts(stages)
    links_s = (_link_s(costs, layout, k) for k in range(stages))
    pace_s = max(layout.cut.step_s, *links_s) / parts
    found, beyond_s = [], 0.0
    for k in reversed(range(stages)):
        least = training.in_flight(k, stages)
        spare = least - least_in_flight(k, stages, divided=False)
        wanted = math.floor(beyond_s / pace_s + 0.5) + 1 + spare if pace_s > 0 else least
        found.append(least if k == stages - 1 else max(least, wanted))
        beyond_s += _compute_s(costs, layout, k, training) / parts
        beyond_s += costs.fixed_seconds(points[k], points[k + 1], parts) / parts
        if k:
            beyond_s += _round_trip_s(costs, points[k], providers[k - 1 : k + 1], parts)
    return found[::-1]


def _recomputes(costs: CutCosts, layout: ClusterLayout, k: int, training: TrainingMemory) -> bool:
    return recomputes(costs, layout.cut.points, k, layout.providers[k], training)


def _compute_s(costs: CutCosts, layout: ClusterLayout, k: int, training: TrainingMemory) -> float:
    p, q = layout.cut.points[k : k + 2]
    again = _recomputes(costs, layout, k, training)
    return costs.compute_seconds(p, q, layout.providers[k].gflops, recompute=again)


def _round_trip_s(
    costs: CutCosts, border: int, neighbours: Sequence[ProviderSpec], parts: int
) -> float:
    """A micro-batch over a border and its gradients back."""
    one, other = neighbours
    crossing = float(costs.forward_bytes[border] + costs.backward_bytes[border])
    delay_s = max(one.latency_ms, other.latency_ms) / 1e3
    return crossing / parts / bytes_per_s(speed_mbps(one, other)) + delay_s


def _link_s(costs: CutCosts, layout: ClusterLayout, k: int) -> float:
    """A batch over the link of stage k, or over a link to a neighbour that was measured as slower.

    The search knows the first only: it prices a provider wherever it stands, not who stands beside
    it. So a measured link does not move the cuts, but the figures tell.
    """
    points, providers = layout.cut.points, layout.providers
    if len(providers) == 1:
        return 0.0
    p, q = points[k : k + 2]
    busier = max(costs.sent_bytes(p, q), costs.received_bytes(p, q))
    seconds = busier / providers[k].bytes_per_s
    for border, other in ((p, k - 1), (q, k + 1)):
        if 0 <= other < len(providers):
            measured = measured_mbps(providers[k], providers[other])
            crossing = max(costs.forward_bytes[border], costs.backward_bytes[border])
            if measured is not None:
                seconds = max(seconds, float(crossing) / bytes_per_s(measured))
    return seconds


def _stage_plan(
    study: Study, layout: ClusterLayout, stage: int, wanted: int, training: TrainingMemory
) -> StagePlan:
    costs, provider, stages = study.costs, layout.providers[stage], len(layout.providers)
    again = _recomputes(costs, layout, stage, training)
    p, q = layout.cut.points[stage : stage + 2]
    start, stop = int(costs.operator[p]), int(costs.operator[q])
    owned = [name for name, home in study.homes.items() if start <= home < stop]
    parameters = [name for name in owned if study.held[name].kind == "parameter"]
    parts = training.division.parts(stages)
    least = training.in_flight(stage, stages)
    with_one, with_two = (
        costs.memory(p, q, stage, stages, training, in_flight=held, recompute=again)
        for held in (1, 2)
    )
    most = max(least, _most_in_flight(provider, with_one, with_two))
    in_flight = min(wanted, most)
    memory = costs.memory(p, q, stage, stages, training, in_flight=in_flight, recompute=again)
    return StagePlan(
        index=stage,
        provider=provider,
        role=role_of(stage, stages),
        start=start,
        stop=stop,
        parameters=sum(study.held[name].tensor.numel() for name in parameters),
        first_parameter=next(iter(parameters), ""),
        flops=int(costs.flops[q] - costs.flops[p]),
        compute_s=_compute_s(costs, layout, stage, training),
        sent_bytes=int(costs.sent_bytes(p, q)),
        received_bytes=int(costs.received_bytes(p, q)),
        tied_bytes=int(costs.tied_bytes[p, q]),
        link_s=_link_s(costs, layout, stage),
        in_flight=in_flight,
        most_in_flight=most,
        recompute=again,
        fixed_s=costs.fixed_seconds(p, q, parts),
        part_s=costs.part_seconds(p, q),
        memory=memory,
    )


def _most_in_flight(
    provider: ProviderSpec, with_one: MemoryEstimate, with_two: MemoryEstimate
) -> int:
    """What memory has room for: a link with much delay needs more micro-batches in flight than its
    depth alone asks for."""
    each = with_two.total - with_one.total
    if each <= 0:
        return MOST_IN_FLIGHT
    return min(1 + (provider.memory_bytes - with_one.total) // each, MOST_IN_FLIGHT)


def _summary(study: Study, options: PlanOptions) -> ModelSummary:
    costs = study.costs
    end = costs.cut_points - 1
    parameters = [tensor for tensor in study.held.values() if tensor.kind == "parameter"]
    return ModelSummary(
        name=study.name,
        parameters=sum(tensor.tensor.numel() for tensor in parameters),
        parameter_bytes=study.parameter_bytes,
        training_bytes=costs.memory(0, end, 0, 1, options.training).total,
        operators=len(study.train.ops),
        batch_size=study.train.batch_size,
        flops=int(costs.flops[-1]),
        fixed_s=costs.alone_seconds(math.inf),
    )


def _single_machine_seconds(costs: CutCosts, pool: Sequence[ProviderSpec]) -> float:
    """One batch on the pool's fastest machine, if it could hold the model."""
    fastest = max(provider.gflops for provider in pool)
    return costs.alone_seconds(fastest)


def _fingerprint(study: Study, plan: Plan) -> str:
    """The same model with the same weights, pool and cuts give the same id; anything else another.

    Weights that are read from files later are not seen here; their names and shapes are.
    """
    digest = hashlib.sha256(msgspec.json.encode((plan, study.stages(()))))
    for name, held in sorted(study.held.items()):
        digest.update(name.encode())
        if not held.tensor.is_meta:
            digest.update(_content_hash(held.tensor))
    return digest.hexdigest()[:16]


def _content_hash(tensor: torch.Tensor) -> bytes:
    """Fast rather than cryptographic: this tells plans apart, it does not vouch for anything."""
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    plain = dense.cpu().contiguous().reshape(-1)
    return xxhash.xxh3_128(plain.view(torch.uint8).numpy().data).digest() if plain.numel() else b""


def with_warning(plan: Plan, warning: str) -> Plan:
    return msgspec.structs.replace(plan, warnings=(*plan.warnings, warning))


def with_larger_parts(plan: Plan, least_rows: int) -> Plan:
    """The same plan with so many rows in every micro-batch at least.

    Fewer of them fit into memory then, and no more than fit are kept in flight.
    """
    parts = max(1, plan.model.batch_size // least_rows)
    clusters = tuple(
        cluster if cluster.micro_batches <= parts else _divided(cluster, parts)
        for cluster in plan.clusters
    )
    return msgspec.structs.replace(plan, clusters=clusters)


def _divided(cluster: ClusterPlan, parts: int) -> ClusterPlan:
    larger = cluster.micro_batches / parts
    stages = []
    for stage in cluster.stages:
        most = max(1, int(stage.most_in_flight / larger))
        in_flight = min(stage.in_flight, most)
        fewer = 1.0 if stage.recompute else in_flight / stage.in_flight
        activations = int(stage.memory.activations * larger * fewer)
        changed = {
            "in_flight": in_flight,
            "most_in_flight": most,
            "memory": msgspec.structs.replace(stage.memory, activations=activations),
            "fixed_s": stage.fixed_s - (cluster.micro_batches - parts) * stage.part_s,
        }
        stages.append(msgspec.structs.replace(stage, **changed))
    return msgspec.structs.replace(cluster, stages=tuple(stages), micro_batches=parts)
