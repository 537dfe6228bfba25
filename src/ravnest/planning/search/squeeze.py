"""The pipeline that comes closest to fitting, when nothing fits at first sight.

For an order of providers, the cut that overloads its worst stage least is a dynamic programme like
that for speed, with need / memory in place of seconds: 1 or less means that the model fits. The
order is improved by letting providers trade places, or by calling in others, as long as the
overload shrinks. The result is a start for the search, or the figures of an honest refusal.

Knows nothing about speed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ravnest.plan import ProviderSpec
from ravnest.planning.costing.costs import Floats, Ints
from ravnest.planning.search.partition import StageTables
from ravnest.planning.search.pricing import Order, Prices

TRIES = 300
"""Changes of the order that are tried."""


@dataclass(frozen=True)
class Squeezed:
    """An order of kinds and its most overloaded stage at the best cut."""

    order: Order
    overload: float
    provider: ProviderSpec
    need_bytes: float

    @property
    def fits(self) -> bool:
        return self.overload <= 1.0


def squeeze(
    tables: StageTables,
    prices: Prices,
    members: Sequence[int],
    sizes: range,
    generator: random.Random,
) -> Squeezed:
    """The least overloaded pipeline found, of any of the given sizes."""
    ranked = sorted(members, key=lambda kind: (-prices.kinds[kind].memory_bytes, kind))
    tried = {min(max(sizes), round(max(min(sizes), 1.3**k))) for k in range(32)}
    best = min(
        (overload(tables, prices, prices.by_demand(tuple(ranked[:size]))) for size in tried),
        key=lambda squeezed: squeezed.overload,
    )
    for _ in range(TRIES):
        if best.fits:
            break
        changed = overload(tables, prices, _changed(best.order, ranked, generator))
        best = min(best, changed, key=lambda squeezed: squeezed.overload)
    return best


def _changed(order: Order, ranked: Sequence[int], generator: random.Random) -> Order:
    """Two providers trade places, one moves, or one makes way for another of the pool."""
    changed = list(order)
    at = generator.randrange(len(order))
    idle = list(ranked)
    for kind in order:
        idle.remove(kind)
    choice = generator.random()
    if choice < 0.3 and idle:
        changed[at] = generator.choice(idle)
    elif choice < 0.6:
        changed.insert(generator.randrange(len(order)), changed.pop(at))
    else:
        other = generator.randrange(len(order))
        changed[at], changed[other] = changed[other], changed[at]
    return tuple(changed)


def overload(tables: StageTables, prices: Prices, order: Order) -> Squeezed:
    """Cut the model so that the stage that exceeds its provider's memory most does so least."""
    stages = len(order)
    reached: Floats = np.full(len(tables.unit_s), np.inf)
    reached[0] = 0.0
    forbidden = ~np.isfinite(tables.unit_s)
    needs: list[Floats] = []
    choices: list[Ints] = []
    for stage, kind in enumerate(order):
        need = np.where(forbidden, np.inf, tables.least_memory(stages - stage))
        load = np.maximum(reached[:, None], need / max(prices.kinds[kind].memory_bytes, 1))
        needs.append(need)
        choices.append(load.argmin(axis=0))
        reached = load.min(axis=0)
    stop, worst = len(reached) - 1, Squeezed(order, -1.0, prices.kinds[order[0]], 0.0)
    for stage in range(stages - 1, -1, -1):
        start = int(choices[stage][stop])
        provider, need_bytes = prices.kinds[order[stage]], float(needs[stage][start, stop])
        load_here = need_bytes / max(provider.memory_bytes, 1)
        if load_here > worst.overload:
            worst = Squeezed(order, load_here, provider, need_bytes)
        stop = start
    return worst
