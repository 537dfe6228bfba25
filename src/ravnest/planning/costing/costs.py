"""What a stage would cost if it ran from one legal cut point to another.

The profiler fills these tables once per model; the search then prices any stage of any cluster by
looking up two indices. Rows and columns are *cut points*, numbered 0 … M-1 in model order; cut
point 0 is the start of the model and M-1 its end. A stage is a pair p < q.

Knows nothing about providers except how to turn their figures into seconds and bytes.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ravnest.in_flight import least_in_flight, parts_for
from ravnest.plan import MemoryEstimate
from ravnest.planning.costing.fixed import BORDER_S, CALL_S, PART_S, UPDATE_S

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

REFERENCE_GFLOPS = 50.0
"""Sustained speed assumed for a provider that does not state its own: a modest 4-core laptop."""

AVERAGING_COPIES = 3
"""Of what a stage averages with other clusters: a snapshot, what all had in common last, and
messages while a round goes on."""


@dataclass(frozen=True)
class Division:
    """How the batches of a run are divided into micro-batches."""

    batch_rows: int = 1
    least_rows: int | None = None
    """Fewest rows of a micro-batch; None if batches must stay whole."""
    parts_asked: int | None = None
    """What the requester wants, whatever would be chosen."""

    def parts(self, stages: int) -> int:
        """Micro-batches per batch for a pipeline of so many stages."""
        if self.parts_asked is not None:
            return max(1, min(self.parts_asked, self.batch_rows))
        if self.least_rows is None:
            return 1
        return max(1, min(parts_for(stages), self.batch_rows // max(self.least_rows, 1)))

    def share(self, stages: int) -> float:
        """Of a batch, that its largest micro-batch makes up."""
        return math.ceil(self.batch_rows / self.parts(stages)) / self.batch_rows


@dataclass(frozen=True)
class TrainingMemory:
    """How training multiplies the bytes of trainable weights and of activations."""

    optimizer_factor: float = 2.0
    max_versions: int = 2
    division: Division = field(default_factory=Division)
    averages: bool = False
    """There are other clusters to average with."""

    def in_flight(self, stage: int, stages: int) -> int:
        """Micro-batches between their forward and their backward on this stage."""
        return least_in_flight(stage, stages, divided=self.division.parts(stages) > 1)

    def batches_in_flight(self, stage: int, stages: int) -> float:
        """The same in whole batches."""
        return self.in_flight(stage, stages) * self.division.share(stages)

    def ahead(self, stage: int, stages: int) -> int:
        """Copies of trainable weights that say how far they have been put ahead of their optimizer;
        the last stage has no old gradients to do that for, and one without state no momentum."""
        return int(stage < stages - 1 and self.optimizer_factor > 0)

    def versions(self, stage: int, stages: int) -> int:
        """Weight versions alive at once: the last stage never needs an old one."""
        return min(self.max_versions, self.in_flight(stage, stages))


@dataclass(frozen=True)
class CutCosts:
    """Tables over cut points. Vectors have length M, matrices M x M (valid above the diagonal)."""

    operator: Ints
    """operator[p]: how many operators of the train graph come before cut point p."""
    compute_s: Floats
    """compute_s[p]: seconds of forward+backward before p, at REFERENCE_GFLOPS, without the time it
    takes to call them (a prefix sum)."""
    forward_s: Floats
    """forward_s[p]: the forward's share of compute_s."""
    calls: Floats
    """calls[p]: calls of operators before p, forward and backward, of every micro-batch (a prefix
    sum)."""
    updates: Floats
    """updates[p]: trainable tensors at home before p (a prefix sum)."""
    flops: Floats
    """flops[p]: forward+backward FLOPs before p (a prefix sum)."""
    forward_bytes: Floats
    """forward_bytes[p]: activations that cross p, skip connections included (0 at both ends)."""
    entering_bytes: Floats
    """entering_bytes[p]: what a stage that starts at p is given: forward_bytes, or the batch."""
    backward_bytes: Floats
    """backward_bytes[p]: gradients that cross p in the other direction (0 at both ends)."""
    weight_bytes: Floats
    """weight_bytes[p, q]: distinct parameters and buffers used by operators p … q."""
    trainable_bytes: Floats
    """trainable_bytes[p, q]: the part of weight_bytes that receives gradients."""
    activation_bytes: Floats
    """activation_bytes[p, q]: distinct storages autograd keeps for one micro-batch."""
    working_bytes: Floats
    """working_bytes[p, q]: the largest short-lived need of a single operator."""
    updating_bytes: Floats
    """updating_bytes[p, q]: the largest short-lived need of the optimizer, for one parameter."""
    averaged_bytes: Floats
    """averaged_bytes[p, q]: tensors that training changes and that are at home in p … q."""
    tied_bytes: Floats
    """tied_bytes[p, q]: trainable bytes this stage shares with others, exchanged every update."""
    parameter_operators: Ints
    """parameter_operators[p]: operators before p that use a parameter (a prefix sum)."""

    @property
    def cut_points(self) -> int:
        return len(self.operator)

    @cached_property
    def message_bytes(self) -> Floats:
        """message_bytes[p, q]: activations and gradients of a batch that cross either border."""
        crossing = self.forward_bytes + self.backward_bytes
        both: Floats = crossing[:, None] + crossing[None, :]
        return both

    def memory(
        self,
        p: int,
        q: int,
        stage: int,
        stages: int,
        training: TrainingMemory,
        *,
        in_flight: int | None = None,
        recompute: bool = False,
    ) -> MemoryEstimate:
        """Predicted peak of the stage p … q as number `stage` of `stages`; with more micro-batches
        in flight than free links ask for, if `in_flight` says so. With `recompute` it keeps what
        it was given and computes the rest again for the backward."""
        weights = int(self.weight_bytes[p, q])
        trainable = int(self.trainable_bytes[p, q])
        share = training.division.share(stages)
        held = training.in_flight(stage, stages) if in_flight is None else in_flight
        working = max(self.working_bytes[p, q] * share, self.updating_bytes[p, q])
        activations = self.activation_bytes[p, q] * (1 if recompute else held)
        if recompute:
            activations += self.entering_bytes[p] * held
        return MemoryEstimate(
            weights=weights,
            gradients=trainable,
            optimizer=int(trainable * training.optimizer_factor),
            versions=trainable
            * (training.versions(stage, stages) - 1 + training.ahead(stage, stages)),
            activations=int(activations * share),
            messages=int(self.message_bytes[p, q] * share + self.tied_bytes[p, q]),
            averaging=int(self.averaging((p, q), training)),
            working=int(working),
        )

    def averaging(self, pairs: Any, training: TrainingMemory) -> Floats:
        """What stages hold in order to average with other clusters."""
        copies = AVERAGING_COPIES if training.averages else 0
        held: Floats = self.averaged_bytes[pairs] * copies
        return held

    @cached_property
    def _entering(self) -> Floats:
        """entering_bytes as a table over stages, without the memory of one."""
        return np.broadcast_to(self.entering_bytes[:, None], self.weight_bytes.shape)

    def memory_at(
        self,
        pairs: Any,
        stage: int,
        stages: int,
        training: TrainingMemory,
        *,
        recompute: bool = False,
    ) -> Floats:
        """`memory(...).total` for many pairs of cut points at once; `pairs` is a numpy index."""
        share = training.division.share(stages)
        held = training.batches_in_flight(stage, stages)
        activations = self.activation_bytes[pairs] * (share if recompute else held)
        if recompute:
            activations += self._entering[pairs] * held
        copies = training.optimizer_factor + training.versions(stage, stages)
        copies += training.ahead(stage, stages)
        total: Floats = (
            self.weight_bytes[pairs]
            + self.trainable_bytes[pairs] * copies
            + activations
            + self.message_bytes[pairs] * share
            + self.tied_bytes[pairs]
            + self.averaging(pairs, training)
            + np.maximum(self.working_bytes[pairs] * share, self.updating_bytes[pairs])
        )
        return total

    def host_memory_at(
        self, pairs: Any, stage: int, stages: int, training: TrainingMemory
    ) -> Floats:
        """Of the machine's memory beside a device, for many pairs of cut points at once: weights as
        they are loaded and saved, what is averaged, messages, and the inputs of micro-batches in
        flight, which can be begun anew as long as they are there."""
        share = training.division.share(stages)
        held = training.batches_in_flight(stage, stages)
        total: Floats = (
            self.weight_bytes[pairs]
            + self.averaging(pairs, training)
            + self.message_bytes[pairs] * share
            + self.tied_bytes[pairs]
            + self._entering[pairs] * held
        )
        return total

    def sent_bytes(self, p: int, q: int) -> float:
        """Upload per step: activations to the next stage, gradients to the previous one."""
        return float(self.forward_bytes[q] + self.backward_bytes[p] + self.tied_bytes[p, q])

    def received_bytes(self, p: int, q: int) -> float:
        """Download per step: activations from the previous stage, gradients from the next one."""
        return float(self.forward_bytes[p] + self.backward_bytes[q] + self.tied_bytes[p, q])

    def compute_seconds(self, p: int, q: int, gflops: float, *, recompute: bool = False) -> float:
        seconds = self.compute_s[q] - self.compute_s[p]
        if recompute:
            seconds += self.forward_s[q] - self.forward_s[p]
        return float(seconds) * REFERENCE_GFLOPS / gflops

    def part_seconds(self, p: int, q: int) -> float:
        """What every micro-batch costs the stage p … q, however small it is (see `fixed`)."""
        borders = (p > 0) + (q < self.cut_points - 1)
        return float(self.calls[q] - self.calls[p]) * CALL_S + PART_S + borders * BORDER_S

    def fixed_seconds(self, p: int, q: int, parts: int) -> float:
        """The same for a batch of so many micro-batches, the update included."""
        updates = float(self.updates[q] - self.updates[p])
        return parts * self.part_seconds(p, q) + updates * UPDATE_S

    def least_fixed_seconds(self, stages: int, parts: int) -> float:
        """What no stage of a pipeline of so many can do without."""
        return parts * (PART_S + (BORDER_S if stages > 1 else 0.0))

    def fixed_table(self, parts: int, rows: slice, columns: slice) -> Floats:
        """`fixed_seconds` of all stages that start in `rows` and stop in `columns`."""
        last = self.cut_points - 1
        before = parts * CALL_S * self.calls + UPDATE_S * self.updates
        at = np.arange(self.cut_points)
        starting = parts * BORDER_S * (at > 0) - before
        stopping = parts * BORDER_S * (at < last) + before
        table: Floats = starting[rows][:, None] + stopping[columns] + parts * PART_S
        return table

    def alone_seconds(self, gflops: float) -> float:
        """A batch on one machine that trains the whole model by itself, without Ravnest."""
        end = self.cut_points - 1
        return self.compute_seconds(0, end, gflops) + self.fixed_seconds(0, end, 1) - PART_S
