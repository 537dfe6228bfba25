"""Dividing a batch into parts, on the Root (inputs) and on the Leaf (labels) alike."""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

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
    if isinstance(item, torch.Tensor):
        return item[start:stop] if item.dim() and item.shape[0] == rows else item
    if isinstance(item, Mapping):
        return type(item)({key: rows_of(v, rows, start, stop) for key, v in item.items()})  # type: ignore[call-arg]
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(rows_of(value, rows, start, stop) for value in item))
    if isinstance(item, tuple | list):
        if isinstance(item, list) and len(item) == rows and not _holds_tensors(item):
            return item[start:stop]
        return type(item)(rows_of(value, rows, start, stop) for value in item)
    if is_dataclass(item) and not isinstance(item, type):
        changed = {name: rows_of(v, rows, start, stop) for name, v in vars(item).items()}
        return replace(item, **changed)
    return item


def _holds_tensors(items: Sequence[Any]) -> bool:
    return any(isinstance(item, torch.Tensor) for item in items)
