"""From the graph of a whole model back to a `Program`, without the model's code.

A graph in a file names its operators and how they are connected. What planning needs besides, the
type and shape of every value and how they follow the batch, is found as the capture found it: by
running each operator once on fake tensors, which have shapes and no data, with the number of rows
left open. Nothing is computed, and no kernel runs that could be misled by what a file says.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from ravnest.errors import PackageError
from ravnest.planning.capture.call import Call
from ravnest.planning.capture.program import Held, HeldTensor, Op, Program, Value, map_references
from ravnest.planning.capture.writes import written_at
from ravnest.planning.handover.card import ModeOutline
from ravnest.stage.arithmetic import ARITHMETIC, ARITHMETIC_NAMES
from ravnest.stage.context import in_context
from ravnest.stage.gradients import HandWritten
from ravnest.stage.graph import Mode, Operation, StageGraph
from ravnest.stage.operators import GRADIENT, decode, tensor_operator

_CPU = torch.device("cpu")
_CALLED: dict[str, Callable[..., Any]] = {
    name: function for function, name in reversed(ARITHMETIC_NAMES.items())
} | {"getitem": operator.getitem}
"""What a captured model calls, by the name in a package."""


def rebuild_program(
    graph: StageGraph,
    mode: Mode,
    call: Call,
    held: Mapping[str, HeldTensor],
    outline: ModeOutline,
    paths: Sequence[str],
) -> Program:
    """One mode of a checked one-stage graph; `call` has as many rows as the capture saw."""
    part = graph.mode(mode)
    ops = [
        _op(graph, operation, paths[path], region)
        for operation, path, region in zip(
            part.operations, outline.paths, outline.regions, strict=True
        )
    ]
    used = {name for op in ops for name in op.held()}
    own = {name: t for name, t in held.items() if t.kind != "constant" or name in used}
    inputs = _Shapes(own, call).fill(ops, part.operations, outline.open)
    return Program(
        arguments=graph.arguments,
        inputs=inputs,
        ops=ops,
        result=part.result,
        held=own,
        dynamic=outline.dynamic,
        batch_size=call.batch_size,
        rows=(part.least_rows, part.most_rows),
        written={name for _, names in written_at(ops) for name in names},
    )


def _op(graph: StageGraph, operation: Operation, path: str, region: int) -> Op:
    def reference(tag: str, number: int) -> Value | Held:
        return Value(number) if tag == "v" else Held(graph.tensors[number].name)

    name = operation.op
    target: Any = _CALLED.get(name) if name in ARITHMETIC else None
    kwargs: dict[str, Any] = {}
    if name == GRADIENT:
        target = HandWritten(operation.kwargs, _CPU)
    else:
        target = target or tensor_operator(name)
        kwargs = {key: decode(item, _CPU, reference) for key, item in operation.kwargs.items()}
    return Op(
        out=operation.out,
        target=target,
        args=tuple(decode(item, _CPU, reference) for item in operation.args),
        kwargs=kwargs,
        example=None,
        context=None if operation.context is None else graph.contexts[operation.context],
        path=path,
        source="",
        region=region or None,
    )


class _Shapes:
    """Runs a program on tensors without data."""

    def __init__(self, held: Mapping[str, HeldTensor], call: Call) -> None:
        self._held = held
        self._call = call
        self._env = ShapeEnv()
        # No fallback: an operator that has no rule for shapes would be run for real, on zeros.
        self._fake = FakeTensorMode(shape_env=self._env, allow_fallback_kernels=False)

    def fill(
        self, ops: Sequence[Op], operations: Sequence[Operation], is_open: Sequence[bool]
    ) -> list[torch.Tensor]:
        """Set the example of every operator; returns those of the inputs."""
        # Python's rules for composite operators know open sizes; the compiled ones do not.
        with self._fake, enable_python_dispatcher(), torch.no_grad():
            inputs = self._inputs(is_open)
            values: dict[int, Any] = dict(enumerate(inputs))
            tensors = {
                name: torch.empty(entry.tensor.shape, dtype=entry.tensor.dtype)
                for name, entry in self._held.items()
            }

            def find(reference: Value | Held) -> Any:
                if isinstance(reference, Held):
                    return tensors[reference.name]
                return values[reference.number]

            for op, operation in zip(ops, operations, strict=True):
                values[op.out] = _result(op, operation, find)
                op.example = _snapshot(values[op.out])
        return inputs

    def _inputs(self, is_open: Sequence[bool]) -> list[torch.Tensor]:
        rows = self._rows()
        inputs = []
        for leaf, follows in zip(self._call.leaves, is_open, strict=True):
            sizes: list[Any] = list(leaf.shape)
            if follows:
                sizes[0] = rows
            inputs.append(torch.empty(sizes, dtype=leaf.dtype))
        return inputs

    def _rows(self) -> int | torch.SymInt:
        """The number of rows, open; with the example's as a hint."""
        source = ConstantSource("rows")
        hint = self._call.batch_size
        symbol = self._env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
        return self._env.create_symintnode(symbol, hint=hint, source=source)


def _result(op: Op, operation: Operation, find: Callable[[Value | Held], Any]) -> Any:
    # Arithmetic as packages get it: Python's own would do more for a hostile one.
    function = ARITHMETIC.get(operation.op, op.target)
    args = map_references(op.args, find)
    kwargs = {key: map_references(item, find) for key, item in op.kwargs.items()}
    try:
        return in_context(function, op.context, "cpu")(*args, **kwargs)
    except Exception as error:  # whatever torch thinks of arguments that do not fit
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise PackageError(
            f"operator {operation.op!r}, which makes value {op.out}, does not fit its arguments, "
            f"or cannot be planned without data: {type(error).__name__}: {first[:300]}"
        ) from error


def _snapshot(value: Any) -> Any:
    """As it is now: an operator may change a tensor's shape in place later."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, list | tuple):
        return type(value)(_snapshot(item) for item in value)
    return value
