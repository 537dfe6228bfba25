"""From a sequence of providers to clusters: the best way to cut the sequence itself.

Choosing clusters is hard because there are so many sets. Given a *sequence* of providers, though,
the best grouping into runs of neighbours is a dynamic programme again: the best plan for the first
i providers is the best plan for some shorter prefix plus one cluster. So the search only has to
look for good sequences (sorted by link, speed or memory, or shuffled), and each of them is decoded
at its best.

Knows nothing about the order inside a cluster (`pricing`) or about improving a plan (`improve`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ravnest.planning.search.pricing import EXACT_ORDER, Order, Prices

SHORT = 64
"""Sequences up to this length are decoded with every provider optional, if clusters are short."""

FEW, ORDER_EFFORT = 9, 1000
"""So few providers are put in order thoroughly, for so many priced stages."""

HOPELESS = 16
"""So many providers in a row with which no cluster can begin: the remaining ones are given up."""

START_EFFORT = 40_000
"""Priced stages that decoding one sequence may take."""


@dataclass(frozen=True)
class Rules:
    """What a plan may look like, and what using a provider is worth.

    Searches differ in `idle_price`, the batches per second charged for each idle provider: a huge
    price uses as many providers as possible, a tiny one looks for the fastest plan.
    """

    min_size: int
    max_size: int
    max_clusters: int
    idle_price: float


@dataclass
class Grouping:
    """Clusters (kinds in pipeline order), and the kinds left over."""

    clusters: list[Order] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)

    def rate(self, prices: Prices) -> float:
        return sum(prices.rate(order) for order in self.clusters)


def least_rate(using_all: float, fastest: float, idle_gain: float) -> float | None:
    """The rate a plan with idle providers must have; None if everyone is to be used."""
    if fastest <= using_all or fastest < idle_gain * using_all:
        return None
    return max(fastest / idle_gain, idle_gain * using_all)


def best_start(prices: Prices, members: Sequence[int], rules: Rules, effort: int) -> Grouping:
    """The best grouping of the sequences that suggest themselves.

    Each sequence may spend up to a third of the effort; most need far less.
    """
    effort = min(effort // 3, START_EFFORT)

    def best(rules: Rules) -> Grouping:
        groupings = [
            split(prices, sequence, rules, effort)
            for sequence in _sequences(prices, members, rules)
        ]
        return max(groupings, key=lambda g: g.rate(prices) - rules.idle_price * len(g.idle))

    # Where clusters are scarce, only large ones use everyone; but large ones may not fit.
    enough = min(-(-len(members) // rules.max_clusters), rules.max_size)
    if rules.idle_price > 0 and enough > rules.min_size:
        large = best(replace(rules, min_size=enough))
        if not large.idle:
            return large
    return best(rules)


@dataclass(frozen=True)
class _Prefix:
    """The best plan known for a prefix of the sequence: its value and its last step."""

    value: float
    start: int
    clusters: int
    order: Order | None


class _Prefixes:
    """Best plans by length of the prefix and, if clusters are scarce, by their number."""

    def __init__(self, n: int) -> None:
        self.best: list[dict[int, _Prefix]] = [{} for _ in range(n + 1)]
        self.best[0][0] = _Prefix(0.0, 0, 0, None)

    def offer(self, at: int, clusters: int, prefix: _Prefix) -> None:
        known = self.best[at].get(clusters)
        if known is None or prefix.value > known.value:
            self.best[at][clusters] = prefix

    def trace(self, sequence: Sequence[int]) -> Grouping:
        at = len(sequence)
        used = max(self.best[at], key=lambda clusters: self.best[at][clusters].value)
        grouping = Grouping()
        while at > 0:
            prefix = self.best[at][used]
            if prefix.order is None:
                grouping.idle += sequence[prefix.start : at]
            else:
                grouping.clusters.append(prefix.order)
            at, used = prefix.start, prefix.clusters
        return grouping


def split(prices: Prices, sequence: Sequence[int], rules: Rules, effort: int) -> Grouping:
    """The best grouping of a sequence into runs of neighbours, with idle providers in between.

    Once the effort is spent, or no cluster has begun for long, the remaining ones stay idle.
    """
    n = len(sequence)
    scarce = rules.max_clusters < n // rules.min_size
    limit = prices.priced + effort
    prefixes = _Prefixes(n)
    hopeless = 0
    for start in range(n):
        open_ = [used for used in prefixes.best[start] if not scarce or used < rules.max_clusters]
        runs = []
        if open_ and hopeless < HOPELESS and prices.priced < limit:
            runs = list(_runs(prices, sequence, start, rules, every_size=scarce))
            hopeless = 0 if runs else hopeless + 1
        optional = not runs or (n <= SHORT and runs[0][0] <= 2 * EXACT_ORDER)
        for used, prefix in prefixes.best[start].items():
            if optional or used not in open_:
                skipped = _Prefix(prefix.value - rules.idle_price, start, used, None)
                prefixes.offer(start + 1, used, skipped)
            for size, rate, order in runs if used in open_ else []:
                found = _Prefix(prefix.value + rate, start, used, order)
                prefixes.offer(start + size, used + 1 if scarce else 0, found)
    return prefixes.trace(sequence)


def _runs(
    prices: Prices, sequence: Sequence[int], start: int, rules: Rules, *, every_size: bool
) -> Iterator[tuple[int, float, Order]]:
    """Clusters that begin here: the smallest that fits and the next larger ones."""
    longest = min(rules.max_size, len(sequence) - start)
    size, found, failed = rules.min_size, 0, 0
    while size <= longest and failed < 12:
        members = tuple(sequence[start : start + size])
        rate = 0.0
        if prices.could_fit(members):
            rate, order = suggest(prices, members, thorough=len(sequence) <= FEW)
            failed += rate <= 0
        if rate > 0:
            yield size, rate, order
            found += 1
            if found >= _wanted(size, len(sequence)) and not every_size:
                return
        # Long clusters are dear to price: pass by their sizes in larger steps.
        size += 1 if 0 < found < 3 else 1 + size // 8


def _wanted(size: int, length: int) -> int:
    if length <= SHORT:
        return 3
    return 2 if size <= EXACT_ORDER else 1


def suggest(prices: Prices, members: Order, *, thorough: bool) -> tuple[float, Order]:
    """A good order: the best one for short clusters, the best of a few natural ones for long."""
    if len(members) <= EXACT_ORDER:
        return prices.best_order(members)
    orders = [prices.by_demand(members), tuple(sorted(members, key=_keys(prices)[1]))]
    rate, order = max((prices.rate(order), order) for order in orders)
    if thorough and len(members) <= FEW:
        return prices.best_order(order, ORDER_EFFORT)
    return rate, order


def _keys(prices: Prices) -> list[Callable[[int], tuple[float, ...]]]:
    """Sort keys, best providers first. Early stages hold more: memory leads."""
    kinds = prices.kinds
    return [
        lambda k: (-kinds[k].memory_bytes, -kinds[k].bandwidth_mbps, k),
        lambda k: (-kinds[k].bandwidth_mbps, -kinds[k].gflops, k),
        lambda k: (-kinds[k].gflops, -kinds[k].bandwidth_mbps, k),
        lambda k: (-prices.ceiling((k, k)), -kinds[k].memory_bytes, k),
    ]


def _sequences(prices: Prices, members: Sequence[int], rules: Rules) -> Iterator[list[int]]:
    """Sequences worth decoding: alike next to alike, and memory dealt out evenly."""
    for key in _keys(prices):
        yield sorted(members, key=key)
    by_memory, by_link = _keys(prices)[:2]
    hands = min(prices.most_clusters(members), rules.max_clusters, len(members) // rules.min_size)
    yield _dealt(sorted(members, key=by_memory), hands)
    # The same among providers with similar links.
    alike = sorted(members, key=by_link)
    size = max(1, -(-len(alike) * 4 // max(hands, 1)))
    blocks = [alike[at : at + size] for at in range(0, len(alike), size)]
    yield [kind for block in blocks for kind in _dealt(sorted(block, key=by_memory), 4)]


def _dealt(cards: Sequence[int], hands: int) -> list[int]:
    """Deal to and fro, so that all hands are about equally good, and lay the hands in a row."""
    hands = max(hands, 1)
    rounds = [cards[at : at + hands] for at in range(0, len(cards), hands)]
    rounds = [cards if at % 2 == 0 else cards[::-1] for at, cards in enumerate(rounds)]
    return [cards[hand] for hand in range(hands) for cards in rounds if hand < len(cards)]
