"""Fill the search's cost tables from an analysed and profiled program.

A stage holds each tensor once however often it uses it, so bytes of a stage are not a sum over its
operators. For an item used by operators in units c1 < c2 < …, a stage p … q counts it exactly
once: at the first use inside the stage, the one whose predecessor lies before p. Each pair of
neighbouring uses is thus a rectangle of (p, q) pairs; all rectangles are added by their corners
and summed up at the end, in time linear in the model plus the size of the table.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ravnest.planning.capture.program import Program
from ravnest.planning.costing.costs import CutCosts, Floats, Ints
from ravnest.planning.costing.profile import REFERENCE_MEMORY_GB_PER_S, OpCost
from ravnest.planning.cutting.analysis import Facts, example_bytes

MAX_CUT_POINTS = 1200
MOVED_BY_AN_UPDATE = 7
"""Adam reads a weight, its gradient and two moments, and writes all but the gradient."""
TAKEN_BY_AN_UPDATE = 2
"""Adam makes two tensors of the size of a parameter on the way to its new value."""


def build_tables(
    program: Program,
    facts: Facts,
    costs: Sequence[OpCost],
    usable: Sequence[bool],
    homes: Mapping[str, int],
    changing: Mapping[str, int],
) -> CutCosts:
    """Tables over the cut points where `usable[position]`, the two ends included.

    `changing` are the bytes of what training changes, by name.
    """
    forward, backward = _crossing_bytes(program, facts)
    updating = _update_seconds(program, homes)
    seconds = _prefix([cost.seconds + updating[at] for at, cost in enumerate(costs)])
    operators = _choose_cut_points(usable, forward, seconds)
    unit = np.searchsorted(operators, np.arange(len(program.ops)), side="right") - 1
    table = _UniqueBytes(len(operators))
    held = _held_items(program, unit, homes)
    averaged = [([int(unit[homes[name]])], float(size)) for name, size in changing.items()]
    trainable = [item for name, item in held.items() if program.held[name].trainable]
    inner = np.zeros(len(operators), dtype=bool)
    inner[1:-1] = True
    return CutCosts(
        operator=operators,
        compute_s=seconds[operators],
        forward_s=_prefix([cost.forward_s for cost in costs])[operators],
        calls=_prefix([cost.calls for cost in costs])[operators],
        updates=_prefix(_updated_tensors(program, homes))[operators],
        flops=_prefix([c.forward_flops + c.backward_flops for c in costs])[operators],
        forward_bytes=np.where(inner, forward[operators], 0.0),
        entering_bytes=np.where(operators > 0, forward[operators], _input_bytes(program, facts)),
        backward_bytes=np.where(inner, backward[operators], 0.0),
        weight_bytes=table.sum(held.values()),
        trainable_bytes=table.sum(trainable),
        activation_bytes=table.sum(_kept_items(program, facts, costs, unit)),
        working_bytes=_largest([cost.working_bytes for cost in costs], unit, len(operators)),
        updating_bytes=_largest(_update_bytes(program), unit, len(operators)),
        averaged_bytes=table.sum(averaged),
        tied_bytes=table.sum_shared(trainable),
        parameter_operators=_prefix(
            [any(program.held[n].kind == "parameter" for n in op.held()) for op in program.ops]
        )[operators].astype(np.int64),
    )


def _input_bytes(program: Program, facts: Facts) -> int:
    """Of a batch, as the user gives it to the first stage."""
    return sum(facts.bytes[number] for number in range(len(program.inputs)))


def _update_seconds(program: Program, homes: Mapping[str, int]) -> Floats:
    """For every operator, what the optimizer's step on the tensors at home there takes.

    It computes next to nothing and moves much, which decides where a stage holds many parameters
    and uses each of them little (the fully connected end of a convolutional network).
    """
    seconds = np.zeros(len(program.ops))
    for name, tensor in program.held.items():
        if tensor.trainable and name == tensor.name and name in homes:
            size = tensor.tensor.numel() * tensor.tensor.element_size()
            seconds[homes[name]] += MOVED_BY_AN_UPDATE * size / (REFERENCE_MEMORY_GB_PER_S * 1e9)
    return seconds


def _updated_tensors(program: Program, homes: Mapping[str, int]) -> Ints:
    """For every operator, how many tensors the optimizer steps that are at home there."""
    counts = np.zeros(len(program.ops), dtype=np.int64)
    for name, tensor in program.held.items():
        if tensor.trainable and name == tensor.name and name in homes:
            counts[homes[name]] += 1
    return counts


def _prefix(values: Sequence[float] | Ints) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])


def _crossing_bytes(program: Program, facts: Facts) -> tuple[Floats, Floats]:
    """Bytes that a cut in front of each operator sends forward, and gradients that come back."""
    forward = np.zeros(len(program.ops) + 2)
    backward = np.zeros(len(program.ops) + 2)
    for number, home in facts.position.items():
        last = facts.last_need.get(number, -1)
        if number in facts.recomputed or last <= home:
            continue
        for target in (forward, backward) if number in facts.differentiable else (forward,):
            target[home + 1] += facts.bytes[number]
            target[min(last, len(program.ops)) + 1] -= facts.bytes[number]
    return np.cumsum(forward)[:-1], np.cumsum(backward)[:-1]


def _choose_cut_points(usable: Sequence[bool], crossing: Floats, seconds: Floats) -> Ints:
    """All usable positions; of a very long program only the cheapest one of each slice."""
    count = len(usable) - 1
    inner = np.array([p for p in range(1, count) if usable[p]], dtype=np.int64)
    if len(inner) > MAX_CUT_POINTS:
        slices = np.minimum(
            (seconds[inner] / max(seconds[-1], 1e-30) * MAX_CUT_POINTS).astype(np.int64),
            MAX_CUT_POINTS - 1,
        )
        order = np.lexsort((inner, crossing[inner], slices))
        first = np.unique(slices[order], return_index=True)[1]
        inner = np.sort(inner[order][first])
    return np.concatenate([[0], inner, [count]]).astype(np.int64)


Item = tuple[list[int], float]
"""The units that use something, ascending and distinct, and its bytes."""


def _held_items(program: Program, unit: Ints, homes: Mapping[str, int]) -> dict[str, Item]:
    uses: defaultdict[str, set[int]] = defaultdict(set)
    for name, position in homes.items():
        uses[name].add(int(unit[position]))
    for position, op in enumerate(program.ops):
        for name in op.held():
            uses[name].add(int(unit[position]))
    return {
        name: (sorted(units), float(example_bytes(program.held[name].tensor)))
        for name, units in uses.items()
        if name in program.held
    }


def _kept_items(program: Program, facts: Facts, costs: Sequence[OpCost], unit: Ints) -> list[Item]:
    """Storages that autograd keeps for one micro-batch, with the units that keep them."""
    keepers: defaultdict[int, set[int]] = defaultdict(set)
    items: list[Item] = []
    for position, (op, cost) in enumerate(zip(program.ops, costs, strict=True)):
        references = list(op.references())
        kept = [references[index] for index in cost.kept_arguments]
        numbers = [reference.number for reference in kept if hasattr(reference, "number")]
        if cost.keeps_result:
            numbers.append(op.out)
        for number in numbers:
            storage = facts.storage[number]
            if storage is not None:
                keepers[storage].add(int(unit[position]))
        if cost.kept_bytes:
            items.append(([int(unit[position])], float(cost.kept_bytes)))
    items.extend((sorted(units), float(facts.bytes[n])) for n, units in keepers.items())
    return items


def _update_bytes(program: Program) -> list[int]:
    """For every operator, what the optimizer needs for a while for the largest parameter there."""
    sizes = {
        name: tensor.tensor.numel() * tensor.tensor.element_size()
        for name, tensor in program.held.items()
        if tensor.trainable
    }
    return [
        TAKEN_BY_AN_UPDATE * max((sizes.get(name, 0) for name in op.held()), default=0)
        for op in program.ops
    ]


def _largest(needs: Sequence[int], unit: Ints, size: int) -> Floats:
    """The largest need of any operator of a stage."""
    per_unit = np.zeros(size)
    np.maximum.at(per_unit, unit, needs)
    table = np.zeros((size, size))
    for p in range(size - 1):
        table[p, p + 1 :] = np.maximum.accumulate(per_unit[p:-1])
    return table


class _UniqueBytes:
    """Adds items as rectangles over (first cut point, last cut point)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def sum(self, items: Iterable[Item]) -> Floats:
        """Bytes of the items that a stage uses at all."""
        corners = np.zeros((self.size + 1, self.size + 1))
        for units, weight in items:
            previous = -1
            for unit in units:
                corners[previous + 1, unit + 1] += weight
                corners[unit + 1, unit + 1] -= weight
                previous = unit
        return self._summed(corners)

    def sum_shared(self, items: Sequence[Item]) -> Floats:
        """Bytes of the items that a stage uses, but not it alone."""
        corners = np.zeros((self.size + 1, self.size + 1))
        spread = [(units, weight) for units, weight in items if len(units) > 1]
        for units, weight in spread:
            corners[0, units[-1] + 1] += weight
            corners[units[0] + 1, units[-1] + 1] -= weight
        return self.sum(spread) - self._summed(corners)

    def _summed(self, corners: Floats) -> Floats:
        total: Floats = np.cumsum(np.cumsum(corners, axis=0), axis=1)[: self.size, : self.size]
        return np.triu(total, 1)
