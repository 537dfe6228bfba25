"""The best grouping of one pool on one set of tables: exact for small pools, searched for large.

The rule for idle providers: use everyone if possible, unless the fastest plan is `idle_gain` times
faster than that. Then use as many as possible in a plan that is still `idle_gain` times faster than
using everyone, and not more than `idle_gain` times slower than the fastest. Hence three steps, the
first two of which are the same search with another price for an idle provider (`Rules.idle_price`):

1. How fast is the run if as many as possible are used?
2. How fast could it be if anyone may be left out?
3. If that makes the difference: who can be called back without losing it?

Knows nothing about the full tables, final cuts or explanations: see `clusters`.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ravnest.plan import ProviderSpec
from ravnest.planning.costing.costs import CutCosts
from ravnest.planning.search.exact import best_grouping
from ravnest.planning.search.grouping import Grouping, Rules, best_start, least_rate
from ravnest.planning.search.improve import Search
from ravnest.planning.search.options import PlanOptions
from ravnest.planning.search.partition import Singles, StageTables, most_stages
from ravnest.planning.search.pricing import Order, Prices
from ravnest.planning.search.scan import Scanner
from ravnest.planning.search.seating import NOISE
from ravnest.planning.search.squeeze import Squeezed, squeeze

HUGE, TINY = 1e3, 2e-6
"""Prices of an idle provider, relative to a speed that no plan can reach."""

LEAST_SIZE = 32
"""Smaller pools get the effort of this one."""

PROMISING = 0.8
"""Share of the wanted gain that a quick search must find to be worth a thorough one."""


@dataclass(frozen=True)
class Problem:
    """`members[i]` is the kind of provider i: providers with equal figures are one kind."""

    tables: StageTables
    prices: Prices
    scanner: Scanner
    members: tuple[int, ...]
    rules: Rules


def pose(costs: CutCosts, providers: Sequence[ProviderSpec], options: PlanOptions) -> Problem:
    def figures(provider: ProviderSpec) -> tuple[float, float, float, float]:
        beside = provider.host_memory_bytes
        host = math.inf if beside is None else beside
        return provider.bandwidth_mbps, provider.gflops, provider.memory_bytes, host

    kinds = {figures(provider): provider for provider in providers}
    number = {key: kind for kind, key in enumerate(sorted(kinds))}
    tables = StageTables(costs, options.training)
    prices = Prices(tables, [kinds[key] for key in number])
    max_size = min(most_stages(costs), len(providers))
    rules = Rules(
        min_size=min(options.min_cluster_size, max_size),
        max_size=max_size,
        max_clusters=min(options.max_clusters or len(providers), len(providers)),
        idle_price=0.0,
    )
    members = tuple(number[figures(provider)] for provider in providers)
    return Problem(tables, prices, Scanner(tables, prices), members, rules)


def solve(problem: Problem, options: PlanOptions) -> Grouping:
    """The best grouping found; without clusters if nothing fits."""
    if len(problem.members) <= options.exact_up_to:
        return best_grouping(problem.prices, problem.members, problem.rules, options.idle_gain)
    prices = problem.prices
    n = len(problem.members)
    effort = int(options.effort * max(n, LEAST_SIZE) * (1 + n / 1000))
    least_members = min(problem.rules.min_size, 2)
    most = sum(prices.ceiling((kind,) * least_members) for kind in problem.members)

    using_all = _search(problem, options, HUGE * most, effort)
    if not using_all.clusters:
        squeezed = squeeze_in(problem, options)
        if not squeezed.fits:
            return using_all
        using_all = _search(problem, options, HUGE * most, effort, _alone(problem, squeezed.order))
    using_all = _call_back(problem, using_all, 0.0)
    needed = options.idle_gain * using_all.rate(prices)
    if not needed < most:
        return using_all
    fastest = _search(problem, options, TINY * most, effort // 8, using_all)
    if fastest.rate(prices) < PROMISING * needed:
        return using_all
    fastest = _search(problem, options, TINY * most, effort // 2, fastest)
    least = least_rate(using_all.rate(prices), fastest.rate(prices), options.idle_gain)
    return using_all if least is None else _call_back(problem, fastest, least)


def _call_back(problem: Problem, grouping: Grouping, least: float) -> Grouping:
    """Give idle providers a place, the least harmful first, as long as the run is fast enough."""
    prices = problem.prices
    clusters, idle = list(grouping.clusters), list(grouping.idle)
    rate = grouping.rate(prices)
    kept = np.array([_kept(problem, order) for order in clusters])
    before = np.array([prices.rate(order) for order in clusters])
    while idle:
        kinds = sorted(set(idle))
        loss = np.where(kept[:, kinds] > 0, before[:, None] - kept[:, kinds], np.inf)
        at, column = divmod(int(loss.argmin()), len(kinds))
        if not rate - loss[at, column] >= least * (1 - NOISE):
            break
        clusters[at] = _with(problem, clusters[at], kinds[column])
        idle.remove(kinds[column])
        rate += prices.rate(clusters[at]) - before[at]
        kept[at], before[at] = _kept(problem, clusters[at]), prices.rate(clusters[at])
    return Grouping(clusters, idle)


def _kept(problem: Problem, order: Order) -> Singles:
    """[kind]: rate of the cluster with one more provider."""
    if len(order) >= problem.rules.max_size:
        return np.zeros(len(problem.prices.kinds), dtype=np.float32)
    places = range(len(order) + 1)
    kept: Singles = np.max([problem.scanner.joined(order, place) for place in places], axis=0)
    return kept


def _with(problem: Problem, order: Order, kind: int) -> Order:
    rates = [problem.scanner.joined(order, place)[kind] for place in range(len(order) + 1)]
    place = rates.index(max(rates))
    return (*order[:place], kind, *order[place:])


def squeeze_in(problem: Problem, options: PlanOptions) -> Squeezed:
    """The single cluster that comes closest to holding the model."""
    sizes = range(problem.rules.min_size, problem.rules.max_size + 1)
    generator = random.Random(options.seed)
    return squeeze(problem.tables, problem.prices, problem.members, sizes, generator)


def _alone(problem: Problem, order: Order) -> Grouping:
    idle = list(problem.members)
    for kind in order:
        idle.remove(kind)
    return Grouping([order], idle)


def _search(
    problem: Problem,
    options: PlanOptions,
    idle_price: float,
    effort: int,
    known: Grouping | None = None,
) -> Grouping:
    prices = problem.prices
    rules = replace(problem.rules, idle_price=idle_price)
    starts = [best_start(prices, problem.members, rules, effort), *([known] if known else [])]
    best = max(starts, key=lambda start: start.rate(prices) - idle_price * len(start.idle))
    search = Search(prices, problem.scanner, rules, best, random.Random(options.seed))
    search.run(effort)
    return search.grouping
