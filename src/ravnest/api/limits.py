"""Types with limits, shared by all structures: names, hashes, paths, sizes.

A value that does not fit is refused while it is decoded, with the path to it in the message.
"""

import itertools
import re
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[\w][\w .:+/@()-]*$(?!\n)")]
"""Of a job, a machine, a person: printable, one line."""
Identifier = Annotated[
    str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$(?!\n)")
]
"""Made by the server: of a job, an assignment, a call."""
Word = Annotated[
    str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$(?!\n)")
]
"""What something is called in Python or in a registry."""
_STEERING = r"\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
Label = Annotated[str, Meta(max_length=200, pattern=rf"^[^\x00-\x1f{_STEERING}]*$(?!\n)")]
"""What a machine calls its parts: one line that a terminal can show."""
MOST_TEXT = 4000
Text = Annotated[str, Meta(max_length=MOST_TEXT)]
"""Said by somebody to somebody; never interpreted, and cleaned (`plain`) before it is shown."""
MOST_PROVIDERS = 1 << 20
"""Of a pool, which servers and their clients read about."""
MOST_WARNINGS = 100
Warnings = Annotated[tuple[Text, ...], Meta(max_length=MOST_WARNINGS)]
MOST_REPORT = 16 << 20
Report = Annotated[str, Meta(max_length=MOST_REPORT)]
"""Some lines about each provider."""
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
FilePath = Annotated[
    str,
    Meta(
        max_length=240,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,4}$(?!\n)",
    ),
]
"""Relative, with no step upwards and nothing hidden: every part begins with a letter or digit."""
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]
Positive = Annotated[int, Meta(ge=1, le=1 << 40)]
ProviderId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Figure = Annotated[float, Meta(ge=0.0, le=1e12)]
"""A measured quantity: never negative, never infinite, never NaN."""
Seconds = Annotated[float, Meta(ge=0.0, le=1e11)]
"""A duration, or a moment as seconds since 1970."""
Address = Annotated[
    str,
    Meta(
        max_length=260,
        pattern=r"^([\w.-]{1,240}|\[[0-9a-fA-F:.%\w]{2,100}\]):"
        r"(0|[1-9][0-9]{0,3}|[1-5][0-9]{4}|6([0-4][0-9]{3}|5([0-4][0-9]{2}|5([0-2][0-9]|3[0-5]))))"
        r"$(?!\n)",
    ),
]
"""Host and port, which is not larger than there are."""
Series = Annotated[str, Meta(max_length=80, pattern=r"^[\w/.@ -]+$(?!\n)")]
"""What a curve or a figure is called, like train/loss."""
Scalar = bool | int | float | Text | None
Parameters = Annotated[
    dict[Word, Scalar | Annotated[list[Scalar], Meta(max_length=1 << 20)]], Meta(max_length=64)
]
"""Arguments of something in a registry; the longest list has a number for each class."""

NOT_UNDERSTOOD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All that decoding what others have written may end with: no JSON or not of that kind, no text,
brackets without end."""


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data made by others. A field nobody knows is refused: without it, the rest may mislead."""


def short(texts: Iterable[str]) -> tuple[str, ...]:
    """As many `Warnings` of that length as a reader takes."""
    return tuple(text[:MOST_TEXT] for text in itertools.islice(texts, MOST_WARNINGS))


class Reasoned(Strict, frozen=True, kw_only=True):
    """Says why, perhaps in words of others, and as much of that as a reader of it takes: limits
    are looked at where a message is decoded, and there one that is too long breaks the line."""

    reason: Text = ""

    def __post_init__(self) -> None:
        if len(self.reason) > MOST_TEXT:
            msgspec.structs.force_setattr(self, "reason", self.reason[:MOST_TEXT])


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Data made by the server for people and programs that look at it; it may grow."""


class FileRef(Strict, frozen=True, kw_only=True, gc=False):
    """A file by content: what it is to be called, and what must be in it.

    Jobs have hundreds of thousands; none can be part of a cycle, so none is looked at for that.
    """

    path: FilePath
    sha256: Sha256
    size: Bytes


_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f{_STEERING}]")


def plain(text: str) -> str:
    """Without what would steer a terminal or turn the direction of writing; lines stay lines."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def plain_entry(text: str) -> str:
    """`plain`, as one entry of a terminal or a log: its further lines are indented, and so none of
    them passes for an entry of its own."""
    return plain(text).replace("\n", "\n    ")


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)
