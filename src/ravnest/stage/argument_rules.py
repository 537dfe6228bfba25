"""Bounds for the numbers of a call, by the kind of parameter that the operator's schema names.

Kernels compute with sizes, strides, dilations and counts in 64 or even 32 bits, and few of them
look for an overflow; an enumeration out of range can leave a result unwritten. So every integer of
every operator has a bound far above what a model uses and far below where such arithmetic wraps:

    enumerations    reduction, mode, …               a number that torch's documentation knows
    positions       index, start, end, …             any: kernels compare them with a size
    windows         kernel_size, stride, dilation, …  < 2**24; the product of a kernel < 2**31
    counts          chunks, groups, num_layers, …     < 2**20, because the kernel loops over them
    sizes           size, shape, repeats, …           < 2**40 each, their product < 2**48
    divisors        divisor_override                  1 or more: the processor traps on some others
    all others      dim, offset, split_sizes, …       < 2**40

Numbers that need be no integers have a bound where they decide a size, whatever type they come in:
a kernel of integers makes integers of them.

    ranges          start, end, step of arange        < 2**60, as the number of steps is a quotient
    factors         scale_factors                     > 0, < 2**24

What a package states as a constant is judged once, when it is loaded. Only a number that an earlier
operator computes is judged before each call (`with_bounds`).
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from ravnest.errors import PackageError

Bound = Callable[[Sequence[Any]], bool]
"""Whether these numbers, of one parameter, are within its bounds."""


class Rule(NamedTuple):
    bound: Bound
    types: tuple[type, ...]
    """Of the numbers that the parameter takes."""


_ENUMERATIONS = {"reduction", "interpolation_mode", "padding_mode", "mode", "compute_mode"}
_POSITIONS = {"index", "indices", "start", "end", "ignore_index", "padding_idx", "low", "high"}
_WINDOWS = {"stride", "padding", "dilation", "output_padding", "pad"}
_SIZES = {"size", "sizes", "shape", "output_size", "repeats", "s", "normalized_shape"}
_COUNTS = {
    "chunks", "sections", "groups", "num_groups", "num_layers", "upscale_factor",
    "downscale_factor",
}  # fmt: skip
_DIVISORS = {"divisor_override"}
_RANGES = {"start", "end", "step"}
_FACTORS = {"scale_factors"}
_INTEGERS: tuple[type, ...] = (int, torch.SymInt)
_NUMBERS: tuple[type, ...] = (int, float, torch.SymInt, torch.SymFloat)


def _is_enumerated(numbers: Sequence[Any]) -> bool:
    return all(0 <= number <= 2 for number in numbers)


def _is_below(limit: int, numbers: Sequence[Any]) -> bool:
    # By functions of Python's own: sizes that depend on the batch are judged in every call.
    return not numbers or bool(-limit < min(numbers) and max(numbers) < limit)


def _multiplies_below(limit: int, product_limit: int, numbers: Sequence[Any]) -> bool:
    """A size of 0 does not make the product of the others harmless: kernels multiply in parts."""
    if 0 in numbers:
        numbers = [number for number in numbers if number]
    return _is_below(limit, numbers) and bool(abs(math.prod(numbers)) < product_limit)


_is_window = functools.partial(_is_below, 2**24)
_is_kernel = functools.partial(_multiplies_below, 2**24, 2**31)
_is_count = functools.partial(_is_below, 2**20)
is_size = functools.partial(_multiplies_below, 2**40, 2**48)
_is_number = functools.partial(_is_below, 2**40)


def _is_divisor(numbers: Sequence[Any]) -> bool:
    return all(1 <= number < 2**40 for number in numbers)


def _is_in_range(numbers: Sequence[Any]) -> bool:
    return all(-(2**60) < number < 2**60 for number in numbers)  # NaN is not


def _is_factor(numbers: Sequence[Any]) -> bool:
    return all(0 < number < 2**24 for number in numbers)


def _bound_of_integers(operator: str, parameter: str) -> Bound | None:
    if parameter in _POSITIONS:
        return None
    if parameter in _ENUMERATIONS:
        return _is_enumerated
    if parameter in _DIVISORS:
        return _is_divisor
    if parameter == "kernel_size":
        return _is_kernel
    if parameter in _WINDOWS and operator != "as_strided":
        return _is_window
    if parameter in _COUNTS:
        return _is_count
    return is_size if parameter in _SIZES or operator == "tile" else _is_number


def _bound_of_numbers(parameter: str, *, is_counted: bool) -> Bound | None:
    """`is_counted`: the operator is told how many elements it makes."""
    if parameter in _RANGES and not is_counted:
        return _is_in_range
    return _is_factor if parameter in _FACTORS else None


@functools.cache
def rules_of(operator: OpOverload) -> dict[str, Rule]:
    """The rule for each parameter whose numbers have a bound."""
    name = operator._schema.name.split("::")[1]
    arguments = operator._schema.arguments
    is_counted = any(argument.name == "steps" for argument in arguments)
    found = {}
    for argument in arguments:
        kind = str(argument.real_type).removeprefix("Optional[").removeprefix("List[").rstrip("]")
        bound, types = None, _INTEGERS
        if kind == "int":
            bound = _bound_of_integers(name, argument.name)
        elif kind in ("float", "number"):
            bound, types = _bound_of_numbers(argument.name, is_counted=is_counted), _NUMBERS
        if bound is not None:
            found[argument.name] = Rule(bound, types)
    return found


def check_constants(name: str, operator: OpOverload, given: Mapping[str, Any]) -> None:
    """Refuse a call (as JSON, by parameter) with a constant that is out of bounds."""
    for parameter, rule in rules_of(operator).items():
        _judge(name, parameter, rule, list(_constants(given.get(parameter))))


def _constants(value: Any) -> Iterator[Any]:
    """What stands in a package as a number, of whatever type."""
    for each in value if isinstance(value, list | tuple) else (value,):
        match each:
            case int() | float():
                yield each
            case {"float": str(text)} if text in ("inf", "-inf", "nan"):
                yield float(text)
            case {"complex": _}:
                yield 0j


def with_bounds(
    name: str,
    operator: OpOverload,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Callable[..., Any]:
    """The function itself if all numbers of this call are constants, which have been judged;
    otherwise one that judges those which stand as nodes of a graph in `args` and `kwargs`."""
    rules = rules_of(operator)
    names = [argument.name for argument in operator._schema.arguments if not argument.kwarg_only]
    placed = dict(zip(names, enumerate(args), strict=False))
    at = [(i, p, rules[p]) for p, (i, v) in placed.items() if p in rules and _is_open(v)]
    by_name = [(p, p, rules[p]) for p, v in kwargs.items() if p in rules and _is_open(v)]
    if not at and not by_name:
        return function

    def bounded(*args: Any, **kwargs: Any) -> Any:
        for index, parameter, rule in at:
            _judge(name, parameter, rule, args[index])
        for key, parameter, rule in by_name:
            _judge(name, parameter, rule, kwargs[key])
        return function(*args, **kwargs)

    return bounded


def check_numbers(
    name: str, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Refuse a call whose numbers, all of them known by now, are out of bounds."""
    names = [argument.name for argument in operator._schema.arguments if not argument.kwarg_only]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    for parameter, rule in rules_of(operator).items():
        if parameter in given:
            _judge(name, parameter, rule, given[parameter])


def _is_open(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_is_open(item) for item in value)
    return isinstance(value, torch.fx.Node)


def _judge(name: str, parameter: str, rule: Rule, value: Any) -> None:
    if value is None:
        return
    numbers = value if isinstance(value, list | tuple) else (value,)
    for number in numbers:
        if type(number) is not int and not isinstance(number, rule.types):
            found = type(number).__name__
            raise PackageError(f"operator {name!r} takes no {found} for {parameter}")
    if not rule.bound(numbers):
        raise PackageError(
            f"operator {name!r} is called with a {parameter} that is out of bounds "
            "(docs/packages.md lists them)"
        )
