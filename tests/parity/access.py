"""Every index, key and attribute that works on one output has to work on the other.

Knows nothing about stages: compares a model's own output with whatever stands in for it.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

_NOTHING = object()


def same_access(expected: Any, found: Any, way: str = "") -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each way to a tensor of `expected`, with the two tensors that it leads to."""
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor), f"output{way} is {found!r}, not a tensor"
        yield way, expected.detach(), found.detach()
    elif isinstance(expected, tuple | list | Mapping) or dataclasses.is_dataclass(expected):
        yield from _same_items(expected, found, way)
        yield from _same_attributes(expected, found, way)
    else:
        both_nan = expected != expected and found != found
        assert both_nan or expected == found, f"output{way} is {found!r}, not {expected!r}"


def _same_items(expected: Any, found: Any, way: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    for kind in (tuple, list, Mapping):
        if isinstance(expected, kind):
            assert isinstance(found, kind), f"output{way} is no {kind.__name__}"
            assert len(found) == len(expected), f"output{way} has another length"
    keys: list[Any] = []
    if isinstance(expected, Mapping):
        keys += expected
        assert list(found) == keys, f"output{way} has keys {list(found)}, not {keys}"
    if hasattr(expected, "__len__"):
        keys += [key for i in range(len(expected)) for key in (i, i - len(expected))]
    for key in keys:
        try:
            one = expected[key]
        except (KeyError, TypeError):  # a dict has no positions
            continue
        if isinstance(key, int) and isinstance(expected, Mapping):
            by_name = [expected[name] for name in expected][key]
            if type(one) is not type(by_name):  # CLIP: nested outputs are tuples by position only
                continue
        yield from same_access(one, found[key], f"{way}[{key!r}]")


def _same_attributes(expected: Any, found: Any, way: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    for name in _field_names(expected):
        one = getattr(expected, name, _NOTHING)
        if one is _NOTHING:
            continue
        other = getattr(found, name)
        if callable(one):
            assert callable(other), f"output{way}.{name} is no method"
        else:
            yield from same_access(one, other, f"{way}.{name}")


def _field_names(value: Any) -> list[str]:
    names = [*getattr(value, "_fields", ())]
    if dataclasses.is_dataclass(value):
        names += [field.name for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        names += [key for key in value if isinstance(key, str)]
    if hasattr(value, "n_sequence_fields"):
        names += type(value).__match_args__
    return names
