"""A plan in words and figures a person can act on."""

import math
from collections import Counter
from collections.abc import Mapping

from ravnest.plan import ClusterPlan, Limit, Plan, ProviderSpec, StagePlan
from ravnest.planning.costing.fixed import PART_S
from ravnest.planning.figures import count, duration, flop, plain, quantity, rate, size
from ravnest.planning.nodes import param_addresses, rings_of

_LIMITS: dict[Limit, str] = {
    "compute": "computing",
    "link": "the link",
    "fixed": "the fixed costs",
}

_BUSY_WITH_ROUNDS = 0.5
"""Part of the time that links may be busy with rounds: activations travel over them, too."""

_INT8_BYTES = 1 / 3.9
"""Of a round in int8, over one without a codec; training needs as many steps (RESULTS.md)."""

SEPARATOR = "-" * 72
"""Printed between the blocks of the nodes, which programs read, and the report for people."""


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


def render_report(plan: Plan, names: Mapping[int, str] | None = None) -> str:
    """Clusters, memory, traffic, speed, and whether it is worth it.

    `names`: what people call the providers, where addresses tell them nothing.
    """
    names = names or {}
    model = plan.model
    lines = [
        f"{model.name}: {count(model.parameters)} parameters, {size(model.parameter_bytes)} of "
        f"weights, {size(model.training_bytes)} to train on one machine; "
        f"{flop(model.flops)} per batch of {model.batch_size}"
    ]
    for cluster in plan.clusters:
        lines += ["", *_cluster_lines(cluster, names)]
    lines += ["", *_ring_lines(plan)]
    for idle in plan.idle:
        called, where = _called(idle.provider, names)
        lines.append(f"Idle: {called} ({where}): {idle.reason}")
    lines += [f"Note: {warning}" for warning in plan.warnings]
    lines += [*_optimizer_lines(plan), "", verdict(plan)]
    return "\n".join(lines)


def _called(provider: ProviderSpec, names: Mapping[int, str]) -> tuple[str, str]:
    """The provider, and by what it is found: its address, or the node that is in the logs."""
    node = f"node_{provider.id}"
    return (names[provider.id], node) if provider.id in names else (node, provider.address)


def _cluster_lines(cluster: ClusterPlan, names: Mapping[int, str]) -> list[str]:
    slowest = cluster.bottleneck
    heading = (
        f"Cluster {cluster.id}: {rate(1 / cluster.step_s)}, "
        f"limited by {_LIMITS[slowest.limit]} of {_called(slowest.provider, names)[0]}"
    )
    header = (
        "provider", "node" if names else "address", "role", "parameters", "memory / limit",
        "sent + received per batch", "compute", "fixed", "link", "",
    )  # fmt: skip
    alone = len(cluster.stages) == 1
    rows = [_stage_row(stage, names, stage is slowest, alone) for stage in cluster.stages]
    return [heading, *_table([header, *rows])]


def _stage_row(
    stage: StagePlan, names: Mapping[int, str], slowest: bool, alone: bool
) -> tuple[str, ...]:
    provider = stage.provider
    return (
        *_called(provider, names),
        "Root+Leaf" if alone else stage.role,
        count(stage.parameters),
        f"{size(stage.memory.total)} / {size(provider.memory_bytes)}",
        f"{size(stage.sent_bytes)} + {size(stage.received_bytes)}",
        duration(stage.compute_s),
        duration(stage.fixed_s),
        duration(stage.link_s),
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
    held = max(stage.memory.averaging for cluster in plan.clusters for stage in cluster.stages)
    round_s = _round_s(plan)
    updates = round_s / _BUSY_WITH_ROUNDS / min(c.step_s for c in plan.clusters)
    rings = "1 ring averages" if len(plan.rings) == 1 else f"{len(plan.rings):,} rings average"
    return [
        f"{rings} {tensors:,} tensors over {clusters:,} clusters; "
        f"a round sends about {size(traffic)} from each cluster, in at least {duration(round_s)}.",
        f"The more rounds, the fewer steps are needed: {_often(updates)} keeps links "
        "busy with them for no more than half of the time; without it an epoch has one round.",
        f"Averaging takes up to {size(held)} of a provider's memory, counted above.",
    ]


def _often(updates: float) -> str:
    """What to give `Node`, where links without a codec have time for a round in so many updates."""
    if updates <= 1:
        return "reduce_factor=1"
    packed = math.ceil(updates * _INT8_BYTES)
    return f"reduce_factor={packed} with compression={{'rings': 'int8'}}"


def _round_s(plan: Plan) -> float:
    """Until the last member has sent its share, uncompressed, over links that do nothing else."""
    sent = Counter[int]()
    for ring in plan.rings:
        members = len(ring.owners)
        for owner in ring.owners:
            sent[owner] += 2 * (members - 1) * ring.bytes // members
    providers = (stage.provider for cluster in plan.clusters for stage in cluster.stages)
    return max(sent[provider.id] / provider.bytes_per_s for provider in providers)


def _optimizer_lines(plan: Plan) -> list[str]:
    """What bears the old gradients of a pipeline best (decision 026)."""
    if all(len(cluster.stages) == 1 for cluster in plan.clusters):
        return []
    return [
        'Optimizer: of those measured in pipelines "muon" needs the fewest steps, then "nadamw"; '
        "any other with momentum does well."
    ]


def verdict(plan: Plan) -> str:
    """Is this faster than the pool's fastest machine alone? If not, what can be done about it?"""
    used = [stage.provider for cluster in plan.clusters for stage in cluster.stages]
    pool = [*used, *(idle.provider for idle in plan.idle)]
    able = [one for one in pool if one.memory_bytes >= plan.model.training_bytes]
    fastest = max(one.gflops for one in pool)
    fits = any(one.gflops == fastest for one in able)
    who = "it cannot" if able else "no provider can"
    held = "" if fits else f" (if it could hold the model, which {who})"
    together, alone = plan.steps_per_s, 1 / plan.single_machine_s
    # People see how fast training is in samples per second.
    speed = f"{rate(together)} ({plain(together * plan.model.batch_size)} samples/s)"
    if len(used) == 1 and used[0].gflops == fastest:
        # What the plan counts besides for a worker is no reason to say "slower than itself".
        return f"Verdict: one machine trains the whole model, nothing is divided: {speed}."
    ratio = together / alone
    figures = (
        f"{speed} with {quantity(len(used), 'provider')}, "
        f"{rate(alone)} on the fastest one alone{held}"
    )
    if ratio >= 1.05:
        return f"Verdict: {plain(ratio, 2)}x as fast as one machine: {figures}."
    if ratio >= 0.95:
        answer = f"Verdict: no faster than one machine: {figures}."
    else:
        answer = f"Verdict: {plain(1 / ratio, 2)}x SLOWER than one machine: {figures}."
    computing_s = fastest * (plan.single_machine_s - plan.model.fixed_s)
    whole_copies = sum(1 / (computing_s / one.gflops + plan.model.fixed_s + PART_S) for one in able)
    return "\n".join([answer, *(f"  {line}" for line in _advice(plan, able, whole_copies, fits))])


def _advice(plan: Plan, able: list[ProviderSpec], whole_copies: float, fits: bool) -> list[str]:
    """What would change the verdict; `whole_copies` is the rate of `able`, one model on each."""
    lines = []
    limits = {cluster.bottleneck.limit for cluster in plan.clusters}
    if limits == {"link"}:
        lines.append(
            "The links are the limit: a batch takes longer to send than to compute. Faster links "
            "help, and so does a wider model: twice the width, twice the traffic, four times the "
            "computing."
        )
    elif limits == {"fixed"}:
        lines.append(
            "The fixed costs are the limit: passing micro-batches on and starting operators takes "
            "longer than computing, on however fast a machine. The model is too small to be worth "
            "dividing; a larger batch or a wider model would make more of the pool."
        )
    else:
        lines.append("Computing is the limit: faster providers, or fewer slow ones, would help.")
    split = any(len(cluster.stages) > 1 for cluster in plan.clusters)
    if split and whole_copies > 1.05 * plan.steps_per_s:
        who = "the provider" if len(able) == 1 else f"the {len(able):,} providers"
        lines.append(
            f"min_cluster_size=1 lets {who} with {size(plan.model.training_bytes)} or more train "
            f"the whole model: about {rate(whole_copies)}."
        )
    elif fits:
        lines.append("For speed alone, train on one machine.")
    if not fits:
        lines.append("What the pool gives you here is memory, not speed.")
    return lines
