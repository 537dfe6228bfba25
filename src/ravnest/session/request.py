"""What a requester asks for, as one value: a model, data, how to train, settings.

`Session.submit` takes the same arguments; a file for `ravnest submit` returns this, or a dictionary
of the same names. Nothing is looked at here except the names: what the values are worth is found
out when the request is prepared.
"""

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ravnest.api.jobs import PlanningSpec, TrainingSpec
from ravnest.errors import JobError

S = TypeVar("S", bound=msgspec.Struct)
RENAMED = {"pipeline": "schedule"}
"""Settings that the server knows by another name: `schedule` is the learning rate's here."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """Everything about a job. See docs/server.md for what each argument takes."""

    model: Any
    data: Any
    example_args: Any = ()
    example_kwargs: Mapping[str, Any] | None = None
    validation: Any = None
    inputs: Any = None
    target: Any = None
    output: Any = ()
    """What of the model's output the loss is about: "logits", 0, ("heads", 1)."""
    loss: Any = "cross_entropy"
    optimizer: Any = "adamw"
    optimizer_params: Mapping[str, Any] = field(default_factory=dict)
    schedule: Any = None
    schedule_per: Literal["epoch", "update"] = "epoch"
    metrics: Sequence[Any] | None = None
    script: str | Path | None = None
    script_arguments: Sequence[str] = ()
    name: str | None = None
    start: Literal["asked", "at once"] = "at once"
    weights: str | Path | None = None
    pass_data: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`epochs`, `batch_size` and everything else of TrainingSpec and PlanningSpec."""

    @classmethod
    def of(cls, given: "Mapping[str, Any] | JobRequest", **overrides: Any) -> "JobRequest":
        """From names and values; `overrides` win. Names that nobody knows are refused."""
        if isinstance(given, JobRequest):
            given = {one.name: getattr(given, one.name) for one in dataclasses.fields(cls)}
        known = {one.name for one in dataclasses.fields(cls)} - {"settings"}
        values, settings = {}, {}
        for key, value in {**_flat(given), **_flat(overrides)}.items():
            if key in known:
                values[key] = value
            elif key in SETTINGS:
                settings[key] = value
            else:
                raise JobError(_unknown(str(key), known | set(SETTINGS)))
        for needed in ("model", "data"):
            if values.get(needed) is None:
                raise JobError(f"a job needs {needed}=…")
        return cls(**values, settings=settings)

    def training(self) -> TrainingSpec:
        return _spec(TrainingSpec, self.settings)

    def planning(self) -> PlanningSpec:
        return _spec(PlanningSpec, self.settings)


def _flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings among the other arguments, where people write them."""
    rest = {key: value for key, value in given.items() if key != "settings"}
    return {**(given.get("settings") or {}), **rest}


def _names(spec: type[msgspec.Struct]) -> dict[str, str]:
    """What a user calls each field → what the structure calls it."""
    own = {new: old for new, old in RENAMED.items() if old in spec.__struct_fields__}
    rest = set(spec.__struct_fields__) - set(own.values())
    return own | {name: name for name in sorted(rest)}


SETTINGS = tuple(sorted({**_names(TrainingSpec), **_names(PlanningSpec)}))


def _spec(spec: type[S], settings: Mapping[str, Any]) -> S:
    names = _names(spec)
    values = {names[key]: value for key, value in settings.items() if key in names}
    if values.get("micro_batches") == "auto":
        del values["micro_batches"]
    try:
        # Through the decoder: the limits hold for it alone, not for the constructor.
        return msgspec.convert(values, spec)
    except msgspec.ValidationError as error:
        own = {field: name for name, field in names.items()}
        raise JobError(_in_words(str(error), spec, own, values)) from None


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
    "null": "left out",
    ">=": "at least",
    "<=": "at most",
    ">": "more than",
    "<": "less than",
}
_AT = re.compile(r"(?P<what>.*) - at `\$\.(?P<field>\w+)`")
_LIMIT = re.compile(r"Expected `(?P<kind>[\w |]+)` (?P<sign>[<>]=?) (?P<limit>\S+)")
_KIND = re.compile(r"Expected `(?P<kinds>[\w |]+)`, got `\w+`")


def _in_words(
    error: str, spec: type[msgspec.Struct], own: Mapping[str, str], values: Mapping[str, Any]
) -> str:
    """What the decoder says of a setting, as whoever has written it would say it."""
    at = _AT.fullmatch(error)
    if at is None:
        return f"these settings cannot be: {error}"
    what, field = at["what"], at["field"]
    if limit := _LIMIT.fullmatch(what):
        wanted = f"{_WORDS[limit['sign']]} {float(limit['limit']):g}"
    elif kind := _KIND.fullmatch(what):
        wanted = " or ".join(_WORDS.get(one, one) for one in kind["kinds"].split(" | "))
    elif what.startswith("Invalid enum value"):
        allowed = typing.get_type_hints(spec)[field]
        wanted = " or ".join(repr(one) for one in _literals(allowed))
    else:
        return f"{own[field]} is {values[field]!r:.100}, which cannot be: {what}"
    return f"{own[field]} is {values[field]!r:.100}; it must be {wanted}"


def _literals(hint: Any) -> Iterator[Any]:
    for one in typing.get_args(hint):
        if typing.get_args(one):
            yield from _literals(one)
        elif one is not type(None):
            yield one


def _unknown(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    meant = f"; did you mean {close[0]}=…?" if close else f"; there are {', '.join(sorted(known))}"
    return f"a job has no argument {name!r}{meant}"
