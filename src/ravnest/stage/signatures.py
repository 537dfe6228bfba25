"""Does a call in a package fit the operator's own signature?

Torch would notice most misfits, but only when the call runs, and some it would accept: a device by
name, where a stage has just one device, or a keyword that is no name in generated code. Values are
not known yet; what is written down as a constant is judged here.
"""

import functools
import keyword
import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch._ops import OpOverload

from ravnest.errors import PackageError
from ravnest.stage.argument_rules import check_constants
from ravnest.stage.arithmetic import ARITHMETIC, ARITY
from ravnest.stage.operators import tensor_operator

_TAG_OF_TYPE = {
    "Device": "device",
    "Layout": "layout",
    "MemoryFormat": "memory",
    "ScalarType": "dtype",
}
_SIZES = {
    "size", "repeats", "output_size", "steps", "n", "m", "N", "row", "col", "window_length",
    "num_classes", "minlength", "num_samples", "bins",
}  # fmt: skip
"""Arguments that say how large a result is."""


def check_call(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], max_elements: int
) -> None:
    """Refuse a call of an allowed operator with arguments (as JSON) that cannot be meant for it."""
    if name in ARITHMETIC:
        if kwargs or len(args) != ARITY[name]:
            raise PackageError(f"{name!r} takes {ARITY[name]} arguments and no keywords")
        return
    operator = tensor_operator(name)
    given = _bind(name, operator, args, kwargs)
    for argument, value in given.items():
        if not _fits(_types(operator)[argument], value):
            raise PackageError(f"operator {name!r} cannot take {argument}={reprlib.repr(value)}")
    check_constants(name, operator, given)
    if (elements := _stated_elements(operator, given)) > max_elements:
        raise PackageError(
            f"operator {name!r} asks for {elements:.3g} elements, more than {max_elements} allowed"
        )


def shared_references(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[int, bool]]:
    """Values whose memory the result of a checked call shows or, where true, the call changes, as
    far as the operator's schema tells."""
    if name in ARITHMETIC:
        shared = [(item, False) for item in args]
    else:
        operator = tensor_operator(name)
        given = _bind(name, operator, args, kwargs)
        aliases = [(each.name, each.alias_info) for each in operator._schema.arguments]
        shared = [(given.get(key), alias.is_write) for key, alias in aliases if alias is not None]
    for argument, writes in shared:
        for leaf in _leaves(argument):
            if isinstance(leaf, dict) and "v" in leaf:
                yield leaf["v"], writes


def _bind(
    name: str, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    described = operator._schema.arguments
    positional = [argument.name for argument in described if not argument.kwarg_only]
    if len(args) > len(positional):
        raise PackageError(f"operator {name!r} is given {len(args)} arguments")
    given = dict(zip(positional, args, strict=False))
    for key, value in kwargs.items():
        if key in given or key not in _types(operator) or keyword.iskeyword(key):
            raise PackageError(f"operator {name!r} takes no keyword {key[:50]!r} here")
        given[key] = value
    for argument in described:
        if argument.name not in given and not argument.has_default_value():
            raise PackageError(f"operator {name!r} lacks its argument {argument.name!r}")
    return given


@functools.cache
def _types(operator: OpOverload) -> dict[str, str]:
    """Type of each argument, without the `Optional[…]` around it."""
    types = {}
    for argument in operator._schema.arguments:
        text = str(argument.real_type)
        types[argument.name] = text[9:-1] if text.startswith("Optional[") else text
    return types


def _fits(kind: str, value: Any) -> bool:
    if value is None:
        return True
    if kind in _TAG_OF_TYPE:
        return isinstance(value, dict) and _TAG_OF_TYPE[kind] in value
    if kind == "str":
        return isinstance(value, str)
    return kind != "Generator" and all(_is_plain(leaf) for leaf in _leaves(value))


def _is_plain(leaf: Any) -> bool:
    special = _TAG_OF_TYPE.values()
    return not isinstance(leaf, str) and not (isinstance(leaf, dict) and special & leaf.keys())


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _stated_elements(operator: OpOverload, given: Mapping[str, Any]) -> float:
    """How many elements the result has as far as constants tell; views take no memory."""
    if any(result.alias_info is not None for result in operator._schema.returns):
        return 0
    elements = 1.0
    for argument in _SIZES & given.keys():
        for leaf in _leaves(given[argument]):
            if isinstance(leaf, int) and leaf > 1:
                elements *= leaf
    return max(elements, _span(given))


def _span(given: Mapping[str, Any]) -> float:
    """Elements of `arange`."""
    start, end, step = given.get("start", 0), given.get("end"), given.get("step", 1)
    if "end" not in given or not all(isinstance(x, int | float) for x in (start, end, step)):
        return 0
    return abs((end - start) / step) if step and math.isfinite(step) else 0
