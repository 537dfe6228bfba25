"""What a model keeps in plain Python: counters, caches, generators, tensors that are no buffers.

A graph freezes such state, so it has to be known whether a run changes it; and a trial run must not
change it, so it has to be put back. Looks into lists, dicts and simple helper objects as well, to a
depth at which state of a model is still likely to be found; and at numbers in the classes of the
model's modules and in the files that define them.
"""

import contextlib
import random
import sys
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
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
    generators: list[str] = field(default_factory=list)
    """Sources of random numbers from which some were drawn."""


@dataclass(frozen=True)
class _Drawn:
    """How far a generator has come."""

    state: object


def attribute_leaves(model: nn.Module) -> Leaves:
    """Every number, text, tensor and generator that the model's modules have in plain Python."""
    found = {
        name: value
        for path, entries in _containers(model)
        for name, item in _named(path, entries)
        if (value := _leaf(item)) is not None
    }
    return found | _shared_numbers(model)


def _leaf(item: Any) -> Any:
    """What can be compared later; None if there is nothing to watch."""
    if isinstance(item, bool | int | float | str | torch.Tensor | torch.SymInt):
        return item
    if isinstance(item, np.ndarray):
        return item.tobytes() if item.size <= _MANY and item.dtype != object else None
    if isinstance(item, np.generic):
        return item.item()
    if isinstance(item, np.random.Generator):
        return _Drawn(str(item.bit_generator.state))
    if isinstance(item, np.random.RandomState):
        return _Drawn(str(item.get_state()))
    if isinstance(item, random.Random):
        return _Drawn(item.getstate())
    if isinstance(item, torch.Generator):
        return _Drawn(item.get_state().numpy().tobytes())
    return None


def _shared_numbers(model: nn.Module) -> Leaves:
    """Numbers in the classes of the modules, and in the files that define them; not torch's."""
    found: Leaves = {}
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    kinds = {
        kind for kind in kinds if kind.__module__.partition(".")[0] not in ("torch", "builtins")
    }
    for kind in kinds:
        found |= _numbers(f"{kind.__module__}.{kind.__qualname__}", vars(kind))
    for name in {kind.__module__ for kind in kinds}:
        found |= _numbers(name, vars(sys.modules[name])) if name in sys.modules else {}
    return found


def _numbers(path: str, entries: Any) -> Leaves:
    return {
        f"{path}.{name}": value
        for name, value in list(entries.items())
        if isinstance(value, bool | int | float) and not name.startswith("__")
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
        elif isinstance(old, _Drawn) and isinstance(new, _Drawn):
            if old != new:
                found.generators.append(name)
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
    if isinstance(value, list | deque | dict | tuple):
        return value
    if isinstance(value, _NO_HELPERS) or type(value).__module__.partition(".")[0] == "torch":
        return None
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        return attributes
    slots = [slot for kind in type(value).__mro__ for slot in vars(kind).get("__slots__", ())]
    held = {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
    return _Slots(value, held) if held else None


class _Slots(dict[str, Any]):
    """The attributes of an object that keeps them in slots."""

    def __init__(self, owner: Any, held: dict[str, Any]) -> None:
        super().__init__(held)
        self.owner = owner


def _named(path: str, entries: Any) -> list[tuple[str, Any]]:
    if isinstance(entries, list | deque | tuple):
        return [(f"{path}[{index}]", item) for index, item in enumerate(entries)]
    return [
        (f"{path}.{key}".lstrip(".") if isinstance(key, str) else f"{path}[{key!r}]", item)
        for key, item in list(entries.items())
    ]


def _copy(entries: Any) -> Any:
    return list(entries) if isinstance(entries, list | deque | tuple) else dict(entries)


def _put_back(entries: Any, before: Any) -> None:
    """Touches only what has changed: an entry may be a property of a class we do not know."""
    if isinstance(entries, types.MappingProxyType | tuple):
        return  # a module's own attributes: the borrower restores them with its registries
    if isinstance(entries, _Slots):
        for slot, value in before.items():
            if getattr(entries.owner, slot, None) is not value:
                setattr(entries.owner, slot, value)
        return
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
