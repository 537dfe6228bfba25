"""Nested inputs and outputs as data: flatten an object to tensors, rebuild one that looks the same.

A model may take or return tuples, dicts, dataclasses, named tuples or a library's own output class.
Only containers and tensors are described here; what stands in for objects of unknown classes is
in records.py.

JSON form of a structure:
    {"leaf": 3}   {"const": null}   {"float": "inf"}
    {"tuple": [...]}   {"list": [...]}   {"dict": [[key, s], ...]}
    {"record": "tuple" | "mapping" | "lookup" | "object", "fields": [[key, s], ...]}
"""

import dataclasses
import enum
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from ravnest.errors import CaptureError, InputError, PackageError
from ravnest.stage.records import (
    LookupRecord,
    MappingRecord,
    ObjectRecord,
    is_dunder,
    make_record,
    mapping_fields,
)

Structure = dict[str, Any]
_MAX_DEPTH = 32
_MAX_NODES = 100_000
_MAX_KEY = 200
_NOT_FINITE = ("inf", "-inf", "nan")


def flatten(value: Any, leaves: list[torch.Tensor], where: str, depth: int = 0) -> Structure:
    """Append the tensors of `value` to `leaves` and describe the rest as data."""
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return {"leaf": len(leaves) - 1}
    if value is None or isinstance(value, bool | int | float | str | torch.SymInt | torch.SymBool):
        return _constant(value)
    containers = (list, tuple, Mapping, ObjectRecord)
    if isinstance(value, containers) or dataclasses.is_dataclass(value):
        if depth == _MAX_DEPTH:
            raise CaptureError(f"{where.split('[')[0]} is nested deeper than {depth} levels")
        return _flatten_container(value, leaves, where, depth)
    raise CaptureError(
        f"{where} holds an object of type {type(value).__module__}.{type(value).__qualname__}. "
        "Only tensors, numbers, strings and nested tuples, lists, dicts, named tuples, "
        "dataclasses and mapping-like output classes can cross a stage. "
        "Convert it to one of these in the model's forward (a key/value cache is switched off "
        "with use_cache=False)."
    )


def _flatten_container(value: Any, leaves: list[torch.Tensor], where: str, depth: int) -> Structure:
    def child(key: object, item: Any) -> Structure:
        return flatten(item, leaves, f"{where}[{key!r}]", depth + 1)

    def record(kind: str, fields: Sequence[tuple[str, Any]]) -> Structure:
        described = [[key, child(key, item)] for key, item in fields]
        return {"record": kind, "fields": described}

    if isinstance(value, tuple) and (names := _names_of_items(value)):
        return record("tuple", list(zip(names, value, strict=True)))
    if isinstance(value, tuple):
        return {"tuple": [child(i, item) for i, item in enumerate(value)]}
    if isinstance(value, list):
        return {"list": [child(i, item) for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        return _flatten_mapping(value, child, record)
    return record("object", _attributes(value))


def _names_of_items(value: tuple[Any, ...]) -> tuple[str, ...]:
    """Field names of a named tuple or of what `torch.max(x, 1)` returns; none of a plain tuple."""
    names: tuple[str, ...] = getattr(value, "_fields", ())
    if hasattr(type(value), "n_sequence_fields"):  # made in C, and so without `_fields`
        names = getattr(value, "__match_args__", ())
    return names if len(names) == len(value) else ()


def _attributes(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, ObjectRecord):
        return list(vars(value).items())
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]


def _flatten_mapping(
    value: Mapping[Any, Any],
    child: Callable[[object, Any], Structure],
    record: Callable[[str, Sequence[tuple[str, Any]]], Structure],
) -> Structure:
    if isinstance(value, MappingRecord):
        kind = "lookup" if isinstance(value, LookupRecord) else "mapping"
        return record(kind, mapping_fields(value))
    if bad := [key for key in value if not isinstance(key, str | int)]:
        raise CaptureError(f"a dict key of a model's input or output is {bad[0]!r}; use strings")
    if dataclasses.is_dataclass(value):
        fields = dict(_attributes(value))
        more = [(key, value[key]) for key in value if key not in fields]
        return record("mapping", [*fields.items(), *more])
    items = [(key, value[key]) for key in value]  # `value.items` may be one of them
    plain = type(value).__module__ in ("builtins", "collections")
    if plain or not all(isinstance(key, str) for key in value):
        return {"dict": [[key, child(key, item)] for key, item in items]}
    # A class that shows an item where a dict has a method shows all its items as attributes.
    shown = any(hasattr(dict, key) and getattr(value, key, None) is item for key, item in items)
    return record("mapping" if shown else "lookup", items)


def _constant(value: Any) -> Structure:
    if isinstance(value, torch.SymInt | torch.SymBool):
        raise CaptureError(
            "the model returns a size that depends on the batch as a Python number; "
            "return torch.tensor(size) or leave it out"
        )
    if isinstance(value, float):
        # JSON has no word for these; as null they would come back as None.
        return {"const": float(value)} if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        value = str.__str__(value)  # of a subclass, which JSON would not take
    return {"const": value}


def rebuild(structure: Structure, leaf: Callable[[int], Any], depth: int = 0) -> Any:
    """Put values back into the shape that `flatten` described."""
    if depth > _MAX_DEPTH:
        raise PackageError(f"a structure is nested deeper than {_MAX_DEPTH} levels")
    match structure:
        case {"leaf": int(index)}:
            return leaf(index)
        case {"const": constant}:
            return constant
        case {"float": str(text)}:
            return float(text)
        case {"tuple": items}:
            return tuple(rebuild(item, leaf, depth + 1) for item in items)
        case {"list": items}:
            return [rebuild(item, leaf, depth + 1) for item in items]
        case {"dict": items}:
            return {key: rebuild(item, leaf, depth + 1) for key, item in items}
        case {"record": str(kind), "fields": items}:
            return make_record(kind, {key: rebuild(item, leaf, depth + 1) for key, item in items})
    raise PackageError(f"unknown structure {reprlib.repr(structure)}")


def check(structure: Any, leaf: Callable[[int], None]) -> None:
    """Refuse a structure that `rebuild` could not turn into plain containers."""
    nodes = 0

    def visit(node: Any, depth: int) -> None:
        nonlocal nodes
        nodes += 1
        if depth > _MAX_DEPTH or nodes > _MAX_NODES:
            limits = f"{_MAX_DEPTH} levels and {_MAX_NODES} entries"
            raise PackageError(f"a structure has more than {limits}")
        match node:
            case {"leaf": int(index)} if len(node) == 1 and not isinstance(index, bool):
                leaf(index)
            case {"const": None | bool() | int() | float() | str()} if len(node) == 1:
                pass
            case {"float": text} if len(node) == 1 and text in _NOT_FINITE:
                pass
            case {"tuple": list(items)} | {"list": list(items)} if len(node) == 1:
                for item in items:
                    visit(item, depth + 1)
            case {"dict": list(items)} if len(node) == 1:
                visit_fields(items, depth, _is_key)
            case {"record": "mapping" | "lookup", "fields": list(items)} if len(node) == 2:
                visit_fields(items, depth, _is_text)
            case {"record": "tuple" | "object", "fields": list(items)} if len(node) == 2:
                visit_fields(items, depth, _is_attribute)
            case _:
                raise PackageError(f"unknown structure {reprlib.repr(node)}")

    def visit_fields(items: list[Any], depth: int, usable: Callable[[Any], bool]) -> None:
        seen = set()
        for entry in items:
            match entry:
                case [key, item] if usable(key) and key not in seen:
                    seen.add(key)
                    visit(item, depth + 1)
                case _:
                    raise PackageError(f"unusable field {reprlib.repr(entry)}")

    visit(structure, 0)


def _is_text(key: Any) -> bool:
    return isinstance(key, str) and len(key) <= _MAX_KEY


def _is_key(key: Any) -> bool:
    return isinstance(key, int) or _is_text(key)


def _is_attribute(key: Any) -> bool:
    """A name that reads a field of an object and does not change what the object is."""
    return _is_text(key) and key.isidentifier() and not is_dunder(key)


def relabel(structure: Structure, number: Callable[[int], int]) -> Structure:
    """The same structure with other leaf numbers."""
    if "leaf" in structure:
        return {"leaf": number(structure["leaf"])}
    for kind in ("tuple", "list"):
        if kind in structure:
            return {kind: [relabel(item, number) for item in structure[kind]]}
    for kind in ("dict", "fields"):
        if kind in structure:
            fields = [[key, relabel(item, number)] for key, item in structure[kind]]
            return {**structure, kind: fields}
    return structure


def result_values(structure: Any) -> list[int]:
    """Value numbers inside a result structure, in order."""
    if isinstance(structure, dict):
        if "leaf" in structure:
            return [structure["leaf"]]
        return [value for part in structure.values() for value in result_values(part)]
    if isinstance(structure, list):
        return [value for part in structure for value in result_values(part)]
    return []


def match_leaves(structure: Structure, value: Any, where: str) -> dict[int, torch.Tensor]:
    """Leaves of `value`, which must have the structure seen at capture; numbered as in it."""
    leaves: list[torch.Tensor] = []
    found = flatten(value, leaves, where)
    numbers: list[int] = []

    def number(index: int) -> int:
        numbers.append(index)
        return len(numbers) - 1

    expected = relabel(structure, number)
    # As JSON, in which 1, 1.0 and true differ.
    if msgspec.json.encode(found) != msgspec.json.encode(expected):
        raise InputError(
            f"{where} does not have the form the model was planned with: "
            f"expected {_describe(expected)}, got {_describe(found)}. "
            "Non-tensor inputs are part of the plan: pass the same values, or plan again."
        )
    return dict(zip(numbers, leaves, strict=True))


def _describe(structure: Structure) -> str:
    return str(rebuild(structure, lambda index: f"tensor {index}"))[:300]
