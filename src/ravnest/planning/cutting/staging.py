"""From a program and its cuts to one `StageGraph` per stage.

Each stage runs the operators between its two cuts, plus copies of the cheap ones it needs from
elsewhere. What it needs and does not have, it receives; what others need, it sends. The values of
the model's result all travel to the last stage, where the loss is computed.
"""

import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ravnest.planning.capture.program import Held, HeldTensor, Op, Program, Value, is_open
from ravnest.planning.cutting.analysis import Facts, size_hint
from ravnest.stage.gradients import HandWritten
from ravnest.stage.graph import (
    Context,
    ModeGraph,
    Operation,
    StageGraph,
    TensorSpec,
    Wire,
)
from ravnest.stage.operators import dtype_name, encode, encode_arguments, operator_name


@dataclass(frozen=True)
class CutProgram:
    """One mode with its cuts: `cuts` are the inner borders, as operator positions."""

    program: Program
    facts: Facts
    cuts: tuple[int, ...]

    @property
    def stages(self) -> int:
        return len(self.cuts) + 1

    def stage_of(self, position: int) -> int:
        """The stage of an operator; inputs (position -1) are at home on stage 0."""
        return bisect.bisect_right(self.cuts, position) if position >= 0 else 0


class _Traffic:
    """Which operators each stage runs and which values travel between stages."""

    def __init__(self, cut: CutProgram) -> None:
        self.cut = cut
        self.operations: list[list[int]] = []
        self.receives: list[set[int]] = []
        self.sends: list[defaultdict[int, set[int]]] = [defaultdict(set) for _ in range(cut.stages)]
        results = set(cut.program.result_values())
        for stage in range(cut.stages):
            wanted = results if stage == cut.stages - 1 else set()
            operations, receives = self._needs(stage, wanted)
            self.operations.append(operations)
            self.receives.append(receives)
            for number in receives:
                home = cut.stage_of(cut.facts.position[number])
                self.sends[home][number].add(stage)

    def _needs(self, stage: int, wanted: set[int]) -> tuple[list[int], set[int]]:
        """Operators to run on this stage, in order, and values to receive for them."""
        cut, facts = self.cut, self.cut.facts
        first = cut.cuts[stage - 1] if stage > 0 else 0
        last = cut.cuts[stage] if stage < len(cut.cuts) else len(cut.program.ops)
        own = [p for p in range(first, last) if not self._is_movable(p)]
        running = set(own)
        receives: set[int] = set()
        todo = [number for p in own for number in cut.program.ops[p].values()] + list(wanted)
        while todo:
            number = todo.pop()
            position = facts.position[number]
            if position in running or number in receives:
                continue
            if number in facts.recomputed:
                running.add(position)
                todo.extend(cut.program.ops[position].values())
            elif cut.stage_of(position) != stage:
                receives.add(number)
        return sorted(running), receives

    def _is_movable(self, position: int) -> bool:
        """A recomputed value is made only where it is asked for, its own stage included."""
        return self.cut.program.ops[position].out in self.cut.facts.recomputed


def build_stages(
    train: CutProgram, evaluation: CutProgram, homes: Mapping[str, int]
) -> list[StageGraph]:
    """The stage graphs of a model, both modes, with tied tensors on every stage that uses them."""
    traffic = (_Traffic(train), _Traffic(evaluation))
    holders = _holders(train, evaluation, traffic, homes)
    open_batch = train.program.dynamic and evaluation.program.dynamic
    static_batch = None if open_batch else train.program.batch_size
    held = evaluation.program.held | train.program.held
    stages = []
    for stage in range(train.stages):
        names = [name for name, places in holders.items() if stage in places]
        tensors = tuple(_tensor_spec(held[name], holders[name], stage) for name in names)
        writer = _Writer({name: number for number, name in enumerate(names)})
        graphs = [
            writer.mode_graph(cut, moves, stage)
            for cut, moves in zip((train, evaluation), traffic, strict=True)
        ]
        program = train.program
        stages.append(
            StageGraph(
                stage=stage,
                stages=train.stages,
                tensors=tensors,
                contexts=tuple(writer.contexts),
                train=graphs[0],
                eval=graphs[1],
                arguments=program.arguments if stage == 0 else (),
                inputs=_input_wires(program) if stage == 0 else (),
                static_batch=static_batch,
            )
        )
    return stages


def common_rows(*programs: Program) -> tuple[int, int | None]:
    """Fewest and most rows that every one of the programs can take."""
    limits = [program.rows[1] for program in programs if program.rows[1] is not None]
    return max(program.rows[0] for program in programs), min(limits, default=None)


def _holders(
    train: CutProgram,
    evaluation: CutProgram,
    traffic: tuple[_Traffic, _Traffic],
    homes: Mapping[str, int],
) -> dict[str, list[int]]:
    """Tensor name → stages that hold it, its owner first, in model order."""
    places: defaultdict[str, set[int]] = defaultdict(set)
    for cut, moves in zip((train, evaluation), traffic, strict=True):
        for stage, positions in enumerate(moves.operations):
            for position in positions:
                for name in cut.program.ops[position].held():
                    places[name].add(stage)
    holders = {}
    for name, position in homes.items():
        owner = train.stage_of(position)
        holders[name] = [owner, *sorted(places[name] - {owner})]
    return holders


def _tensor_spec(tensor: HeldTensor, places: list[int], stage: int) -> TensorSpec:
    return TensorSpec(
        name=tensor.name,
        kind=tensor.kind,
        dtype=dtype_name(tensor.tensor.dtype),
        shape=tuple(tensor.tensor.shape),
        trainable=tensor.trainable,
        owner=stage == places[0],
        stages=tuple(sorted(places)) if len(places) > 1 else (),
    )


def _shape(example: torch.Tensor) -> tuple[int, ...]:
    sizes: Sequence[Any] = example.shape  # typed as plain ints, but symbolic during capture
    return tuple(-1 if is_open(size) else size_hint(size) for size in sizes)


def _wire(program: Program, number: int, stages: Sequence[int], *, grad: bool) -> Wire:
    example = program.examples[number]
    if not isinstance(example, torch.Tensor):
        return Wire(value=number, stages=tuple(stages))
    return Wire(
        value=number,
        stages=tuple(stages),
        dtype=dtype_name(example.dtype),
        shape=program.wire_shapes.get(number) or _shape(example),
        grad=grad,
    )


def _input_wires(program: Program) -> tuple[Wire, ...]:
    return tuple(_wire(program, n, (0,), grad=False) for n in range(len(program.inputs)))


class _Writer:
    """Encodes operators against one stage's table of tensors."""

    def __init__(self, tensor_number: dict[str, int]) -> None:
        self.tensor_number = tensor_number
        self.contexts: list[Context] = []

    def mode_graph(self, cut: CutProgram, traffic: _Traffic, stage: int) -> ModeGraph:
        program, facts = cut.program, cut.facts

        def wire(number: int, stages: Sequence[int]) -> Wire:
            return _wire(program, number, stages, grad=number in facts.differentiable)

        received = sorted(traffic.receives[stage])
        sent = sorted(traffic.sends[stage].items())
        return ModeGraph(
            operations=tuple(
                self._operation(program.ops[position]) for position in traffic.operations[stage]
            ),
            receives=tuple(wire(n, (cut.stage_of(facts.position[n]),)) for n in received),
            sends=tuple(wire(n, sorted(targets)) for n, targets in sent),
            result=program.result if stage == cut.stages - 1 else None,
            least_rows=program.rows[0],
            most_rows=program.rows[1],
        )

    def _operation(self, op: Op) -> Operation:
        kwargs = {key: encode(item, self._reference) for key, item in op.kwargs.items()}
        if isinstance(op.target, HandWritten):
            kwargs = dict(op.target.backward)
        return Operation(
            out=op.out,
            op=operator_name(op.target),
            args=tuple(encode_arguments(op.target, op.args, self._reference)),
            kwargs=kwargs,
            context=self._context(op.context),
        )

    def _reference(self, reference: Any) -> Any:
        if isinstance(reference, Value):
            return {"v": reference.number}
        if isinstance(reference, Held):
            return {"t": self.tensor_number[reference.name]}
        raise TypeError(f"cannot write an argument of type {type(reference).__name__}")

    def _context(self, context: Context | None) -> int | None:
        if context is None:
            return None
        if context not in self.contexts:
            self.contexts.append(context)
        return self.contexts.index(context)
