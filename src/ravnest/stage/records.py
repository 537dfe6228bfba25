"""Stand-ins for output objects whose classes are not known where the output is used.

Classes are code, and code never travels. A named tuple comes back as a tuple with the same field
names, a mapping-like output class as a dict with attribute and index access, any other object as
plain attributes; so what works on the original model's output works on these.

A field may be called like a method of its stand-in (`count`, `values`). Wherever the original shows
the field there, it lies in the instance's `__dict__`, which Python asks before the class's methods;
nothing in this file therefore calls a method by way of a record.
"""

from collections.abc import Mapping
from typing import Any

from torch.utils import _pytree


class TupleRecord(tuple[Any, ...]):
    """A named tuple made from data."""

    _fields: tuple[str, ...]

    @classmethod
    def make(cls, fields: Mapping[str, Any]) -> "TupleRecord":
        record = cls(fields.values())
        # Last, because what reads the record relies on it; no named tuple has a field `_fields`.
        record.__dict__.update(fields, _fields=tuple(fields))
        return record

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("_fields", ())
        raise AttributeError(f"no field {name!r}; there are: {', '.join(fields)}")

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))


class MappingRecord(dict[str, Any]):
    """A library's output class: keys, attributes and positions; what is None is not a key."""

    _names: tuple[str, ...]

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__({key: value for key, value in fields.items() if value is not None})
        named_like_methods = {
            key: value
            for key, value in fields.items()
            if hasattr(MappingRecord, key) and not is_dunder(key)
        }
        self.__dict__.update(named_like_methods, _names=tuple(fields))

    def __getitem__(self, key: str | int | slice) -> Any:
        return dict.__getitem__(self, key) if isinstance(key, str) else _values(self)[key]

    def __getattr__(self, name: str) -> Any:
        # Python and libraries ask for such names to learn what an object is; data must not answer.
        if not is_dunder(name):
            if name in self:
                return dict.__getitem__(self, name)
            if name in self.__dict__.get("_names", ()):
                return None
        raise AttributeError(f"no field {name!r}; there are: {', '.join(self)}")

    def to_tuple(self) -> tuple[Any, ...]:
        return _values(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # For copies: Python's own way would call `items`, which may be a field.
        return type(self), (dict(mapping_fields(self)),)


class LookupRecord(MappingRecord):
    """Any other class of mapping: None is a value, and `values` stays a method beside a key."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        dict.__init__(self, fields)
        self.__dict__["_names"] = ()


def mapping_fields(record: MappingRecord) -> list[tuple[str, Any]]:
    """All fields, also those that are None and therefore not keys."""
    names = dict.fromkeys((*record.__dict__["_names"], *record))
    return [(name, dict.get(record, name)) for name in names]


def _values(record: MappingRecord) -> tuple[Any, ...]:
    return tuple(dict.values(record))


def is_dunder(name: str) -> bool:
    return name[:2] == "__" == name[-2:]


class ObjectRecord:
    """A dataclass instance: attributes only."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.__dict__.update(fields)

    def __repr__(self) -> str:
        return f"ObjectRecord({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


def make_record(kind: str, fields: Mapping[str, Any]) -> Any:
    if kind == "tuple":
        return TupleRecord.make(fields)
    if kind == "object":
        return ObjectRecord(fields)
    return MappingRecord(fields) if kind == "mapping" else LookupRecord(fields)


# Helpers that walk nested outputs (a loss over every tensor, a move to another device) use torch's
# registry of containers; without an entry they would take a record for a single leaf.
_pytree.register_pytree_node(
    TupleRecord,
    lambda record: (list(record), record._fields),
    lambda values, names: TupleRecord.make(dict(zip(names, values, strict=True))),
)
_pytree.register_pytree_node(
    MappingRecord,
    lambda record: (list(_values(record)), (tuple(record), record.__dict__["_names"])),
    lambda values, names: MappingRecord(
        dict.fromkeys(names[1]) | dict(zip(names[0], values, strict=True))
    ),
)
_pytree.register_pytree_node(
    LookupRecord,
    lambda record: (list(_values(record)), tuple(record)),
    lambda values, names: LookupRecord(dict(zip(names, values, strict=True))),
)
_pytree.register_pytree_node(
    ObjectRecord,
    lambda record: (list(vars(record).values()), tuple(vars(record))),
    lambda values, names: ObjectRecord(dict(zip(names, values, strict=True))),
)
