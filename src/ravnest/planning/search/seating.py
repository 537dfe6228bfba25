"""Who sits where: a grouping that can be changed, and put back.

The search thinks in *slots*, one for each provider of the pool, because two providers of one kind
may sit in different clusters. Prices think in kinds. This file translates, keeps the rate of each
cluster, tells `neighbours` what has changed, and remembers which clusters did.

Knows nothing about which changes are worth trying: see `improve`.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from ravnest.planning.search.grouping import Grouping, Rules
from ravnest.planning.search.neighbours import IDLE, Neighbours
from ravnest.planning.search.pricing import Order, Prices
from ravnest.planning.search.scan import Scanner

NOISE = 1e-6
"""Relative gain that counts as an improvement."""

Seats = list[int]
"""Slots of one cluster in pipeline order."""


class Seating:
    """Clusters by number; `changed` has the numbers of those that changed and await a look."""

    def __init__(self, prices: Prices, scanner: Scanner, rules: Rules, grouping: Grouping) -> None:
        self._prices, self._rules = prices, rules
        kinds = sorted([*grouping.idle, *(k for order in grouping.clusters for k in order)])
        self.near = Neighbours(prices, scanner, kinds)
        self.seats: dict[int, Seats] = {}
        self.rates: dict[int, float] = {}
        self.changed: deque[int] = deque()
        fastest_first = sorted(grouping.clusters, key=lambda order: (-prices.rate(order), order))
        self.open(fastest_first, range(len(kinds)))

    @property
    def grouping(self) -> Grouping:
        orders = [self.order(slots) for slots in self.seats.values()]
        return Grouping(orders, list(self.order(self.idle())))

    @property
    def value(self) -> float:
        """What the search maximises: batches per second, less the price of idle providers."""
        idle = len(self.near.kind) - sum(len(slots) for slots in self.seats.values())
        return sum(self.rates.values()) - self._rules.idle_price * idle

    def order(self, slots: Iterable[int]) -> Order:
        return tuple(self.near.kind[list(slots)].tolist())

    def idle(self) -> Seats:
        return [slot for slot, home in enumerate(self.near.home.tolist()) if home == IDLE]

    def seat(self, orders: Sequence[Order], slots: Iterable[int]) -> list[Seats]:
        """Slots for orders of kinds, taken from the given ones."""
        waiting: dict[int, Seats] = {}
        for slot in slots:
            waiting.setdefault(int(self.near.kind[slot]), []).append(slot)
        return [[waiting[kind].pop() for kind in order] for order in orders]

    def attempt(self, proposed: dict[int, Seats]) -> bool:
        """Put these clusters in place of the present ones if that makes the plan better."""
        before = {slot for cluster in proposed for slot in self.seats[cluster]}
        after = {slot for slots in proposed.values() for slot in slots}
        needed = (1 + NOISE) * sum(self.rates[cluster] for cluster in proposed)
        needed += self._rules.idle_price * (len(before) - len(after))
        arranged: dict[int, tuple[float, Order]] = {}
        for cluster, slots in proposed.items():
            arranged[cluster] = self._prices.arrange(self.order(slots)) if slots else (0.0, ())
            if slots and arranged[cluster][0] <= 0:
                return False
        if sum(rate for rate, _ in arranged.values()) <= needed:
            return False
        self.near.release(sorted(before - after))
        for cluster, (rate, order) in arranged.items():
            self.put(cluster, self.seat([order], proposed[cluster])[0], rate)
        return True

    def put(self, cluster: int, slots: Seats, rate: float) -> None:
        """Seat a cluster; its former members sit elsewhere by now, or have been released."""
        if not slots:
            self.near.close(cluster)
            del self.seats[cluster], self.rates[cluster]
            return
        self.seats[cluster], self.rates[cluster] = slots, rate
        may_shrink = len(slots) > self._rules.min_size or len(slots) == 1
        may_grow = len(slots) < self._rules.max_size
        self.near.update(cluster, slots, rate, may_grow=may_grow, may_shrink=may_shrink)
        self.changed.append(cluster)

    def open(self, orders: Sequence[Order], slots: Iterable[int]) -> None:
        """Found clusters of slots that are idle so far."""
        unused = [c for c in range(len(self.near.kind)) if c not in self.seats]
        for cluster, order, seats in zip(unused, orders, self.seat(orders, slots), strict=False):
            self.put(cluster, seats, self._prices.rate(order))

    def close(self, cluster: int) -> None:
        """Its members are idle now."""
        self.near.release(self.seats.pop(cluster))
        self.near.close(cluster)
        del self.rates[cluster]

    def save(self) -> dict[int, tuple[Seats, float]]:
        return {cluster: (slots, self.rates[cluster]) for cluster, slots in self.seats.items()}

    def restore(self, saved: dict[int, tuple[Seats, float]]) -> None:
        for cluster, slots in list(self.seats.items()):
            if cluster not in saved or saved[cluster][0] != slots:
                self.close(cluster)
        for cluster, (slots, rate) in saved.items():
            if cluster not in self.seats:
                self.put(cluster, slots, rate)
