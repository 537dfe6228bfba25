"""Why a provider is idle, or why the model does not fit at all: sentences with figures.

Everything here is derived from the tables after the fact; nothing decides. The one exception are
facts that settle a question without any search: a provider too small for the smallest stage,
or a piece of the model that no provider can hold and no cut can divide.

Knows nothing about the search except its result.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from ravnest.plan import ProviderSpec
from ravnest.planning.costing.costs import CutCosts, Ints, TrainingMemory
from ravnest.planning.figures import plain, quantity, rate, size, sizes_apart
from ravnest.planning.search.partition import least_memory_of, memory_of
from ravnest.planning.search.pricing import Order
from ravnest.planning.search.solve import Problem
from ravnest.planning.search.squeeze import Squeezed

REMEDY = "Add providers or memory, make the batch smaller, or choose an optimizer with less state."


def training_bytes(costs: CutCosts, training: TrainingMemory) -> float:
    """What one provider would need to train the whole model alone."""
    return float(memory_of(costs, (0, costs.cut_points - 1), 1, training, alone=True))


def smallest_stage_bytes(costs: CutCosts, training: TrainingMemory) -> float:
    """The least that any stage of any pipeline needs."""
    starts, stops = _shortest_stages(costs)
    end = costs.cut_points - 1
    begins_last = starts.max(keepdims=True)
    # All stages but the last hold at least two micro-batches.
    needs = [
        least_memory_of(costs, pairs, distance, training).min(initial=np.inf)
        for pairs, distance in (
            ((begins_last, np.full_like(begins_last, end)), 1),
            ((starts[stops < end], stops[stops < end]), 2),
        )
    ]
    return float(min(needs))


def _shortest_stages(costs: CutCosts) -> tuple[Ints, Ints]:
    """From each cut point to the next one that leaves a parameter in between."""
    holding = costs.parameter_operators
    if holding[-1] == 0:
        holding = np.arange(costs.cut_points)
    starts = np.flatnonzero(holding < holding[-1])
    return starts, np.searchsorted(holding, holding[starts], side="right")


def too_small(
    costs: CutCosts, providers: Sequence[ProviderSpec], training: TrainingMemory
) -> dict[int, str]:
    """Reasons, by position in the pool, for those that cannot hold even the smallest stage."""
    need = smallest_stage_bytes(costs, training)
    return {
        at: "{} is less than the {} that the smallest stage needs".format(
            *sizes_apart(provider.memory_bytes, need)
        )
        for at, provider in enumerate(providers)
        if provider.memory_bytes < need
    }


def indivisible_bytes(costs: CutCosts, training: TrainingMemory) -> float:
    """The most that a piece between two neighbouring cut points needs, wherever it runs."""
    starts = np.arange(costs.cut_points - 1)
    return float(memory_of(costs, (starts, starts + 1), 1, training).max())


def why_nothing_fits(
    costs: CutCosts,
    providers: Sequence[ProviderSpec],
    nearest: Squeezed | None,
    training: TrainingMemory,
) -> str:
    """The message of the error, with the figures that matter most."""
    if not providers:
        return "The pool has no providers. Describe at least one."
    whole = training_bytes(costs, training)
    total = sum(provider.memory_bytes for provider in providers)
    largest = max(providers, key=lambda provider: provider.memory_bytes)
    piece = indivisible_bytes(costs, training)
    if total < whole:
        have, need = sizes_apart(total, whole)
        return (
            f"The model does not fit: training it needs at least {need}, and the pool of "
            f"{quantity(len(providers), 'provider')} has {have} in total. {REMEDY}"
        )
    if piece > largest.memory_bytes or nearest is None:
        have, need = sizes_apart(
            largest.memory_bytes, max(piece, smallest_stage_bytes(costs, training))
        )
        return (
            f"The model does not fit: a piece of it that cannot be cut needs {need}, and the "
            f"largest provider, {_name(largest)}, has {have}. {REMEDY}"
        )
    host = nearest.provider.host_memory_bytes
    if nearest.need_bytes <= nearest.provider.memory_bytes and host is not None:
        return (
            f"The model does not fit: {_name(nearest.provider)} has room for its stage on the "
            f"device, but not in the {size(host)} of the machine's memory beside it, which has to "
            f"hold the weights, what is averaged and what is on its way. {REMEDY}"
        )
    have, need = sizes_apart(nearest.provider.memory_bytes, nearest.need_bytes)
    together, alone = sizes_apart(total, whole)
    return (
        f"The model does not fit: the pool has {together} in total, one machine alone would need "
        f"{alone}, but the stages of a pipeline need more than that together, and the best cut "
        f"found needs {need} on {_name(nearest.provider)}, which has {have}. {REMEDY}"
    )


def idle(
    problem: Problem, clusters: Sequence[tuple[Order, float]], idle_kinds: Sequence[int], kind: int
) -> str:
    """Why a provider of this kind, though large enough for some stage, is not used.

    `clusters` are those of the plan, each with its batches per second.
    """
    # The cluster that would suffer least: what it would lose, its number, and the place in it.
    least: tuple[float, int, int] | None = None
    for number, (order, before) in enumerate(clusters):
        if len(order) >= problem.rules.max_size:
            continue
        joined = [float(problem.scanner.joined(order, at)[kind]) for at in range(len(order) + 1)]
        loss = before * (1 - max(joined) / problem.prices.rate(order))
        if max(joined) > 0 and (least is None or loss < least[0]):
            least = loss, number, joined.index(max(joined))
    if least is None:
        return _no_place(problem, [order for order, _ in clusters], idle_kinds, kind)
    loss, number, place = least
    if loss <= 0:
        return "no plan was found that uses it and is as fast"
    order, before = clusters[number]
    cause = _cause(problem, order, place, problem.prices.kinds[kind])
    return (
        f"keeping it would slow cluster {number} from {rate(before)} to {rate(before - loss)} "
        f"because of {cause}"
    )


def _cause(problem: Problem, order: Order, place: int, provider: ProviderSpec) -> str:
    """The figure of the provider that, were it perfect, would help most."""
    change = msgspec.structs.replace
    prices = problem.prices
    perfect = {
        f"its {plain(provider.bandwidth_mbps)} Mbit/s link": change(provider, bandwidth_mbps=1e12),
        f"its speed of {plain(provider.gflops)} GFLOP/s": change(provider, gflops=1e12),
        f"its {size(provider.memory_bytes)} of memory": change(provider, memory_bytes=10**18),
    }
    steps = {cause: prices.with_guest(order, place, guest) for cause, guest in perfect.items()}
    cause = min(steps, key=steps.__getitem__)
    if steps[cause] < 0.999 * prices.with_guest(order, place, provider):
        return cause
    return "what one more stage costs the others"


def _no_place(
    problem: Problem, orders: Sequence[Order], idle_kinds: Sequence[int], kind: int
) -> str:
    rules, kinds = problem.rules, problem.prices.kinds
    if all(len(order) >= rules.max_size for order in orders):
        clusters = (
            "the only cluster has" if len(orders) == 1 else f"all {len(orders)} clusters have"
        )
        stages = quantity(rules.max_size, "stage")
        return f"the model can be cut into {stages} at most, and {clusters} that many"
    if _would_fit_with_memory(problem, orders, kinds[kind]):
        first = f"its {size(kinds[kind].memory_bytes)} are too little for a stage of any cluster"
    else:
        first = "with one more stage no cluster fits the memory of its other members"
    if len(orders) >= rules.max_clusters:
        return f"{first}, and no more than {quantity(rules.max_clusters, 'cluster')} may be formed"
    together = size(sum(kinds[other].memory_bytes for other in idle_kinds))
    idle_ones = quantity(len(idle_kinds), "idle provider")
    return f"{first}, and the {idle_ones} with {together} in total cannot form another one"


def _would_fit_with_memory(
    problem: Problem, orders: Sequence[Order], provider: ProviderSpec
) -> bool:
    guest = msgspec.structs.replace(provider, memory_bytes=10**18)
    return any(
        problem.prices.with_guest(order, place, guest) < np.inf
        for order in orders[:8]
        if len(order) < problem.rules.max_size
        for place in range(len(order) + 1)
    )


def _name(provider: ProviderSpec) -> str:
    return f"provider {provider.id} ({provider.address})"
