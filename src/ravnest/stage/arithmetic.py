"""Python arithmetic on sizes, as far as captured models need it: numbers in, numbers out.

Python's own operators would do more than that for a hostile package: repeat a list until memory is
full, format a text, grow an integer without end. So arguments must be numbers and results must fit
64 bits. Under `torch.compile` the numbers are symbolic and pass through unchanged.
"""

import keyword
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ravnest.errors import PackageError

_MAX_INT = 2**63
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def bounded(value: Any) -> Any:
    """The number itself, unless it is none or an integer of more than 64 bits."""
    if not isinstance(value, _NUMBERS):
        raise PackageError(f"size arithmetic on an object of type {type(value).__name__}")
    if isinstance(value, int) and not -_MAX_INT <= value < _MAX_INT:
        raise PackageError("an integer does not fit 64 bits")
    return value


def _on_numbers(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*values: Any) -> Any:
        for value in values:
            bounded(value)
        return bounded(function(*values))

    # fx makes the name of a generated variable from it.
    compute.__name__ = f"{name}_" if keyword.iskeyword(name) else name
    return compute


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > 64 or abs(base) > 2**32:
        raise PackageError("a power of sizes is out of bounds")
    return base**exponent


def getitem(container: Any, index: Any) -> Any:
    """One of several results of an operator, or one of several sizes."""
    if not isinstance(container, tuple | list) or not isinstance(index, int | torch.SymInt):
        found = f"{type(container).__name__}[{type(index).__name__}]"
        raise PackageError(f"only a list of results can be indexed, by a number; not {found}")
    return container[index]


def total(values: Sequence[Any]) -> Any:
    """The sum of a list of numbers."""
    result: Any = 0
    for value in values:
        result = bounded(result + bounded(value))
    return result


_PLAIN: dict[str, tuple[Callable[..., Any], int]] = {
    "add": (operator.add, 2),
    "sub": (operator.sub, 2),
    "mul": (operator.mul, 2),
    "floordiv": (operator.floordiv, 2),
    "truediv": (operator.truediv, 2),
    "mod": (operator.mod, 2),
    "pow": (_power, 2),
    "neg": (operator.neg, 1),
    "eq": (operator.eq, 2),
    "ne": (operator.ne, 2),
    "lt": (operator.lt, 2),
    "le": (operator.le, 2),
    "gt": (operator.gt, 2),
    "ge": (operator.ge, 2),
    "and": (operator.and_, 2),
    "or": (operator.or_, 2),
    "sym_max": (torch.sym_max, 2),
    "sym_min": (torch.sym_min, 2),
    "sym_float": (torch.sym_float, 1),
    "sym_int": (torch.sym_int, 1),
    "sym_not": (torch.sym_not, 1),
    "sym_ite": (torch.sym_ite, 3),
    "sym_sqrt": (torch._sym_sqrt, 1),  # type: ignore[attr-defined]
    "ceil": (math.ceil, 1),
    "floor": (math.floor, 1),
    "trunc": (math.trunc, 1),
    "round": (round, 1),
}

ARITHMETIC: dict[str, Callable[..., Any]] = {
    name: _on_numbers(name, function) for name, (function, _) in _PLAIN.items()
} | {"getitem": getitem, "sum": total}
"""What a name in a package means."""

ARITY = {name: count for name, (_, count) in _PLAIN.items()} | {"getitem": 2, "sum": 1}

ARITHMETIC_NAMES: dict[Any, str] = {function: name for name, (function, _) in _PLAIN.items()} | {
    operator.pow: "pow",
    operator.getitem: "getitem",
    torch.sym_sum: "sum",
}
"""What a captured model calls, under the name by which a package says it."""
