"""What a check has found: that all is well, something to know, or what is broken and the remedy."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from ravnest.errors import RavnestError

Verdict = Literal["ok", "note", "broken"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    check: str
    verdict: Verdict
    text: str
    remedy: str = ""
    """What to do about it; empty where nothing needs to be done."""


Check = Callable[[], Iterable[Finding]]


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, verdict="ok", text=text)


def note(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(check=check, verdict="note", text=text, remedy=remedy)


def broken(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(check=check, verdict="broken", text=text, remedy=remedy)


def examine(checks: dict[str, Check]) -> Iterator[Finding]:
    """One after another. A check that fails itself is a finding, and the others go on."""
    for name, check in checks.items():
        try:
            yield from check()
        except (RavnestError, OSError) as error:
            yield broken(name, str(error) or type(error).__name__)
