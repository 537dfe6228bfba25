"""Which of the model's tensors an operator writes to, directly or through a view."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch._ops import OpOverload

from ravnest.planning.capture.program import Held, ModuleCall, Op, Value
from ravnest.stage.gradients import HandWritten

_WRITES_STATISTICS = {"aten::batch_norm": 5, "aten::instance_norm": 5}
"""Which argument says that running statistics are updated; their schemas do not admit it."""


def written_names(op: Op) -> set[str]:
    """Held tensors that this operator writes to."""
    if isinstance(op.target, ModuleCall):
        return set(op.target.buffers)
    if not isinstance(op.target, OpOverload):
        return set()
    schema = op.target._schema
    flag = _WRITES_STATISTICS.get(schema.name)
    statistics = flag is not None and op.args[flag] is not False
    names = set()
    for position, described in enumerate(schema.arguments):
        given = op.args[position] if position < len(op.args) else op.kwargs.get(described.name)
        writes = described.alias_info is not None and described.alias_info.is_write
        if isinstance(given, Held) and (writes or (statistics and "running" in described.name)):
            names.add(given.name)
    return names


def is_mutating(op: Op) -> bool:
    """Does the operator write to any of its arguments?"""
    if isinstance(op.target, ModuleCall):
        return op.target.writes_input
    return isinstance(op.target, OpOverload) and bool(op.target._schema.is_mutable)


def written_at(ops: Sequence[Op]) -> Iterator[tuple[Op, set[str]]]:
    """Operators that write to tensors the model holds, and the names of those tensors."""
    views: dict[int, set[str]] = {}
    for op in ops:
        written, shown = written_names(op), set[str]()
        for given, writes in _shared(op):
            names = _names(given, views)
            shown |= names
            if writes and op.target._schema.name != "aten::detach_":
                written |= names
        if shown:
            views[op.out] = shown
        if written:
            yield op, written


def _shared(op: Op) -> Iterator[tuple[Any, bool]]:
    """Arguments whose memory the operator shows or, where true, changes."""
    if not isinstance(op.target, OpOverload):
        # Picks one of several views, or hands results on.
        for argument in op.args[:1] if isinstance(op.target, HandWritten) else op.args:
            yield argument, False
        return
    for position, described in enumerate(op.target._schema.arguments):
        if described.alias_info is not None:
            given = op.args[position] if position < len(op.args) else op.kwargs.get(described.name)
            yield given, described.alias_info.is_write


def _names(given: Any, views: dict[int, set[str]]) -> set[str]:
    if isinstance(given, Held):
        return {given.name}
    if isinstance(given, Value):
        return views.get(given.number, set())
    if isinstance(given, list | tuple):
        return set[str]().union(*(_names(item, views) for item in given))
    return set()
