"""Improving a grouping: descend, shake, descend again, until the effort is spent.

Descent makes the best single change (`neighbours`) of one cluster after the other until none helps.
What single changes cannot reach is tried by shaking: a few clusters are taken apart and grouped
anew, merged, mixed up or reordered. Descent then repairs the surroundings, and the shake is undone
unless the plan became better.

The effort is counted in priced stages, scanned places and the like, never in seconds, and all
chance comes from one seeded generator: the same question has the same answer on every machine.

Knows nothing about how a cluster is priced, nor why a provider is idle.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from ravnest.planning.search.grouping import FEW, ORDER_EFFORT, Grouping, Rules, split, suggest
from ravnest.planning.search.neighbours import IDLE, Change
from ravnest.planning.search.pricing import EXACT_ORDER, Prices
from ravnest.planning.search.scan import Scanner
from ravnest.planning.search.seating import NOISE, Seating, Seats

REGROUP_EFFORT = 3000
"""Priced stages that grouping a few providers anew may take."""

SETTLED = 8
"""Members of a long cluster for which descent tries another place in it."""

SHAKE_EFFORT = 8
"""What a shake counts for even if it asks nothing new."""

PATIENCE = 200
"""Shakes in vain, in addition to one for each provider, after which the search ends."""


class Search:
    """A grouping under improvement."""

    def __init__(
        self,
        prices: Prices,
        scanner: Scanner,
        rules: Rules,
        grouping: Grouping,
        generator: random.Random,
    ) -> None:
        self._prices, self._scanner, self._rules = prices, scanner, rules
        self._random = generator
        self._seating = Seating(prices, scanner, rules, grouping)
        self._shakes = 0
        self._looks = 0

    @property
    def grouping(self) -> Grouping:
        return self._seating.grouping

    def run(self, effort: int) -> None:
        """Improve the grouping until the effort is spent or shaking has long been in vain."""
        limit = self._cost() + effort
        self._descend(limit)
        patience = PATIENCE + len(self._seating.near.kind)
        in_vain = 0
        while self._seating.seats and self._cost() < limit and in_vain < patience:
            in_vain = 0 if self._shake(limit) else in_vain + 1

    def _cost(self) -> int:
        """Effort spent: what is done for the whole pool at once counts by the size of the pool."""
        scan = 1 + len(self._prices.kinds) // 64
        look = 1 + len(self._seating.near.kind) // 256
        scanned, looked = self._scanner.scanned * scan, self._looks * look
        return self._prices.priced + scanned + looked + self._shakes * SHAKE_EFFORT

    # -- descent ---------------------------------------------------------------------------------

    def _descend(self, limit: int) -> None:
        changed = self._seating.changed
        while changed and self._cost() < limit:
            cluster = changed.popleft()
            if cluster in self._seating.seats and self._improve(cluster):
                changed.append(cluster)

    def _improve(self, cluster: int) -> bool:
        """Make one of the three most promising changes of this cluster that keeps its promise."""
        seating = self._seating
        self._looks += len(seating.near.watched[cluster])
        changes = seating.near.changes(cluster, self._rules.idle_price)
        least = NOISE * seating.rates[cluster]
        promising = [change for change in changes if change.gain > least]
        promising.sort(key=lambda change: -change.gain)
        if any(self._make(change) for change in promising[:3]):
            return True
        if len(seating.seats[cluster]) <= EXACT_ORDER:
            return False
        return any(self._settle(cluster, slot) for slot in seating.near.watched[cluster][:SETTLED])

    def _settle(self, cluster: int, slot: int) -> bool:
        """Take one provider of a long cluster to its best place in it, if that helps."""
        seating = self._seating
        rest = [other for other in seating.seats[cluster] if other != slot]
        self._prices.head(seating.order(rest[:-1]), len(rest) + 1)  # shared by all places
        orders = [[*rest[:at], slot, *rest[at:]] for at in range(len(rest) + 1)]
        best = max(orders, key=lambda slots: self._prices.rate(seating.order(slots)))
        return seating.attempt({cluster: best})

    def _make(self, change: Change) -> bool:
        seats, home = self._seating.seats, self._seating.near.home
        proposed: dict[int, Seats] = {}
        if change.trade is not None:
            a, b = change.trade
            swap = {a: b, b: a}
            for cluster in {int(home[a]), int(home[b])} - {IDLE}:
                proposed[cluster] = [swap.get(slot, slot) for slot in seats[cluster]]
        for slot, target in change.moves:
            source = int(home[slot])
            if source != IDLE:
                staying = proposed.get(source, seats[source])
                proposed[source] = [other for other in staying if other != slot]
            if target != IDLE:
                proposed[target] = self._with(target, slot)
        return self._seating.attempt(proposed)

    def _with(self, cluster: int, slot: int) -> Seats:
        """The cluster with one more member, at the place that suits it best."""
        slots, kind = self._seating.seats[cluster], self._seating.near.kind[slot]
        order = self._seating.order(slots)
        rates = [self._scanner.joined(order, place)[kind] for place in range(len(slots) + 1)]
        at = rates.index(max(rates))
        return [*slots[:at], slot, *slots[at:]]

    # -- shaking ---------------------------------------------------------------------------------

    def _shake(self, limit: int) -> bool:
        """Whether the plan became better."""
        self._shakes += 1
        seating = self._seating
        saved, value = seating.save(), seating.value
        shakes = [self._regroup, self._regroup, self._mix, self._mix, self._reorder, self._merge]
        if self._random.choice(shakes)():
            self._descend(limit)
        better = seating.value > value + NOISE * sum(seating.rates.values())
        if not better:
            seating.restore(saved)
        seating.changed.clear()
        return better

    def _reorder(self) -> bool:
        """All orders of a cluster if it is not too long, else the best place for one provider."""
        seating = self._seating
        long = [c for c, slots in seating.seats.items() if len(slots) > EXACT_ORDER]
        if not long:
            return False
        cluster = self._random.choice(long)
        slots = list(seating.seats[cluster])
        if len(slots) <= FEW:
            _, order = self._prices.best_order(seating.order(slots), ORDER_EFFORT)
            return seating.attempt({cluster: seating.seat([order], slots)[0]})
        return self._settle(cluster, self._random.choice(slots))

    def _mix(self) -> bool:
        """Let a few providers trade places at random, better or worse."""
        seating = self._seating
        clusters = self._random.choices(list(seating.seats), k=2)
        seats = {cluster: list(seating.seats[cluster]) for cluster in clusters}
        for _ in range(self._random.randint(1, 3)):
            a, b = (seats[cluster] for cluster in clusters)
            i, j = self._random.randrange(len(a)), self._random.randrange(len(b))
            a[i], b[j] = b[j], a[i]
        arranged = {c: self._prices.arrange(seating.order(slots)) for c, slots in seats.items()}
        if any(rate <= 0 for rate, _ in arranged.values()):
            return False
        for cluster, (rate, order) in arranged.items():
            seating.put(cluster, seating.seat([order], seats[cluster])[0], rate)
        return True

    def _merge(self) -> bool:
        """Make one cluster of two, better or worse."""
        seating = self._seating
        taken = self._random.sample(list(seating.seats), min(2, len(seating.seats)))
        slots = [slot for cluster in taken for slot in seating.seats[cluster]]
        if len(taken) < 2 or len(slots) > self._rules.max_size:
            return False
        rate, order = suggest(self._prices, seating.order(slots), thorough=True)
        if rate <= 0:
            return False
        for cluster in taken:
            seating.close(cluster)
        seating.open([order], slots)
        return True

    def _regroup(self) -> bool:
        """Take a few clusters apart and group their providers anew, better or worse."""
        seating = self._seating
        taken = self._some_clusters()
        slots = [slot for cluster in taken for slot in seating.seats[cluster]]
        idle = seating.idle()
        slots += self._random.sample(idle, min(len(idle), max(FEW - len(slots), 0)))
        left = self._rules.max_clusters - len(seating.seats) + len(taken)
        if len(slots) < self._rules.min_size or left < 1:
            return False
        sequence = self._shuffled(seating.order(slots))
        rules = replace(self._rules, max_clusters=left)
        rebuilt = split(self._prices, sequence, rules, REGROUP_EFFORT)
        for cluster in taken:
            seating.close(cluster)
        seating.open(rebuilt.clusters, slots)
        return True

    def _some_clusters(self) -> list[int]:
        """Up to four small clusters, every other time with similar links, or two long ones."""
        seats, near = self._seating.seats, self._seating.near
        clusters = list(seats)
        self._random.shuffle(clusters)
        if self._random.random() < 0.5:
            kinds = self._prices.kinds
            slowest = {
                c: min(kinds[near.kind[slot]].bandwidth_mbps for slot in seats[c]) for c in clusters
            }
            start = self._random.randrange(len(clusters))
            clusters = sorted(clusters, key=slowest.__getitem__)[start : start + 8]
        taken: list[int] = []
        room = FEW
        for cluster in clusters[:8]:
            if len(seats[cluster]) <= room and len(taken) < 4:
                taken.append(cluster)
                room -= len(seats[cluster])
        return taken or clusters[:2]

    def _shuffled(self, kinds: Sequence[int]) -> list[int]:
        """Sorted by one figure with some noise, or not at all."""
        figure = self._random.choice(["bandwidth_mbps", "gflops", "memory_bytes", ""])
        noise = self._random.choice([0.0, 0.3, 1.0])

        def weight(kind: int) -> float:
            if not figure:
                return self._random.random()
            value: float = getattr(self._prices.kinds[kind], figure)
            return value * self._random.lognormvariate(0.0, noise)

        return [kind for _, kind in sorted((-weight(kind), kind) for kind in sorted(kinds))]
