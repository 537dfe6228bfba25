"""For which batch sizes is the captured graph the model?

A capture follows one way through the model's Python and notes what it assumed about the batch size
on the way: `len(x) > 8`, `len(x) % 2 == 0`, two parts from `x.chunk(2)`. The graph stands for the
batch sizes around the example's for which every assumption holds, and for no others.
"""

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import sympy  # type: ignore[import-untyped]
from torch.export import ExportedProgram

from ravnest.planning.capture.call import Call
from ravnest.planning.capture.program import Program, is_open

_LEAST = 2
"""A capture always assumes several rows, which nearly every model does not care about. The
self-check tries a single row; where it cannot, two are asked for (`Study.needs_two_rows`)."""
_TRIED = 2**16
"""Assumptions that are no plain range are tried out up to this many rows."""

Numbers = npt.NDArray[np.int64]
Limits = tuple[int, int | None]


def row_limits(exported: ExportedProgram, program: Program, call: Call) -> Limits:
    """Fewest and most rows; equal if the model can only be planned for the example's number."""
    least, most = 1, None
    sizes = [
        leaf.shape[0]
        for leaf, given in zip(program.inputs, call.leaves, strict=True)
        if call.is_batched(given) and is_open(leaf.shape[0])
    ]
    for size in sizes:
        lower, upper = _range(exported, size)
        least = max(least, lower)
        most = upper if most is None or (upper is not None and upper < most) else most
    return _within(_assumptions(sizes), call.batch_size, (least, most))


def _range(exported: ExportedProgram, size: Any) -> Limits:
    limits = exported.range_constraints.get(size.node.expr)
    if limits is None:
        return 1, None
    lower, upper = limits.lower, limits.upper
    least = int(lower) if lower.is_finite and lower > _LEAST else 1
    return least, int(upper) if upper.is_finite and upper < 2**40 else None


def _assumptions(sizes: Sequence[Any]) -> list[sympy.Basic]:
    """What was assumed about the batch size alone, as expressions of one symbol."""
    rows = sympy.Symbol("rows", integer=True, positive=True)
    found: dict[sympy.Basic, None] = {}
    symbols = {symbol: rows for size in sizes for symbol in size.node.expr.free_symbols}
    for size in sizes:
        for guard in size.node.shape_env.guards:
            if guard.expr.free_symbols and guard.expr.free_symbols <= symbols.keys():
                found[guard.expr.xreplace(symbols)] = None
    return [guard for guard in found if guard is not sympy.true]


def _within(assumptions: Sequence[sympy.Basic], example: int, limits: Limits) -> Limits:
    """The limits, narrowed to the numbers around the example's that fit every assumption."""
    if not assumptions or all(_is_range(guard) for guard in assumptions):
        return limits
    tried = np.arange(1, _TRIED + 1, dtype=np.int64)
    try:
        fits = reduce(np.logical_and, [_value(guard, tried) for guard in assumptions])
    except _UnknownError:
        return example, example
    broken = tried[~np.broadcast_to(fits, tried.shape)]
    below, above = broken[broken < example], broken[broken > example]
    least = max(limits[0], int(below[-1]) + 1 if below.size else 1)
    most = int(above[0]) - 1 if above.size else _TRIED
    return least, most if limits[1] is None else min(most, limits[1])


def _is_range(guard: sympy.Basic) -> bool:
    """`rows > 8`: torch has it among its ranges."""
    if not isinstance(guard, sympy.core.relational._Inequality):
        return False
    return any(side.is_Symbol for side in guard.args) and any(
        side.is_Integer for side in guard.args
    )


class _UnknownError(Exception):
    """An assumption in terms that are not known here."""


_MANY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Max": np.maximum,
    "Min": np.minimum,
}
_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Pow": operator.pow,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "GreaterThan": operator.ge,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "StrictLessThan": operator.lt,
}


def _value(expression: sympy.Basic, rows: Numbers) -> Any:
    """The expression for many numbers of rows at once."""
    if expression.is_Symbol:
        return rows
    if isinstance(expression, sympy.Integer):
        return np.int64(int(expression))
    if isinstance(expression, sympy.logic.boolalg.BooleanAtom):
        return np.bool_(bool(expression))
    name = type(expression).__name__
    values = [_value(part, rows) for part in expression.args]
    if name in _MANY:
        return reduce(_MANY[name], values)
    if name == "Not":
        return np.logical_not(values[0])
    if name in _TWO and len(values) == 2:
        if name == "Pow" and values[1] != 2:  # others leave the integers, or 64 bits
            raise _UnknownError(name)
        with np.errstate(divide="ignore"):
            return _TWO[name](*values)
    raise _UnknownError(name)
