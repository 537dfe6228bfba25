"""What a requester should know about a plan although nothing is wrong with it.

A note says where a wish was not granted, or where a figure looks like a slip of the pen. It stops
nobody: what cannot work is an error, and raised elsewhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ravnest.errors import PlanError
from ravnest.plan import ClusterPlan, ProviderSpec
from ravnest.planning.costing.costs import CutCosts
from ravnest.planning.figures import plain, quantity, rate
from ravnest.planning.search.clusters import Layout, PlanOptions, form_clusters
from ravnest.planning.search.partition import most_stages

PLAUSIBLE_GB = 2048
"""More than this in one machine is usually a figure in MB."""

WORTH_SAYING = 1.05
"""How many times faster a run must be without some providers for the plan to say so."""


def pool_notes(pool: Sequence[ProviderSpec]) -> Iterator[str]:
    for provider in pool:
        memory_gb = provider.memory_bytes / 1e9
        if memory_gb > PLAUSIBLE_GB:
            yield (
                f"provider {provider.id} has {plain(memory_gb)} GB of memory: is that MB? "
                f"'ram' is given in GB (8 GB: \"ram\": 8)"
            )


def recompute_notes(clusters: Sequence[ClusterPlan]) -> Iterator[str]:
    names = [
        f"node_{stage.provider.id}"
        for cluster in clusters
        for stage in cluster.stages
        if stage.recompute
    ]
    if names:
        shown = _few(names)
        verb = "has" if len(names) == 1 else "have"
        yield (
            f"{shown} {verb} too little memory to keep all activations until the backward, and "
            "will compute them again"
        )


def layout_notes(
    layout: Layout, costs: CutCosts, pool: Sequence[ProviderSpec], options: PlanOptions
) -> Iterator[str]:
    wanted = options.min_cluster_size
    smallest = min(len(cluster.providers) for cluster in layout.clusters)
    if smallest < wanted:
        stages = most_stages(costs)
        if stages < wanted and stages <= len(pool):
            why = f"this model can be cut into {quantity(stages, 'stage')} at most"
        elif len(pool) < wanted:
            why = f"the pool has {quantity(len(pool), 'provider')}"
        else:
            why = "the others of the pool cannot hold even the smallest stage"
        yield f"min_cluster_size={wanted} was lowered to {smallest}: {why}"


def leaving_out_notes(
    layout: Layout, costs: CutCosts, pool: Sequence[ProviderSpec], options: PlanOptions
) -> Iterator[str]:
    """What the run would gain by doing without some of those that it uses."""
    if options.idle_gain == 1.0:
        return
    # For advice a hint suffices: it may not cost what the plan itself did.
    hasty = replace(options, idle_gain=1.0, effort=options.effort // 4)
    try:
        faster = form_clusters(costs, pool, hasty)
    except PlanError:
        return
    idle = {provider.id for provider, _ in layout.idle}
    left = [f"node_{provider.id}" for provider, _ in faster.idle if provider.id not in idle]
    gain = faster.steps_per_s / layout.steps_per_s
    if left and gain >= WORTH_SAYING:
        yield (
            f"without {_few(left)} the run would be {plain(gain, 2)}x as fast "
            f"({rate(faster.steps_per_s)} in place of {rate(layout.steps_per_s)}): idle_gain=1.0 "
            "leaves out whoever slows the others down"
        )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
