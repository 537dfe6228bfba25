"""The best grouping of a small pool, by looking at all of them.

With n providers there are 2^n sets. The fastest order of each set is found by branch and bound
(`pricing`), and the best plan for a set is some cluster that contains its first provider plus the
best plan for the others. Both are tables over sets (bit masks), so that every question about who
should be idle has an exact answer.

Knows nothing about pools too large for this: see `improve`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ravnest.planning.search.grouping import Grouping, Rules, least_rate
from ravnest.planning.search.pricing import Order, Prices


@dataclass(frozen=True)
class _Plan:
    """The fastest clusters that use a set of providers completely."""

    rate: float
    clusters: tuple[Order, ...]


def best_grouping(
    prices: Prices, members: Sequence[int], rules: Rules, idle_gain: float
) -> Grouping:
    """The best plan under the rule for idle providers (see `solve`)."""
    plans = _plans(prices, members, rules)

    def most_used(used: int) -> tuple[int, float, int]:
        return used.bit_count(), plans[used].rate, -used

    best = max(plans, key=most_used)
    fastest = max(plan.rate for plan in plans.values())
    least = least_rate(plans[best].rate, fastest, idle_gain)
    if least is not None:
        best = max((used for used, plan in plans.items() if plan.rate >= least), key=most_used)
    idle = [kind for i, kind in enumerate(members) if not best >> i & 1]
    return Grouping(list(plans[best].clusters), idle)


def _plans(prices: Prices, members: Sequence[int], rules: Rules) -> dict[int, _Plan]:
    """For each set of providers that some plan uses exactly, the fastest such plan."""
    clusters = _clusters(prices, members, rules)
    best = {0: _Plan(0.0, ())}
    latest = best
    for _ in range(min(rules.max_clusters, len(members) // rules.min_size)):
        # One cluster more than before; it comes before the others, so that each plan is met once.
        grown: dict[int, _Plan] = {}
        for rest, plan in latest.items():
            for used in _before(rest, len(members)):
                if used not in clusters:
                    continue
                rate, order = clusters[used]
                known = grown.get(used | rest)
                if known is None or plan.rate + rate > known.rate:
                    grown[used | rest] = _Plan(plan.rate + rate, (order, *plan.clusters))
        for used, plan in grown.items():
            if used not in best or plan.rate > best[used].rate:
                best[used] = plan
        latest = grown
    return best


def _clusters(
    prices: Prices, members: Sequence[int], rules: Rules
) -> dict[int, tuple[float, Order]]:
    found = {}
    for used in range(1, 1 << len(members)):
        if rules.min_size <= used.bit_count() <= rules.max_size:
            kinds = tuple(kind for i, kind in enumerate(members) if used >> i & 1)
            rate, order = prices.best_order(kinds)
            if rate > 0:
                found[used] = rate, order
    return found


def _before(rest: int, n: int) -> Iterator[int]:
    """Sets disjoint from `rest` whose first provider comes before all of `rest`."""
    first = (rest & -rest).bit_length() - 1 if rest else n
    free = ((1 << n) - 1) & ~rest
    used = free
    while used:
        if (used & -used).bit_length() - 1 < first:
            yield used
        used = (used - 1) & free
