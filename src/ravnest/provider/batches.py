"""Dividing a batch into parts, on the Root (inputs) and on the Leaf (labels) alike."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch


def part_bounds(rows: int, parts: int) -> list[tuple[int, int]]:
    """First and last row of each part; sizes differ by one row at most."""
    if not 1 <= parts <= max(rows, 1):
        raise ValueError(f"a batch of {rows} rows cannot be divided into {parts} parts")
    return [(rows * k // parts, rows * (k + 1) // parts) for k in range(parts)]


def rows_of(item: Any, rows: int, start: int, stop: int) -> Any:
    """The same structure with rows start … stop of everything that has `rows` of them."""
    if start == 0 and stop == rows:
        return item
    return _changed(item, rows, lambda whole: whole[start:stop])


def has_rows(item: Any, rows: int) -> bool:
    """Whether there is anything in it that `rows_of` would divide."""
    found = []

    def note(whole: Any) -> Any:
        found.append(True)
        return whole

    _changed(item, rows, note)
    return bool(found)


def doubled(item: Any) -> Any:
    """One row, twice."""
    return _changed(item, 1, _twice)


def _twice(whole: Any) -> Any:
    if isinstance(whole, torch.Tensor):
        return torch.cat((whole, whole))
    return np.concatenate((whole, whole)) if isinstance(whole, np.ndarray) else whole + whole


def entries(item: Mapping[Any, Any]) -> dict[Any, Any]:
    """A record may have a field that is called like a method of a dict, `values` or `items`, and
    then has no such method."""
    return dict(dict.items(item)) if isinstance(item, dict) else dict(item.items())


def attributes(item: Any) -> dict[str, Any] | None:
    """Of a record: a dataclass, with or without slots, or a namespace. None if it is no record."""
    if isinstance(item, SimpleNamespace):
        return vars(item)
    if not is_dataclass(item) or isinstance(item, type):
        return None
    named = {f.name: getattr(item, f.name) for f in fields(item) if hasattr(item, f.name)}
    return named | getattr(item, "__dict__", {})


def _rebuilt(item: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with `change` applied to its entries; whatever has none, as it is."""
    if isinstance(item, Mapping):
        changed = {key: change(value) for key, value in entries(item).items()}
        if isinstance(item, defaultdict):
            return type(item)(item.default_factory, changed)
        return type(item)(changed)  # type: ignore[call-arg]
    if isinstance(item, tuple | list):
        found = [change(value) for value in item]
        return type(item)(*found) if hasattr(item, "_fields") else type(item)(found)
    if (named := attributes(item)) is None:
        return item
    record = copy.copy(item)
    for name, value in named.items():
        object.__setattr__(record, name, change(value))  # frozen ones, too
    return record


def _changed(item: Any, rows: int, change: Callable[[Any], Any]) -> Any:
    """The same structure, with `change` applied to everything that has one entry for each row."""
    if isinstance(item, torch.Tensor | np.ndarray):
        return change(item) if item.ndim and item.shape[0] == rows else item
    is_sequence = isinstance(item, tuple | list) and not hasattr(item, "_fields")
    if is_sequence and len(item) == rows and not _holds_whole_batches(item, rows):
        return change(item)
    return _rebuilt(item, lambda value: _changed(value, rows, change))


def with_tensors(
    item: Any, change: Callable[[torch.Tensor], torch.Tensor], device: torch.device
) -> Any:
    """The same structure, with `change` applied to its tensors. What knows by itself how to get
    to a device (modules, packed sequences, collections of libraries) does that instead."""
    if isinstance(item, torch.Tensor):
        return change(item)
    if callable(move := getattr(item, "to", None)) and not isinstance(item, type):
        return move(device)
    return _rebuilt(item, lambda value: with_tensors(value, change, device))


def _holds_whole_batches(items: Sequence[Any], rows: int) -> bool:
    """Whether the entries are things like [inputs, labels], which happen to be as many as rows."""
    if len(items) > 1 and all(isinstance(item, Mapping) for item in items):
        described_alike = len({frozenset(item) for item in items}) == 1
        if described_alike:  # one row each
            return False
    if len({_kind(item) for item in items if item is not None}) > 1:
        return True  # rows are all alike
    # Plain numbers, a factor for the whole batch for instance, say nothing about it.
    lengths = {array.shape[0] for array in _arrays(items) if array.ndim}
    return lengths == {rows}


def _kind(item: Any) -> Any:
    if isinstance(item, int | float):
        return "number"
    return type(item), getattr(item, "ndim", None)


def _arrays(item: Any) -> Iterator[Any]:
    if isinstance(item, torch.Tensor | np.ndarray):
        yield item
    elif isinstance(item, Mapping):
        for value in item.values():
            yield from _arrays(value)
    elif isinstance(item, tuple | list):
        for value in item:
            yield from _arrays(value)
    elif (named := attributes(item)) is not None:
        yield from _arrays(named)
