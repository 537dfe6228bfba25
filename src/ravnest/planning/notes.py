"""What a requester should know about a plan although nothing is wrong with it.

A note says where a wish was not granted, or where a figure looks like a slip of the pen. It stops
nobody: what cannot work is an error, and raised elsewhere.
"""

from collections.abc import Iterator, Sequence

from ravnest.plan import ClusterPlan, ProviderSpec
from ravnest.planning.costing.costs import CutCosts
from ravnest.planning.figures import plain, quantity
from ravnest.planning.search.clusters import Layout, PlanOptions
from ravnest.planning.search.partition import most_stages

PLAUSIBLE_GB = 2048
"""More than this in one machine is usually a figure in MB."""


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
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
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
