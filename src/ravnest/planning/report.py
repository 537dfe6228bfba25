"""A plan in words and figures a person can act on."""

from ravnest.plan import ClusterPlan, Plan, StagePlan
from ravnest.planning.nodes import param_addresses, rings_of


def node_blocks(plan: Plan) -> str:
    """The documented block of every provider: cluster by cluster from Root to Leaf, then the idle.

    Users read the order of the stages off the order of the blocks.
    """
    blocks = []
    for cluster in plan.clusters:
        for stage in cluster.stages:
            rings = {ring.id: ring.first_parameter for ring in rings_of(plan, cluster, stage)}
            blocks.append(
                f"Node({stage.provider.id}, Cluster({cluster.id})) \n"
                f"self.IP({stage.provider.address}) \n"
                f"Ring IDs({rings}) \n"
                f"Address2Param({param_addresses(plan, cluster, stage)})\n"
            )
    for idle in plan.idle:
        blocks.append(
            f"Node({idle.provider.id}, idle) \nself.IP({idle.provider.address}) \n{idle.reason}\n"
        )
    return "\n\n".join(blocks)


def render_report(plan: Plan) -> str:
    """Clusters, memory, traffic, speed, and whether it is worth it."""
    model = plan.model
    lines = [
        f"{model.name}: {_count(model.parameters)} parameters, {_size(model.parameter_bytes)} of "
        f"weights, {_size(model.training_bytes)} to train on one machine; "
        f"{_count(model.flops)} FLOP per batch of {model.batch_size}"
    ]
    for cluster in plan.clusters:
        lines += ["", *_cluster_lines(cluster)]
    lines += ["", *_ring_lines(plan)]
    for idle in plan.idle:
        lines.append(f"Idle: node_{idle.provider.id} ({idle.provider.address}): {idle.reason}")
    lines += [f"Note: {warning}" for warning in plan.warnings]
    lines += ["", verdict(plan)]
    return "\n".join(lines)


def _cluster_lines(cluster: ClusterPlan) -> list[str]:
    slowest = cluster.bottleneck
    limit = "computing" if slowest.limit == "compute" else "the link"
    heading = (
        f"Cluster {cluster.id}: {_rate(cluster.step_s)}, "
        f"limited by {limit} of node_{slowest.provider.id}"
    )
    header = (
        "provider", "address", "role", "parameters", "memory / limit",
        "sent + received per batch", "compute", "link", "",
    )  # fmt: skip
    alone = len(cluster.stages) == 1
    rows = [_stage_row(stage, slowest=stage is slowest, alone=alone) for stage in cluster.stages]
    return [heading, *_table([header, *rows])]


def _stage_row(stage: StagePlan, *, slowest: bool, alone: bool) -> tuple[str, ...]:
    provider = stage.provider
    return (
        f"node_{provider.id}",
        provider.address,
        "Root+Leaf" if alone else stage.role,
        _count(stage.parameters),
        f"{_size(stage.memory.total)} / {_size(provider.memory_bytes)}",
        f"{_size(stage.sent_bytes)} + {_size(stage.received_bytes)}",
        _seconds(stage.compute_s),
        _seconds(stage.link_s),
        "<- bottleneck" if slowest else "",
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        (
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _ring_lines(plan: Plan) -> list[str]:
    if len(plan.clusters) == 1:
        return ["One cluster: nothing to average."]
    tensors = sum(len(ring.names) for ring in plan.rings)
    clusters = len(plan.clusters)
    traffic = 2 * (clusters - 1) / clusters * sum(ring.bytes for ring in plan.rings)
    rings = "1 ring averages" if len(plan.rings) == 1 else f"{len(plan.rings)} rings average"
    return [
        f"{rings} {tensors} tensors over {clusters} clusters; "
        f"a round sends about {_size(traffic)} from each cluster."
    ]


def verdict(plan: Plan) -> str:
    """Is this faster than the pool's fastest machine alone?"""
    used = [stage.provider for cluster in plan.clusters for stage in cluster.stages]
    pool = [*used, *(idle.provider for idle in plan.idle)]
    able = [one.gflops for one in pool if one.memory_bytes >= plan.model.training_bytes]
    fits = max(one.gflops for one in pool) in able
    who = "it cannot" if able else "no provider can"
    held = "" if fits else f" (if it could hold the model, which {who})"
    together, alone = plan.steps_per_s, 1 / plan.single_machine_s
    ratio = together / alone
    machines = "1 provider" if len(used) == 1 else f"{len(used)} providers"
    figures = (
        f"{_rate(1 / together)} with {machines}, {_rate(1 / alone)} on the fastest one alone{held}"
    )
    if ratio >= 1.05:
        return f"Verdict: {ratio:.1f}x as fast as one machine: {figures}."
    if ratio >= 0.95:
        return f"Verdict: no faster than one machine: {figures}."
    return f"Verdict: {1 / ratio:.1f}x SLOWER than one machine: {figures}. {_advice(plan, fits)}"


def _advice(plan: Plan, fits: bool) -> str:
    limits = {cluster.bottleneck.limit for cluster in plan.clusters}
    if limits == {"link"}:
        way = "The links are the limit: use faster ones, or a larger model on the same links."
    else:
        way = "Faster providers, or fewer slow ones, would help."
    if fits:
        return way + " For speed alone, train on one machine."
    return way + " What the pool gives you here is memory, not speed."


def _count(number: float) -> str:
    for unit, name in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return str(int(number))


def _size(number: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.2f} {name}"
    return f"{int(number)} B"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def _rate(step_s: float) -> str:
    if step_s > 60:
        return f"{3600 / step_s:.3g} batches/h"
    return f"{1 / step_s:.3g} batches/s"
