"""Which of the model's tensors an operator writes to, directly or through a view."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch._ops import OpOverload

from ravnest.planning.capture.program import Held, ModuleCall, Op, Value
from ravnest.stage.gradients import HandWritten
from ravnest.stage.writes import shown, written


def written_names(op: Op) -> set[str]:
    """Held tensors that this operator writes to."""
    if isinstance(op.target, ModuleCall):
        return set(op.target.buffers)
    return {given.name for given in _written(op) if isinstance(given, Held)}


def is_mutating(op: Op) -> bool:
    """Does the operator write to any of its arguments?"""
    if isinstance(op.target, ModuleCall):
        return op.target.writes_input
    return isinstance(op.target, OpOverload) and bool(op.target._schema.is_mutable)


def written_at(ops: Sequence[Op]) -> Iterator[tuple[Op, set[str]]]:
    """Operators that write to tensors the model holds, and the names of those tensors."""
    views: dict[int, set[str]] = {}
    for op in ops:
        names = written_names(op)
        if not (isinstance(op.target, OpOverload) and op.target._schema.name == "aten::detach_"):
            names |= _names(list(_written(op)), views)
        if seen := _names(list(_shown(op)), views):
            views[op.out] = seen
        if names:
            yield op, names


def _written(op: Op) -> Iterable[Any]:
    return written(op.target, op.args, op.kwargs) if isinstance(op.target, OpOverload) else ()


def _shown(op: Op) -> Iterable[Any]:
    if isinstance(op.target, OpOverload):
        return shown(op.target, op.args, op.kwargs, certain=True)
    # Picks one of several views, or hands results on.
    return op.args[:1] if isinstance(op.target, HandWritten) else op.args


def _names(given: Any, views: dict[int, set[str]]) -> set[str]:
    if isinstance(given, Held):
        return {given.name}
    if isinstance(given, Value):
        return views.get(given.number, set())
    if isinstance(given, list | tuple):
        return set[str]().union(*(_names(item, views) for item in given))
    return set()
