"""The best plan for a tiny pool, by trying every order of every group.

Slow and obviously right: the yardstick for the planner, with which it shares the cost tables and
nothing else. `best_step_s` tries every cut too; `best_rate` finds the best cut of each order by
prepending one provider at a time to all tails.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from ravnest.plan import ProviderSpec
from ravnest.planning.costing.costs import CutCosts, TrainingMemory

Group = tuple[int, ...]


def stage_seconds(
    costs: CutCosts, provider: ProviderSpec, distance: int, training: TrainingMemory, parts: int
) -> np.ndarray:
    """[p, q]: seconds per batch, infinite where the stage is not allowed or does not fit.

    `distance` is 1 for the last stage of a pipeline, 2 for the one before, and so on; `parts` are
    the micro-batches of a batch.
    """
    points = costs.cut_points
    table = np.full((points, points), np.inf)
    memory = costs.memory_at(..., 0, distance, training)
    frugal = costs.memory_at(..., 0, distance, training, recompute=True)
    trained = costs.parameter_operators
    for p in range(points):
        for q in range(p + 1, points):
            if trained[-1] > 0 and trained[q] == trained[p]:
                continue
            again = memory[p, q] > provider.memory_bytes
            if again and (distance == 1 or frugal[p, q] > provider.memory_bytes):
                continue
            alone = p == 0 and q == points - 1
            link = 0.0 if alone else max(costs.sent_bytes(p, q), costs.received_bytes(p, q))
            compute_s = costs.compute_seconds(p, q, provider.gflops, recompute=again)
            fixed_s = costs.fixed_seconds(p, q, parts)
            table[p, q] = max(compute_s + fixed_s, link / provider.bytes_per_s)
    return table


def best_step_s(
    costs: CutCosts, providers: Sequence[ProviderSpec], training: TrainingMemory
) -> float:
    """Seconds per batch at the best of all cuts for this order; infinite if none fits."""
    stages, last = len(providers), costs.cut_points - 1
    parts = training.division.parts(stages)
    tables = [stage_seconds(costs, p, stages - k, training, parts) for k, p in enumerate(providers)]
    cuts = combinations(range(1, last), stages - 1)
    return min(
        (
            max(float(t[p, q]) for t, p, q in zip(tables, (0, *cut), (*cut, last), strict=True))
            for cut in cuts
        ),
        default=float("inf"),
    )


def group_rates(
    costs: CutCosts, providers: Sequence[ProviderSpec], training: TrainingMemory
) -> dict[Group, float]:
    """Batches per second of every group in its best order; groups that do not fit are absent."""
    n = len(providers)
    sizes: dict[int, set[int]] = {}
    for stages in range(1, n + 1):
        sizes.setdefault(training.division.parts(stages), set()).add(stages)
    rates: dict[Group, float] = {}
    for parts, alike in sizes.items():
        rates |= _rates_of_sizes(costs, providers, training, parts, alike)
    return rates


def _rates_of_sizes(
    costs: CutCosts,
    providers: Sequence[ProviderSpec],
    training: TrainingMemory,
    parts: int,
    sizes: set[int],
) -> dict[Group, float]:
    """The same of groups of these sizes, all of which divide batches into as many parts."""
    n = len(providers)
    tables = {
        (i, distance): stage_seconds(costs, providers[i], distance, training, parts)
        for i in range(n)
        for distance in range(1, max(sizes) + 1)
    }
    rates: dict[Group, float] = {}

    def prepend(tail: Group, from_point: np.ndarray) -> None:
        for i in set(range(n)) - set(tail):
            table = tables[i, len(tail) + 1]
            longer = np.maximum(table, from_point).min(axis=1)
            group = tuple(sorted((i, *tail)))
            if np.isfinite(longer[0]) and len(group) in sizes:
                rates[group] = max(rates.get(group, 0.0), 1 / float(longer[0]))
            if np.isfinite(longer).any() and len(group) < max(sizes):
                prepend((i, *tail), longer)

    at_end = np.full(costs.cut_points, np.inf)
    at_end[-1] = 0.0
    prepend((), at_end)
    return rates


def partitions(members: Group) -> Iterator[tuple[Group, ...]]:
    """All ways to divide the members into groups."""
    if not members:
        yield ()
        return
    first, others = members[0], members[1:]
    for size in range(len(others) + 1):
        for mates in combinations(others, size):
            rest = tuple(member for member in others if member not in mates)
            for groups in partitions(rest):
                yield ((first, *mates), *groups)


def best_rate(
    costs: CutCosts,
    providers: Sequence[ProviderSpec],
    training: TrainingMemory,
    *,
    min_cluster_size: int,
    max_clusters: int | None = None,
    may_idle: bool = True,
) -> float:
    """Batches per second of the best plan; 0 if there is none.

    `may_idle`: any provider may be left out. Otherwise every one has to be used.
    """
    n = len(providers)
    smallest = min(min_cluster_size, n)
    most = n if max_clusters is None else max_clusters
    rates = {
        group: rate
        for group, rate in group_rates(costs, providers, training).items()
        if len(group) >= smallest
    }
    best = 0.0
    for used in range(1 if may_idle else n, n + 1):
        for members in combinations(range(n), used):
            for groups in partitions(members):
                if len(groups) <= most and all(group in rates for group in groups):
                    best = max(best, sum(rates[group] for group in groups))
    return best
