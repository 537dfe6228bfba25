"""What a model keeps in plain Python attributes: counters, caches, tensors that are no buffers.

A graph freezes such state, so it has to be known whether a run changes it; and a trial run must not
change it, so it has to be put back. Looks into lists, dicts and simple helper objects as well, to a
depth at which state of a model is still likely to be found.
"""

import contextlib
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

_DEPTH = 4
_MANY = 1_000
"""A container with more entries is data, not state."""
_NO_HELPERS = (nn.Module, torch.Tensor, type, types.ModuleType, types.FunctionType)
_OWN_NAMES = frozenset(vars(nn.Module())) | {"training"}
"""What every module has: its registries, which are looked after elsewhere, and its mode."""
_HARMLESS = frozenset({"_output_capturing_hooks_installed"})
"""Set by transformers at the first call, when it installs hooks that only collect outputs."""

Leaves = dict[str, Any]
"""`module.attribute['key']` → a number, a text or a tensor."""


@dataclass
class Changes:
    """What a run left behind."""

    numbers: list[str] = field(default_factory=list)
    """Attributes in which a number or text is another one, in the order of the modules."""
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """Where another tensor is now → the tensor that was there."""


def attribute_leaves(model: nn.Module) -> Leaves:
    """Every number, text and tensor in the plain attributes of the model's modules."""
    return {
        name: value
        for path, entries in _containers(model)
        for name, value in _named(path, entries)
        if isinstance(value, bool | int | float | str | torch.Tensor | torch.SymInt)
    }


def changes(before: Leaves, after: Leaves) -> Changes:
    """Tensors that were not there before are none: caches and results kept for the caller."""
    found = Changes()
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old is new or name.rpartition(".")[2] in _HARMLESS:
            continue
        if isinstance(old, torch.Tensor):
            found.tensors[name] = old
        elif not isinstance(new, torch.Tensor) and not _equal(old, new):
            found.numbers.append(name)
    return found


def _equal(old: Any, new: Any) -> bool:
    # Comparing a symbolic number would make the capture assume the answer.
    return type(old) is type(new) and not isinstance(old, torch.SymInt) and bool(old == new)


def plain_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Tensors outside the registries, each once."""
    found = {id(v): v for v in attribute_leaves(model).values() if isinstance(v, torch.Tensor)}
    return list(found.values())


@contextlib.contextmanager
def containers_restored(model: nn.Module) -> Iterator[None]:
    """Lists, dicts and helper objects with the entries they had before."""
    saved = [(entries, _copy(entries)) for _, entries in _containers(model)]
    try:
        yield
    finally:
        for entries, before in saved:
            _put_back(entries, before)


def _containers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Attribute dicts of the modules, and what they hold, each container once."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        own = {name: v for name, v in vars(module).items() if name not in _OWN_NAMES}
        yield path, types.MappingProxyType(own)
        for name, value in own.items():
            yield from _inside(f"{path}.{name}".lstrip("."), value, seen, _DEPTH)


def _inside(path: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    entries = _entries(value)
    if entries is None or depth == 0 or len(entries) > _MANY or id(entries) in seen:
        return
    seen.add(id(entries))
    yield path, entries
    for name, item in _named(path, entries):
        yield from _inside(name, item, seen, depth - 1)


def _entries(value: Any) -> Any:
    """The container behind a value: itself, or the attributes of a helper object."""
    if isinstance(value, list | deque | dict):
        return value
    if isinstance(value, _NO_HELPERS) or type(value).__module__.partition(".")[0] == "torch":
        return None
    attributes = getattr(value, "__dict__", None)
    return attributes if isinstance(attributes, dict) else None


def _named(path: str, entries: Any) -> list[tuple[str, Any]]:
    if isinstance(entries, list | deque):
        return [(f"{path}[{index}]", item) for index, item in enumerate(entries)]
    return [
        (f"{path}.{key}".lstrip(".") if isinstance(key, str) else f"{path}[{key!r}]", item)
        for key, item in list(entries.items())
    ]


def _copy(entries: Any) -> Any:
    return list(entries) if isinstance(entries, list | deque) else dict(entries)


def _put_back(entries: Any, before: Any) -> None:
    """Touches only what has changed: an entry may be a property of a class we do not know."""
    if isinstance(entries, types.MappingProxyType):
        return  # a module's own attributes: the borrower restores them with its registries
    if isinstance(entries, dict):
        same = entries.keys() == before.keys() and all(entries[k] is before[k] for k in before)
    else:
        same = len(entries) == len(before) and all(
            one is other for one, other in zip(entries, before, strict=True)
        )
    if same:
        return
    entries.clear()
    if isinstance(entries, dict):
        entries.update(before)
    else:
        entries.extend(before)
