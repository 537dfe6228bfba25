"""Stand-ins for output objects whose classes are not known where the output is used.

Classes are code, and code never travels. A named tuple comes back as a tuple with the same field
names, a mapping-like output class as a dict with attribute and index access, any other object as
plain attributes; so what works on the original model's output works on these.
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
        record._fields = tuple(fields)
        return record

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("_fields", ())
        if name in fields:
            return self[fields.index(name)]
        raise AttributeError(f"no field {name!r}; there are: {', '.join(fields)}")

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))


class MappingRecord(dict[str, Any]):
    """A library's output class: keys, attributes and positions; what is None is not a key."""

    _names: tuple[str, ...]

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__({key: value for key, value in fields.items() if value is not None})
        self.__dict__["_names"] = tuple(fields)

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return super().__getitem__(name)
        if name in self.__dict__.get("_names", ()):
            return None
        raise AttributeError(f"no field {name!r}; there are: {', '.join(self)}")

    def fields(self) -> list[tuple[str, Any]]:
        """All fields, also those that are None."""
        return [(name, self.get(name)) for name in dict.fromkeys((*self._names, *self))]

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())


class ObjectRecord:
    """A dataclass instance: attributes only."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.__dict__.update(fields)

    def __repr__(self) -> str:
        return f"ObjectRecord({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


def make_record(kind: str, fields: Mapping[str, Any]) -> Any:
    if kind == "tuple":
        return TupleRecord.make(fields)
    return MappingRecord(fields) if kind == "mapping" else ObjectRecord(fields)


# Helpers that walk nested outputs (a loss over every tensor, a move to another device) use torch's
# registry of containers; without an entry they would take a record for a single leaf.
_pytree.register_pytree_node(
    TupleRecord,
    lambda record: (list(record), record._fields),
    lambda values, names: TupleRecord.make(dict(zip(names, values, strict=True))),
)
_pytree.register_pytree_node(
    MappingRecord,
    lambda record: (list(record.values()), (tuple(record), record._names)),
    lambda values, names: MappingRecord(
        dict.fromkeys(names[1]) | dict(zip(names[0], values, strict=True))
    ),
)
_pytree.register_pytree_node(
    ObjectRecord,
    lambda record: (list(vars(record).values()), tuple(vars(record))),
    lambda values, names: ObjectRecord(dict(zip(names, values, strict=True))),
)
