"""How the providers of a launch ended, and which of them was the cause.

When one provider fails, the others of its cluster fail because of it, and often end before it does.
What they say last tells them apart: a `PeerError` is the fault of somebody else.
"""

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt)(?::|$)")
_ELSEWHERE = re.compile(r"\bPeerError:")


@dataclass(frozen=True)
class Ending:
    """Of one provider."""

    name: str
    code: int
    last_line: str = ""
    """The last one that it printed."""
    was_stopped: bool = False
    """By the launcher, not having ended soon after another."""

    @property
    def follows_another(self) -> bool:
        return self.was_stopped or _ELSEWHERE.search(self.last_line) is not None

    def __str__(self) -> str:
        if self.was_stopped:
            return f"{self.name} was stopped, not having ended"
        if self.code < 0:
            return f"{self.name} was killed by {_signal_name(-self.code)}"
        return f"{self.name} ended with exit code {self.code}"


@dataclass(frozen=True)
class Outcome:
    """The endings of all providers, in the order in which they ended."""

    endings: Sequence[Ending]

    @property
    def codes(self) -> Mapping[str, int]:
        return {ending.name: ending.code for ending in self.endings}

    @property
    def failures(self) -> list[Ending]:
        return [ending for ending in self.endings if ending.code]

    @property
    def cause(self) -> Ending | None:
        """The failure that the others came of, as far as can be told from outside."""
        own = [ending for ending in self.failures if not ending.follows_another]
        killed = [ending for ending in own if ending.code < 0]
        return next(iter(killed or own or self.failures), None)

    def lines(self) -> Iterator[str]:
        """What a person wants to know of the failures: the cause first, then who went with it."""
        cause = self.cause
        if cause is None:
            return
        # A traceback ends with the error; other last lines of a provider explain nothing.
        why = f": {cause.last_line}" if _ERROR.match(cause.last_line) else ""
        yield f"{cause}{why}"
        for ending in self.failures:
            if ending is not cause:
                yield f"{ending}{', after another had failed' if ending.follows_another else ''}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
