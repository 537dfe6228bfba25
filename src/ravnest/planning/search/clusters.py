"""Which providers work together, in which order, with which cuts, and who is not needed.

A plan's speed is the sum over its clusters of batches per second. Groups and orders are chosen on
few cut points (`solve`), the cuts of the chosen clusters on the full tables (`partition`).

Everybody is used if possible. A provider stays idle only if no plan can use it, or if the run
without it is at least `idle_gain` times faster; each one is told why, with figures (`reasons`).

What several clusters have to hold in order to average counts as memory, and one cluster does not
need it: both are planned for, and the better layout is taken.

Knows nothing about models or files: tables and providers in, a layout out. The traffic of averaging
is not priced here, and neither is a provider's latency.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ravnest.errors import PlanError
from ravnest.plan import ProviderSpec
from ravnest.planning.costing.costs import CutCosts
from ravnest.planning.search import reasons
from ravnest.planning.search.coarse import CoarseCosts, coarsen
from ravnest.planning.search.grouping import Grouping, least_rate
from ravnest.planning.search.options import PlanOptions
from ravnest.planning.search.partition import Cut, StageTables, best_cut, most_stages, refine
from ravnest.planning.search.solve import Problem, pose, solve, squeeze_in

__all__ = ["ClusterLayout", "Layout", "PlanOptions", "form_clusters"]

FINE_POINTS = 256
"""Cut points that final cuts are chosen from; `refine` then uses all of them."""

LAST_POINTS = 640
"""Cut points for the last attempt if the model seems not to fit."""


@dataclass(frozen=True)
class ClusterLayout:
    """Providers in pipeline order, and where the model is cut between them."""

    providers: tuple[ProviderSpec, ...]
    cut: Cut


@dataclass(frozen=True)
class Layout:
    """The fastest cluster comes first. Idle providers come with the reason."""

    clusters: tuple[ClusterLayout, ...]
    idle: tuple[tuple[ProviderSpec, str], ...]

    @property
    def steps_per_s(self) -> float:
        """Batches per second of the whole run."""
        return sum(1.0 / cluster.cut.step_s for cluster in self.clusters)


def form_clusters(
    costs: CutCosts, providers: Sequence[ProviderSpec], options: PlanOptions | None = None
) -> Layout:
    """The fastest layout found for this pool; `PlanError` if the model fits on no part of it."""
    options = options or PlanOptions()
    smallest = min(options.min_cluster_size, most_stages(costs), len(providers))
    never_several = options.max_clusters == 1 or len(providers) < 2 * smallest
    if never_several or not costs.averaged_bytes.any():
        return _form(costs, providers, options)
    single = replace(options, max_clusters=1)
    averaging = replace(options.training, averages=True)
    try:
        several = _form(costs, providers, replace(options, training=averaging))
    except PlanError:
        return _form(costs, providers, single)
    # A small pool is planned twice, a large one only if one cluster could use more providers.
    used = len(providers) - len(several.idle)
    searched = len(providers) > options.exact_up_to
    if searched and len(several.clusters) > 1 and used >= min(most_stages(costs), len(providers)):
        return several
    try:
        return _preferred(several, _form(costs, providers, single), options.idle_gain)
    except PlanError:
        return several


def _preferred(one: Layout, other: Layout, idle_gain: float) -> Layout:
    """The one that uses more providers, unless the other is so many times faster (see `solve`)."""
    more, fewer = sorted((one, other), key=lambda layout: (len(layout.idle), -layout.steps_per_s))
    return more if least_rate(more.steps_per_s, fewer.steps_per_s, idle_gain) is None else fewer


def _form(costs: CutCosts, providers: Sequence[ProviderSpec], options: PlanOptions) -> Layout:
    too_small = reasons.too_small(costs, providers, options.training)
    usable = [provider for at, provider in enumerate(providers) if at not in too_small]
    useless = tuple((providers[at], reason) for at, reason in too_small.items())
    nearest = None
    for fine, points in _resolutions(costs, usable, options):
        problem = pose(coarsen(fine.costs, points).costs, usable, options)
        grouping = solve(problem, options)
        if grouping.clusters:
            layout = _lay_out(_Cuts(costs, fine, options), problem, grouping, usable)
            return Layout(layout.clusters, useless + layout.idle)
        nearest = squeeze_in(problem, options)
    raise PlanError(reasons.why_nothing_fits(costs, providers, nearest, options.training))


def _resolutions(
    costs: CutCosts, providers: Sequence[ProviderSpec], options: PlanOptions
) -> Iterator[tuple[CoarseCosts, int]]:
    """Tables for the final cuts and cut points for the search; finer ones in case of failure."""
    largest = max((provider.memory_bytes for provider in providers), default=0)
    if reasons.indivisible_bytes(costs, options.training) > largest:
        return
    fine = coarsen(costs, FINE_POINTS)
    points = _search_points(costs, providers, options)
    yield fine, points
    if points < len(fine.points):
        yield fine, FINE_POINTS
    if costs.cut_points > FINE_POINTS:
        yield coarsen(costs, LAST_POINTS), LAST_POINTS


def _search_points(costs: CutCosts, providers: Sequence[ProviderSpec], options: PlanOptions) -> int:
    """Fewer cut points for larger pools, but enough of them for the pipelines to expect."""
    by_pool = 128 * math.sqrt(32 / max(len(providers), 32))
    memory = sorted(provider.memory_bytes for provider in providers)
    stages = reasons.training_bytes(costs, options.training) / max(memory[len(memory) // 2], 1)
    if options.max_clusters is not None:
        stages = max(stages, len(providers) / options.max_clusters)
    return int(min(max(48, by_pool, 5 * stages), FINE_POINTS))


class _Cuts:
    """Final cuts; clusters of equal providers share one."""

    def __init__(self, costs: CutCosts, fine: CoarseCosts, options: PlanOptions) -> None:
        self._costs, self._fine, self._training = costs, fine, options.training
        self._tables = StageTables(fine.costs, options.training)

    def of(self, providers: tuple[ProviderSpec, ...]) -> Cut:
        training = self._training
        cut = best_cut(self._fine.costs, providers, training, tables=self._tables)
        assert cut is not None, "the search priced this cluster on a subset of these cut points"
        return refine(self._costs, self._fine, providers, training, cut)


def _lay_out(
    cuts: _Cuts, problem: Problem, grouping: Grouping, providers: Sequence[ProviderSpec]
) -> Layout:
    """Seat providers for kinds, cut the model for them, and explain who is idle."""
    waiting: dict[int, list[ProviderSpec]] = {}
    for kind, provider in zip(problem.members, providers, strict=True):
        waiting.setdefault(kind, []).append(provider)
    seated = [
        (order, tuple(waiting[kind].pop(0) for kind in order))
        for order in sorted(grouping.clusters)
    ]
    found = [(order, ClusterLayout(members, cuts.of(members))) for order, members in seated]
    found.sort(key=lambda entry: (entry[1].cut.step_s, entry[0]))
    rates = [(order, 1 / cluster.cut.step_s) for order, cluster in found]
    why = {kind: reasons.idle(problem, rates, grouping.idle, kind) for kind in set(grouping.idle)}
    idle = [(provider, why[kind]) for kind in sorted(why) for provider in waiting[kind]]
    return Layout(tuple(cluster for _, cluster in found), tuple(idle))
