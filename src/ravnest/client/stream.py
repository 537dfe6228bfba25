"""Server-sent events: parsed, and taken up again when the line breaks."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ravnest.client.http import BrokenOffError, HttpClient
from ravnest.client.transfers import delay_s
from ravnest.errors import ServerError

_MOST_EVENT_BYTES = 64 << 20
_ENDLESS = "the server sends an event without end"
_SILENCE_S = 60.0
"""A server says at least a comment more often than this."""
_BETWEEN_COMMENTS_S = 20.0
_LEAST_S = 1.0
"""How things are now can be asked for even if there is no time to wait."""


@dataclass(frozen=True)
class ServerEvent:
    event: str
    data: str


TIME_HAS_PASSED = ServerEvent("", "")


def parse_events(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """Events out of the lines of a stream; one that is cut off at the end is none.

    A comment says that time has passed, and is an event without a name."""
    name, data, size = "message", list[str](), 0
    for line in lines:
        if line.startswith(":"):
            yield TIME_HAS_PASSED
            continue
        if not line:
            if data:
                yield ServerEvent(name, "\n".join(data))
            name, data, size = "message", [], 0
            continue
        size += len(line)
        if size > _MOST_EVENT_BYTES:
            raise ServerError(_ENDLESS)
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)


def lines_of(pieces: Iterable[bytes]) -> Iterator[str]:
    """The lines of a stream, as they end. (`iter_lines` of httpx keeps a line without end, and ends
    one at every character that Unicode has for that, also in the middle of a text.)"""
    waiting, size = list[bytes](), 0
    for piece in pieces:
        first, *others = piece.split(b"\n")
        waiting.append(first)
        size += len(first)
        if size > _MOST_EVENT_BYTES:
            raise ServerError(_ENDLESS)
        for line in others:
            yield b"".join(waiting).removesuffix(b"\r").decode("utf-8", errors="replace")
            waiting, size = [line], len(line)


def follow(
    client: HttpClient,
    path: str,
    *,
    attempts: int | None = None,
    for_s: float = math.inf,
    **query: str | int,
) -> Iterator[ServerEvent]:
    """Events of a stream, until the client is closed or the time is over.

    After a break it connects again and again, and the server begins with the state as it is then.
    With `attempts`, so many failures in a row are an error; the first connection always is.
    """
    failures, begun = 0, False
    ends_at, left = time.monotonic() + for_s, for_s
    while not client.closed.is_set() and (left > 0 or not begun):
        silence_s = min(_SILENCE_S, max(left, _LEAST_S))
        try:
            with client.open("GET", path, query=query, timeout_s=silence_s) as answer:
                for event in parse_events(lines_of(answer.iter_bytes())):
                    failures, begun = 0, True
                    yield event
                    left = ends_at - time.monotonic()
                    if left <= 0:
                        return
                    if left < _BETWEEN_COMMENTS_S < silence_s:
                        break  # nothing may be said before the time is over: listen for as long
                else:
                    failures += 1
        except BrokenOffError:
            left = ends_at - time.monotonic()
            if begun and left <= 0:
                return
            if not begun or failures + 1 == attempts:
                raise
            failures += 1
        if failures and client.closed.wait(min(delay_s(failures - 1), max(left, 0.0))):
            return
        left = ends_at - time.monotonic()
