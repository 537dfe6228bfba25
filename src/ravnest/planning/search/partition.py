"""Where to cut the model for providers whose order is already decided.

Stage k of an ordered cluster runs from cut point p to cut point q. Its seconds per batch are the
larger of its compute, with what its micro-batches cost however small they are (`fixed`), and its
link. A stage that exceeds its provider's memory computes its activations again in the backward,
which costs another forward; if that does not fit either, it costs infinity. The pipeline is as fast
as its slowest stage. So the best cut is a shortest path in which lengths combine by maximum, found
exactly by a dynamic programme over cut points:

    least[k + 1][q] = min over p of max(least[k][p], seconds[k][p, q])

The fastest cut is rarely alone: many cuts are within a fraction of a percent of it. A second pass
over the few cut points that lie on such cuts picks the one that sends the fewest bytes.

Seconds are held in single precision, which is exact enough to rank cuts and twice as fast; memory
is a hard limit and is compared in double precision.

Knows nothing about which providers belong together or in which order: see `clusters`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ravnest.plan import ProviderSpec
from ravnest.planning.costing.costs import (
    REFERENCE_GFLOPS,
    Bools,
    CutCosts,
    Floats,
    Ints,
    TrainingMemory,
)
from ravnest.planning.search.coarse import CoarseCosts

Singles = npt.NDArray[np.float32]

TRAFFIC_TOLERANCE = 0.004
"""How much slower than the fastest cut a cut may be in order to send fewer bytes."""

SLOWEST = 1e-9
"""Floor for speeds in bytes/s and GFLOP/s: 0 would turn 'infinitely slow' into 0/0."""

ROUNDING = 1 + 1e-6
"""Slack for comparing figures that went through single precision."""

ALL = slice(None)


@dataclass(frozen=True)
class Cut:
    """`points[k]` … `points[k + 1]` is stage k; the first point is 0 and the last is M-1."""

    points: tuple[int, ...]
    step_s: float


def most_stages(costs: CutCosts) -> int:
    """The longest pipeline this model can be cut into."""
    holding = costs.parameter_operators
    return len(np.unique(holding)) - 1 if holding[-1] > 0 else costs.cut_points - 1


def recomputes(
    costs: CutCosts,
    points: Sequence[int],
    stage: int,
    provider: ProviderSpec,
    training: TrainingMemory,
) -> bool:
    """Whether this stage of a cut has to compute its activations again to fit. The last one never
    does: its backward follows at once."""
    stages = len(points) - 1
    if stage == stages - 1:
        return False
    pair = points[stage], points[stage + 1]
    return float(costs.memory_at(pair, stage, stages, training)) > provider.memory_bytes


def memory_of(
    costs: CutCosts,
    pairs: Any,
    distance: int,
    training: TrainingMemory,
    *,
    alone: bool = False,
    recompute: bool = False,
) -> Floats:
    """Bytes that some stages need; `pairs` indexes the tables like any numpy index.

    For a pipeline that begins `distance` stages from its end, or has two stages at least. A longer
    one divides its batches into more and smaller parts, and its last stages need less than this.
    """
    stages = 1 if alone else max(distance, 2)
    return costs.memory_at(pairs, stages - distance, stages, training, recompute=recompute)


def least_memory_of(costs: CutCosts, pairs: Any, distance: int, training: TrainingMemory) -> Floats:
    """The same, keeping or computing again, whichever needs less."""
    kept = memory_of(costs, pairs, distance, training)
    if distance == 1:
        return kept
    return np.minimum(kept, memory_of(costs, pairs, distance, training, recompute=True))


class StageTables:
    """Prices of all stages that start in `rows` and stop in `columns`, for any provider.

    The memory of a stage depends on its distance from the end of the pipeline only (1 for the last
    stage): that is how many micro-batches it holds. Of the number of stages in all depends, by the
    number of micro-batches in a batch, what they cost however small they are.

    All tables are stored column by column (stops in rows of memory): see `pricing`.
    """

    def __init__(
        self,
        costs: CutCosts,
        training: TrainingMemory,
        rows: slice = ALL,
        columns: slice = ALL,
    ) -> None:
        self.costs = costs
        self.training = training
        self._rows, self._columns = rows, columns
        self._memory: dict[int, Floats] = {}
        self._memory_again: dict[int, Floats] = {}
        self._most_memory: dict[int, float] = {}
        self._host_memory: dict[int, Floats] = {}
        self._fixed_s: dict[int, Singles] = {}
        compute = costs.compute_s[columns] - costs.compute_s[rows][:, None]
        self.unit_s = (compute * REFERENCE_GFLOPS).astype(np.float32, order="F")
        """Seconds at 1 GFLOP/s; infinite where no stage may run."""
        self.unit_s[~_allowed(costs, rows, columns)] = np.inf
        forward = costs.forward_s[columns] - costs.forward_s[rows][:, None]
        self.again_s = (forward * REFERENCE_GFLOPS).astype(np.float32, order="F")
        """What a second forward takes at 1 GFLOP/s."""
        self.link_bytes = _link_bytes(costs, rows, columns).astype(np.float32, order="F")
        """Bytes per step over the stage's link, in its busier direction."""

    def fixed_s(self, stages: int) -> Singles:
        """Seconds that computing takes longer in a pipeline of so many stages, at any speed."""
        parts = self.training.division.parts(stages)
        if parts not in self._fixed_s:
            table = self.costs.fixed_table(parts, self._rows, self._columns)
            self._fixed_s[parts] = table.astype(np.float32, order="F")
        return self._fixed_s[parts]

    def memory(self, distance: int) -> Floats:
        """Bytes each stage needs, `distance` stages from the end of the pipeline."""
        if distance not in self._memory:
            block = self._rows, self._columns
            memory = np.asfortranarray(memory_of(self.costs, block, distance, self.training))
            if distance == 1 and self._holds_everything:
                whole = (0, self.costs.cut_points - 1)
                memory[0, -1] = memory_of(self.costs, whole, 1, self.training, alone=True)
            self._memory[distance] = memory
            self._most_memory[distance] = float(memory.max())
        return self._memory[distance]

    def memory_again(self, distance: int) -> Floats:
        """The same for stages that compute their activations again; not for the last one."""
        if distance not in self._memory_again:
            block = self._rows, self._columns
            memory = memory_of(self.costs, block, distance, self.training, recompute=True)
            self._memory_again[distance] = np.asfortranarray(memory)
        return self._memory_again[distance]

    def host_memory(self, distance: int) -> Floats:
        """Bytes each stage needs in the machine's memory, where it computes on a device."""
        if distance not in self._host_memory:
            block, stages = (self._rows, self._columns), max(distance, 2)
            memory = self.costs.host_memory_at(block, stages - distance, stages, self.training)
            self._host_memory[distance] = np.asfortranarray(memory)
        return self._host_memory[distance]

    def least_memory(self, distance: int) -> Floats:
        """Bytes each stage needs at least."""
        kept = self.memory(distance)
        return kept if distance == 1 else np.minimum(kept, self.memory_again(distance))

    @property
    def _holds_everything(self) -> bool:
        """Is the stage that is the whole model, first and last at once, among these?"""
        return self._rows.start in (None, 0) and self._columns.stop in (
            None,
            self.costs.cut_points,
        )

    def seconds(
        self,
        provider: ProviderSpec,
        distance: int,
        stages: int,
        rows: slice = ALL,
        columns: slice = ALL,
    ) -> Singles:
        """Seconds per batch of each stage on this provider, so far from the end of so many stages;
        infinite where it does not fit."""
        slowness = np.float32(1 / max(provider.gflops, SLOWEST))
        fixed_s = self.fixed_s(stages)[rows, columns]
        seconds: Singles = self.unit_s[rows, columns] * slowness
        seconds += fixed_s
        link_s = self.link_bytes[rows, columns] * np.float32(1 / max(provider.bytes_per_s, SLOWEST))
        np.maximum(seconds, link_s, out=seconds)
        memory = self.memory(distance)
        if self._most_memory[distance] > provider.memory_bytes:
            too_large = memory[rows, columns] > provider.memory_bytes
            if distance == 1:
                np.putmask(seconds.T, too_large.T, np.inf)
            elif too_large.any():
                again = (self.unit_s[rows, columns] + self.again_s[rows, columns]) * slowness
                again += fixed_s
                np.maximum(again, link_s, out=again)
                hopeless = self.memory_again(distance)[rows, columns] > provider.memory_bytes
                np.putmask(again.T, hopeless.T, np.inf)
                np.copyto(seconds, again, where=too_large)
        if provider.host_memory_bytes is not None:
            beside = self.host_memory(distance)[rows, columns] > provider.host_memory_bytes
            np.putmask(seconds.T, beside.T, np.inf)
        return seconds

    @cached_property
    def sent_bytes(self) -> Singles:
        """Bytes each stage sends per step."""
        rows, columns = self._rows, self._columns
        ahead, back = self.costs.forward_bytes[columns], self.costs.backward_bytes[rows]
        sent = ahead + back[:, None] + self.costs.tied_bytes[rows, columns]
        return sent.astype(np.float32)


def _allowed(costs: CutCosts, rows: slice, columns: slice) -> Bools:
    """Pairs p < q between which a parameter is used, frozen or not, if the model has any."""
    holding = costs.parameter_operators
    order = holding if holding[-1] > 0 else np.arange(costs.cut_points)
    allowed: Bools = order[columns] > order[rows][:, None]
    return allowed


def _link_bytes(costs: CutCosts, rows: slice, columns: slice) -> Floats:
    ahead, back = costs.forward_bytes, costs.backward_bytes
    sent = ahead[columns] + back[rows][:, None]
    received = ahead[rows][:, None] + back[columns]
    busier: Floats = np.maximum(sent, received) + costs.tied_bytes[rows, columns]
    points = np.arange(costs.cut_points)
    if points[rows][0] == 0 and points[columns][-1] == costs.cut_points - 1:
        busier[0, -1] = 0.0  # the whole model on one provider has nobody to talk to
    return busier


def best_cut(
    costs: CutCosts,
    providers: Sequence[ProviderSpec],
    training: TrainingMemory,
    *,
    tolerance: float = TRAFFIC_TOLERANCE,
    tables: StageTables | None = None,
) -> Cut | None:
    """The fastest contiguous cut, or one within `tolerance` of it that sends fewer bytes.

    None if no cut fits. Pass `tables` to share them between many calls on the same costs.
    """
    tables = tables or StageTables(costs, training)
    stages, last = len(providers), costs.cut_points - 1
    layers = [slice(0, 1), *[slice(1, last)] * (stages - 1), slice(last, last + 1)]
    seconds = [
        tables.seconds(provider, stages - k, stages, layers[k], layers[k + 1])
        for k, provider in enumerate(providers)
    ]
    traffic = [tables.sent_bytes[layers[k], layers[k + 1]] for k in range(stages)]
    chosen = _choose(seconds, traffic, tolerance)
    return None if chosen is None else _as_cut(costs, providers, layers, chosen, training)


def refine(
    full: CutCosts,
    coarse: CoarseCosts,
    providers: Sequence[ProviderSpec],
    training: TrainingMemory,
    cut: Cut,
    *,
    tolerance: float = TRAFFIC_TOLERANCE,
    reach: int = 2,
    width: int = 96,
) -> Cut:
    """Improve a cut of the coarse tables on the full ones; the result counts full cut points.

    Each cut may move by `reach` coarse cut points, and by at most `width` full ones, either way.
    """
    if len(coarse.points) == full.cut_points:
        return cut
    stages = len(providers)
    layers = _windows(coarse.points, cut.points, reach, width)
    blocks = [StageTables(full, training, layers[k], layers[k + 1]) for k in range(stages)]
    seconds = [
        block.seconds(provider, stages - k, stages)
        for k, (block, provider) in enumerate(zip(blocks, providers, strict=True))
    ]
    chosen = _choose(seconds, [block.sent_bytes for block in blocks], tolerance)
    assert chosen is not None, "the coarse cut itself is inside the windows"
    return _as_cut(full, providers, layers, chosen, training)


def _windows(known: Ints, points: Sequence[int], reach: int, width: int) -> list[slice]:
    last = int(known[-1])
    windows = [slice(0, 1)]
    for point in points[1:-1]:
        centre = int(known[point])
        low = max(1, centre - width, int(known[max(point - reach, 0)]))
        high = min(last - 1, centre + width, int(known[min(point + reach, len(known) - 1)]))
        windows.append(slice(low, high + 1))
    return [*windows, slice(last, last + 1)]


def _as_cut(
    costs: CutCosts,
    providers: Sequence[ProviderSpec],
    layers: Sequence[slice],
    chosen: Sequence[int],
    training: TrainingMemory,
) -> Cut:
    """Translate positions within layers to cut points, and price them in double precision."""
    points = tuple(layer.start + at for layer, at in zip(layers, chosen, strict=True))
    step_s = 0.0
    parts = training.division.parts(len(providers))
    for k, provider in enumerate(providers):
        p, q = points[k : k + 2]
        again = recomputes(costs, points, k, provider, training)
        compute_s = costs.compute_seconds(p, q, max(provider.gflops, SLOWEST), recompute=again)
        step_s = max(step_s, compute_s + costs.fixed_seconds(p, q, parts))
        if len(providers) > 1:
            link = max(costs.sent_bytes(p, q), costs.received_bytes(p, q))
            step_s = max(step_s, link / max(provider.bytes_per_s, SLOWEST))
    return Cut(points, step_s)


def _choose(
    seconds: Sequence[Singles], traffic: Sequence[Singles], tolerance: float
) -> list[int] | None:
    """Position of each cut in its layer: the fastest path, then the least traffic near it."""
    reached = [np.zeros(1, dtype=np.float32)]
    for table in seconds:
        reached.append(np.maximum(reached[-1][:, None], table).min(axis=0))
    step_s = float(reached[-1][0])
    if not np.isfinite(step_s):
        return None
    alive = _near_optimal(seconds, reached, step_s * (1 + tolerance) * ROUNDING)
    blocks = [np.ix_(p, q) for p, q in pairwise(alive)]
    seconds = [table[block] for table, block in zip(seconds, blocks, strict=True)]
    traffic = [table[block] for table, block in zip(traffic, blocks, strict=True)]
    quickest, most = _least_traffic(seconds, traffic, step_s * ROUNDING)
    lightest, least = _least_traffic(seconds, traffic, step_s * (1 + tolerance) * ROUNDING)
    path = lightest if least < most else quickest
    return [int(points[at]) for points, at in zip(alive, path, strict=True)]


def _near_optimal(
    seconds: Sequence[Singles], reached: Sequence[Singles], limit_s: float
) -> list[Ints]:
    """For each layer, the positions that lie on some path no slower than `limit_s`."""
    remaining = np.zeros(1, dtype=np.float32)
    alive = [np.zeros(1, dtype=np.int64)]
    for table, before in zip(reversed(seconds), reversed(reached[:-1]), strict=True):
        # Only columns that are alive can be on such a path.
        remaining = np.maximum(table[:, alive[-1]], remaining[alive[-1]]).min(axis=1)
        alive.append(np.flatnonzero(np.maximum(before, remaining) <= limit_s))
    return alive[::-1]


def _least_traffic(
    seconds: Sequence[Singles], traffic: Sequence[Singles], limit_s: float
) -> tuple[list[int], float]:
    """Among the paths no slower than `limit_s`, the one that sends least, and how much it sends."""
    least = np.zeros(1, dtype=np.float32)
    choices: list[Ints] = []
    for table, sent in zip(seconds, traffic, strict=True):
        total = np.where(table <= limit_s, least[:, None] + sent, np.float32(np.inf))
        choices.append(total.argmin(axis=0))
        least = total.min(axis=0)
    path = [0]
    for choice in reversed(choices):
        path.append(int(choice[path[-1]]))
    return path[::-1], float(least[0])
