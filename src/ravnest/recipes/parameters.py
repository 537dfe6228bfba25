"""Arguments of things in a registry: what they are called, what they may be, what they are not.

A registry knows names, parameters and what to say about a wrong one. What the things do is known
to the modules that fill the registries.
"""

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from ravnest.api.jobs import Named
from ravnest.errors import JobError

Kind = Literal["number", "integer", "flag", "text", "numbers", "integers"]
Values = dict[str, Any]
"""Complete: every parameter has a value, the default if none was given."""

_CALLED: dict[Kind, str] = {
    "number": "a number",
    "integer": "a whole number",
    "flag": "true or false",
    "text": "a name",
    "numbers": "a list of numbers",
    "integers": "a list of whole numbers",
}


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()


@dataclass(frozen=True)
class Param:
    """One argument. None is accepted where it is the default."""

    kind: Kind
    default: Any = REQUIRED
    says: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    """It must be larger than this; equal is not enough."""
    length: int | None = None
    """Of a list."""
    most: int | None = None
    """Of a list whose length is not known."""
    choices: tuple[str, ...] = ()

    def accept(self, value: Any) -> Any:
        """The value as the builders take it; `ValueError` that says what was expected."""
        if value is None and self.default is None:
            return None
        if self.kind in ("numbers", "integers"):
            return self._accept_list(value)
        return self._accept_one(value)

    def _accept_list(self, value: Any) -> tuple[Any, ...]:
        items = value if isinstance(value, list | tuple) else [value]
        if self.length is not None and len(items) != self.length:
            raise ValueError(self.expected)
        if self.most is not None and len(items) > self.most:
            raise ValueError(f"{self.expected}, at most {self.most} of them")
        return tuple(self._accept_one(item) for item in items)

    def _accept_one(self, value: Any) -> Any:
        match self.kind:
            case "flag" if isinstance(value, bool):
                return value
            case "text" if isinstance(value, str) and (not self.choices or value in self.choices):
                return value
            case "integer" | "integers" if (
                type(value) is int and abs(value) < 2**63 and self._in_range(value)
            ):
                return value
            case "number" | "numbers" if type(value) in (int, float) and self._in_range(value):
                return float(value)
        raise ValueError(self.expected)

    def _in_range(self, value: float) -> bool:
        return (
            abs(value) <= sys.float_info.max  # a whole number may be more
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
        )

    @property
    def expected(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        words = _CALLED[self.kind]
        if self.length is not None:
            words = words.replace("a list of", f"a list of {self.length}")
        if self.above is not None:
            words += f" above {self.above:g}"
        if self.low is not None:
            words += f" from {self.low:g}"
        if self.high is not None:
            words += f" up to {self.high:g}"
        return words


@dataclass(frozen=True)
class Entry:
    """Something that has a name in a registry."""

    says: str
    """For people, in one sentence."""
    params: Mapping[str, Param] = field(default_factory=dict)
    check: Callable[[Values], str | None] | None = None
    """What is wrong with parameters that do not go together; None if nothing is."""


E = TypeVar("E", bound=Entry)


class Registry(Generic[E]):
    """Things of one kind by name."""

    def __init__(self, kind: str, entries: Mapping[str, E]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __getitem__(self, name: str) -> E:
        """`JobError` with the name that was probably meant, if there is none of this."""
        if name not in self._entries:
            raise JobError(f"there is no {self.kind} {name!r}{probably(name, self._entries)}")
        return self._entries[name]

    def values(self, named: Named, where: str = "") -> Values:
        """All parameters of what is named, checked; the error says `where` it stands."""
        try:
            return self._values(named)
        except JobError as error:
            raise JobError(f"{where}: {error}" if where else str(error)) from None

    def _values(self, named: Named) -> Values:
        entry = self[named.name]
        whose = f"{self.kind} {named.name!r}"
        if unknown := [name for name in named.params if name not in entry.params]:
            raise JobError(
                f"the {whose} has no parameter {unknown[0]!r}{probably(unknown[0], entry.params)}"
            )
        found: Values = {}
        for name, param in entry.params.items():
            value = named.params.get(name, param.default)
            if value is REQUIRED:
                raise JobError(f"the {whose} needs the parameter {name!r}: {param.expected}")
            try:
                found[name] = param.accept(value)
            except ValueError as error:
                raise JobError(
                    f"the parameter {name!r} of the {whose} is {value!r:.100}; expected {error}"
                ) from None
        if entry.check is not None and (complaint := entry.check(found)):
            raise JobError(f"the {whose}: {complaint}")
        return found


def probably(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that nobody knows."""
    names = sorted(known)
    # Without regard to the case and spelling of words: CrossEntropyLoss, cross-entropy.
    plain = {_plain(each): each for each in names}
    close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.6)
    other = _OTHER_WORDS.get(_plain(name))
    meant = other if other in names else plain[close[0]] if close else None
    if not names:
        return "; it takes none"
    listed = ", ".join(names)
    return (
        f"; did you mean {meant!r}? The names are {listed}"
        if meant
        else f"; the names are {listed}"
    )


_OTHER_WORDS = {"learningrate": "lr", "rate": "lr", "l2": "weight_decay"}
"""What people say, and no spelling of the name resembles."""


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").removesuffix("loss")
