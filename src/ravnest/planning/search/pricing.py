"""Seconds per batch of an ordered cluster, many thousand times over.

The search asks for one figure again and again: how fast is this pipeline at its best cut? Three
things make the answer cheap.

- Providers with equal figures are one *kind*; clusters are tuples of kinds, priced once.
- The programme of `partition` runs from the last stage to the first. A stage's memory depends on
  its distance from the end only, so the vector "fastest way from cut point p to the end of the
  model" of a tail of providers serves every cluster that ends in that tail and divides its batches
  into as many micro-batches.
- A change in the middle of a long pipeline leaves both its ends as they were: the vectors of a
  cluster are kept from the front as well, and one table in between joins the two.

Knows nothing about which clusters to try, nor about sizes or idle providers.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ravnest.plan import ProviderSpec
from ravnest.planning.search.partition import SLOWEST, Singles, StageTables

Order = tuple[int, ...]
"""A cluster as the search sees it: kinds of providers in pipeline order."""

TABLE_BYTES = 96_000_000
"""Memory for tables of seconds that are kept between calls."""

REMEMBERED = 100_000
"""Vectors kept between calls."""

EXACT_ORDER = 4
"""Clusters up to this size are arranged by trying every order."""


class Prices:
    """Best seconds per batch of ordered clusters. `priced` counts the stages computed so far.

    A stage counts for more on tables with more than 128 cut points, as it takes longer.
    """

    def __init__(self, tables: StageTables, kinds: Sequence[ProviderSpec]) -> None:
        self.kinds = tuple(kinds)
        self.priced = 0
        self._weight = max(1, tables.costs.cut_points**2 // 128**2)
        self._tables = tables
        last = tables.costs.cut_points - 1
        self._first_row, self._last_column = slice(0, 1), slice(last, last + 1)
        self._rows: dict[tuple[int, int], Singles] = {}
        self._blocks: dict[tuple[int, int, int], Singles] = {}
        self._kept_blocks = max(8, TABLE_BYTES // (4 * (last + 1) ** 2))
        self._tails: dict[tuple[int, Order], Singles] = {}
        self._known_parts: list[int] = [1]
        self._heads: dict[tuple[int, Order], Singles] = {}
        self._steps: dict[Order, float] = {}
        self._demand: dict[int, list[int]] = {}
        self._arranged: dict[Order, tuple[float, Order]] = {}
        self._work = np.empty_like(tables.unit_s.T)
        self._unit_s = tables.unit_s[0].copy()
        self._set_ceilings()

    def _set_ceilings(self) -> None:
        costs = self._tables.costs
        whole_s = float(self._unit_s[-1])
        busier = np.maximum(costs.forward_bytes, costs.backward_bytes)[1:-1]
        narrowest = float(busier.min()) if len(busier) else 0.0
        self._speed = [kind.gflops / max(whole_s, SLOWEST) for kind in self.kinds]
        self._cap = [kind.bytes_per_s / max(narrowest, SLOWEST) for kind in self.kinds]
        factor = 1 + self._tables.training.optimizer_factor
        self._least_memory = float(
            costs.weight_bytes[0, -1]
            + costs.trainable_bytes[0, -1] * factor
            + costs.averaging((0, -1), self._tables.training)
        )

    def ceiling(self, order: Sequence[int]) -> float:
        """Batches per second that no cut of this cluster can exceed, in any order."""
        speed = sum([self._speed[kind] for kind in order])
        speed = 1 / (1 / max(speed, SLOWEST) + self._least_fixed_s(len(order)))
        return speed if len(order) == 1 else min(speed, min([self._cap[kind] for kind in order]))

    def _least_fixed_s(self, stages: int) -> float:
        return self._tables.costs.least_fixed_seconds(stages, self._parts(stages))

    def could_fit(self, members: Sequence[int]) -> bool:
        """False if these providers together have less memory than the model needs at least."""
        return sum([self.kinds[kind].memory_bytes for kind in members]) >= self._least_memory

    def most_clusters(self, members: Sequence[int]) -> int:
        """How many models the memory of these providers could hold at most."""
        total = sum([self.kinds[kind].memory_bytes for kind in members])
        return int(min(len(members), total // max(self._least_memory, 1)))

    def by_demand(self, members: Order) -> Order:
        """An order that puts the largest memory where an even cut would need most of it.

        That is in front, where stages hold more micro-batches, and around the heaviest operators.
        """
        stages = len(members)
        if stages not in self._demand:
            measure = self._tables.memory(1)[0]
            shares = measure[-1] * np.arange(stages + 1) / stages
            borders = np.searchsorted(measure, shares).clip(0, len(measure) - 1)
            stops = np.minimum(np.maximum(borders[1:], borders[:-1] + 1), len(measure) - 1)
            needs = [
                float(self._tables.memory(stages - k)[borders[k], stops[k]]) for k in range(stages)
            ]
            self._demand[stages] = sorted(range(stages), key=lambda k: -needs[k])
        ranked = sorted(members, key=lambda kind: (-self.kinds[kind].memory_bytes, kind))
        seated = dict(zip(self._demand[stages], ranked, strict=True))
        return tuple(seated[k] for k in range(stages))

    def rate(self, order: Order) -> float:
        """Batches per second at the best cut; 0 if nothing fits."""
        return 1.0 / max(self.step_s(order), SLOWEST)

    def step_s(self, order: Order) -> float:
        """Seconds per batch at the best cut; infinite if nothing fits."""
        step_s = self._steps.get(order)
        if step_s is None:
            step_s = self._steps[order] = self._price(order)
        return step_s

    def relief(self, order: Order, at: int) -> float:
        """How many times faster this cluster would be if one of its providers were perfect."""
        stages = len(order)
        before = self.head(order[:at], stages) if at else None
        after = self.tail(order[at + 1 :], stages) if at + 1 < stages else None
        if before is None or after is None:
            ends = before if after is None else after
            fastest = 0.0 if ends is None else float(ends.min())
        else:
            soonest = np.minimum.accumulate(before)[:-1]
            fastest = float(np.maximum(soonest, after[1:]).min())
        return self.step_s(order) / max(fastest, SLOWEST)

    def with_guest(self, order: Order, place: int, guest: ProviderSpec) -> float:
        """Seconds per batch if a provider from outside the pool joins at this place."""
        stages = len(order) + 1
        seconds = self._tables.seconds(guest, stages - place, stages)
        if place < len(order):
            seconds = np.maximum(seconds, self.tail(order[place:], stages)).min(axis=1)
        else:
            seconds = seconds[:, -1]
        return float(
            np.maximum(self.head(order[:place], stages), seconds).min() if place else seconds[0]
        )

    def _price(self, order: Order) -> float:
        stages = len(order)
        self.priced += 1
        if stages == 1:
            return float(self.tail(order, 1)[0])
        known = 1
        while known < stages - 1 and (stages, order[: known + 1]) in self._heads:
            known += 1
        tail = self.tail(order[known:], stages)
        return float(np.maximum(self.head(order[:known], stages), tail).min())

    def _parts(self, stages: int) -> int:
        """Micro-batches in a batch of a pipeline of so many stages."""
        while len(self._known_parts) <= stages:
            parts = self._tables.training.division.parts(len(self._known_parts))
            self._known_parts.append(parts)
        return self._known_parts[stages]

    def head(self, order: Order, stages: int) -> Singles:
        """[q]: seconds of the slowest stage if these run from the start to cut point q.

        They are the first of `stages` providers: those behind them decide how much they must hold.
        """
        if len(order) == 1:
            return self._row(order[0], stages)
        known = self._heads.get((stages, order))
        if known is None:
            before = self.head(order[:-1], stages)
            # Blocks are stored stop x start.
            block = self._block(order[-1], stages - len(order) + 1, stages)
            np.maximum(block, before, out=self._work)
            known = self._work.min(axis=1)
            self.priced += self._weight
            if len(self._heads) > REMEMBERED:
                self._heads.clear()
            self._heads[stages, order] = known
        return known

    def tail(self, order: Order, stages: int) -> Singles:
        """[p]: seconds of the slowest stage if these run from cut point p to the end.

        They are the last of `stages` providers.
        """
        parts = self._parts(stages)
        known = self._tails.get((parts, order))
        if known is not None:
            return known
        if len(self._tails) > REMEMBERED:
            self._tails.clear()
        start = 1
        while start < len(order) and (parts, order[start:]) not in self._tails:
            start += 1
        tail = self._tails[parts, order[start:]] if start < len(order) else None
        for at in range(start - 1, -1, -1):
            tail = self._prepend(order[at], len(order) - at, stages, tail)
            self._tails[parts, order[at:]] = tail
        assert tail is not None
        return tail

    def _prepend(self, kind: int, distance: int, stages: int, tail: Singles | None) -> Singles:
        if tail is None:
            self.priced += 1
            column = self._tables.seconds(self.kinds[kind], 1, stages, columns=self._last_column)
            return column[:, 0].copy()
        self.priced += self._weight
        np.maximum(self._block(kind, distance, stages), tail[:, None], out=self._work)
        shortest: Singles = self._work.min(axis=0)
        return shortest

    def _row(self, kind: int, stages: int) -> Singles:
        key = kind, stages
        row = self._rows.get(key)
        if row is None:
            who = self.kinds[kind]
            row = self._tables.seconds(who, stages, stages, rows=self._first_row)[0]
            self._rows[key] = row
        return row

    def _block(self, kind: int, distance: int, stages: int) -> Singles:
        """Seconds of every stage, stop x start: minima over stops are then along memory."""
        key = kind, distance, self._parts(stages)
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) >= self._kept_blocks:
                self._blocks.clear()
            block = self._tables.seconds(self.kinds[kind], distance, stages).T
            self._blocks[key] = block
            self.priced += 2 * self._weight
        return block

    def arrange(self, members: Order) -> tuple[float, Order]:
        """Batches per second and order of a cluster; long ones keep the order they are given."""
        if len(members) > EXACT_ORDER:
            return self.rate(members), members
        return self.best_order(members)

    def best_order(self, members: Order, effort: int = 10**9) -> tuple[float, Order]:
        """The fastest of all orders, by branch and bound from the last stage.

        If the effort does not suffice, the fastest one seen, `members` included.
        """
        key = tuple(sorted(members))
        known = self._arranged.get(key)
        if known is None:
            limit = self.priced + effort
            step_s, order = self._try_orders(key, (), self.step_s(members), members, limit)
            known = 1.0 / max(step_s, SLOWEST), order
            if self.priced < limit:
                self._arranged[key] = known
        return known

    def _try_orders(
        self, free: Order, tail: Order, best_s: float, best: Order, limit: int
    ) -> tuple[float, Order]:
        for kind, rest in _picks(free):
            order = (kind, *tail)
            if not rest:
                step_s = self.step_s(order)
                if step_s < best_s:
                    best_s, best = step_s, order
            elif len(rest) == 1 or (self.priced < limit and self._promising(rest, order, best_s)):
                best_s, best = self._try_orders(rest, order, best_s, best, limit)
        return best_s, best

    def _promising(self, free: Order, tail: Order, best_s: float) -> bool:
        """Whether the free providers together could be fast enough in front of this tail."""
        gflops = sum([self.kinds[kind].gflops for kind in free])
        stages = len(free) + len(tail)
        compute_s = self._unit_s * np.float32(1 / max(gflops, SLOWEST))
        compute_s += np.float32(self._least_fixed_s(stages))
        return bool(np.maximum(compute_s, self.tail(tail, stages)).min() < best_s)


def _picks(free: Order) -> Iterator[tuple[int, Order]]:
    """Each different kind, with what remains after taking one of it."""
    seen = set()
    for at, kind in enumerate(free):
        if kind not in seen:
            seen.add(kind)
            yield kind, free[:at] + free[at + 1 :]
