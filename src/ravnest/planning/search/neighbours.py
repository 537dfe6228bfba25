"""What every single change of a grouping is worth, kept up to date as the grouping changes.

Two providers of different clusters may trade places, or one may move, join or leave. A pool of a
thousand has a million such changes, yet each is the sum of terms that belong to one cluster alone:

    trade s and t     rate(A with t for s) + rate(B with s for t) - rate(A) - rate(B)
    move s to B       rate(A without s)    + rate(B with s)       - rate(A) - rate(B)
    dissolve A        the sum over its members of rate(B with s) - rate(B), for different B
                      - rate(A)

So a cluster's terms are computed when the cluster changes (`scan` prices all partners at once) and
the best change of a cluster is found by adding rows of arrays. Idle providers are treated as a
cluster of rate 0.

Knows nothing about which change to make: see `improve`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from ravnest.planning.costing.costs import Ints
from ravnest.planning.search.partition import Singles
from ravnest.planning.search.pricing import EXACT_ORDER, Order, Prices
from ravnest.planning.search.scan import Scanner

IDLE = -1

TRIED = 2048
LEAST_TRIED = 8
"""Changes of a long cluster that are kept: so many in all, at no fewer places than this."""


@dataclass(frozen=True)
class Change:
    """What it is worth if slots move to other clusters, or if two of them trade places."""

    gain: float
    moves: tuple[tuple[int, int], ...] = ()
    """Pairs of a slot and the cluster it moves to (or IDLE)."""
    trade: tuple[int, int] | None = None


class Neighbours:
    """Terms of all changes. A *slot* is one provider of the pool, with a fixed kind."""

    def __init__(self, prices: Prices, scanner: Scanner, kinds: Sequence[int]) -> None:
        n, count = len(kinds), len(prices.kinds)
        self._prices, self._scanner = prices, scanner
        self.kind: Ints = np.array(kinds, dtype=np.int64)
        self.home: Ints = np.full(n, IDLE, dtype=np.int64)
        self._home_rate = np.zeros(n, dtype=np.float32)
        self._traded = np.zeros((n, count), dtype=np.float32)
        """[slot, kind]: rate of the slot's cluster with another kind in its place."""
        self._left = np.zeros(n, dtype=np.float32)
        """[slot]: rate of the slot's cluster without it."""
        self._rate = np.zeros(n, dtype=np.float32)
        self.watched: dict[int, list[int]] = {}
        """Members of each cluster whose changes are kept."""
        self._tried = max(LEAST_TRIED, TRIED // count)
        self._joined = np.full((n, count), -np.inf, dtype=np.float32)
        """[cluster, kind]: rate of the cluster with one more provider."""

    def release(self, slots: Sequence[int]) -> None:
        """These providers are idle now."""
        at = list(slots)
        self.home[at] = IDLE
        self._home_rate[at] = self._left[at] = 0
        self._traded[at] = 0

    def close(self, cluster: int) -> None:
        self._joined[cluster] = -np.inf

    def update(
        self, cluster: int, slots: Sequence[int], rate: float, *, may_grow: bool, may_shrink: bool
    ) -> None:
        """Recompute the terms of one cluster whose members, in pipeline order, are `slots`."""
        order: Order = tuple(self.kind[slots].tolist())
        self.home[slots], self._home_rate[slots], self._rate[cluster] = cluster, rate, rate
        self._traded[slots] = self._left[slots] = self._joined[cluster] = -np.inf
        places = self._critical(order)
        self.watched[cluster] = [slots[at] for at in places]
        for at in places:
            rest = order[:at] + order[at + 1 :]
            self._traded[slots[at]] = self._best_join(rest, [at])
            if may_shrink:
                self._left[slots[at]] = self._rate_without(rest)
        if may_grow:
            ends = {place + side for place in places[: self._tried // 2] for side in (0, 1)}
            self._joined[cluster] = self._best_join(order, sorted(ends))

    def _critical(self, order: Order) -> list[int]:
        """The places to look at: all of a short cluster, the bottlenecks of a long one.

        Providers that are better than their place needs are of interest too: others may want them.
        """
        places = list(range(len(order)))
        if len(order) <= self._tried:
            return places
        places.sort(key=lambda at: -self._prices.relief(order, at))
        spare = self._tried // 4
        return places[: self._tried - spare] + places[-spare:]

    def _rate_without(self, rest: Order) -> float:
        if not rest:
            return 0.0
        rate, _ = self._prices.arrange(rest)
        return rate if rate > 0 else -np.inf

    def _best_join(self, order: Order, places: Sequence[int]) -> Singles:
        """[kind]: rate with one more provider; short clusters may be put in any order."""
        orders: list[Order] = [order]
        if len(order) < EXACT_ORDER - 1:
            orders = list(dict.fromkeys(permutations(order)))
        if len(order) < EXACT_ORDER:
            places = range(len(order) + 1)
        found = [self._scanner.joined(given, place) for given in orders for place in places]
        best: Singles = np.max(found, axis=0)
        return np.where(best > 0, best, np.float32(-np.inf))

    def changes(self, cluster: int, idle_price: float) -> Iterator[Change]:
        """For each member the best trade, move and leave; the best newcomers; dissolution."""
        rate = float(self._rate[cluster])
        inside = self.home == cluster
        refuge: dict[int, int] = {}
        refuge_gain = 0.0
        for slot in self.watched[cluster]:
            kind = self.kind[slot]
            gain = self._traded[slot, self.kind] + self._traded[:, kind]
            gain -= self._home_rate
            gain[inside] = -np.inf
            best = int(gain.argmax())
            yield Change(float(gain[best]) - rate, trade=(slot, best))
            gain = self._joined[:, kind] - self._rate
            gain[[cluster, *refuge.values()]] = -np.inf
            best = int(gain.argmax())
            refuge[slot] = best
            refuge_gain += float(gain[best])
            leaving = float(self._left[slot]) - rate
            yield Change(float(gain[best]) + leaving, ((slot, best),))
            yield Change(leaving - idle_price, ((slot, IDLE),))
        if len(refuge) <= EXACT_ORDER:
            yield Change(refuge_gain - rate, tuple(refuge.items()))
        gain = self._joined[cluster, self.kind] + self._left - self._home_rate
        gain[inside] = -np.inf
        for among, price in ((self.home == IDLE, idle_price), (self.home != IDLE, 0.0)):
            best = int(np.where(among, gain, -np.inf).argmax())
            if among[best]:
                yield Change(float(gain[best]) - rate + price, ((best, cluster),))
