"""Server-sent events: parsed, and taken up again when the line breaks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ravnest.client.http import BrokenOffError, HttpClient
from ravnest.client.transfers import delay_s
from ravnest.errors import ServerError

_MOST_EVENT_CHARACTERS = 64 << 20
_SILENCE_S = 60.0
"""A server says at least a comment more often than this."""


@dataclass(frozen=True)
class ServerEvent:
    event: str
    data: str


def parse_events(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """Events out of the lines of a stream; one that is cut off at the end is none."""
    name, data, size = "message", list[str](), 0
    for line in lines:
        if not line:
            if data:
                yield ServerEvent(name, "\n".join(data))
            name, data, size = "message", [], 0
            continue
        size += len(line)
        if size > _MOST_EVENT_CHARACTERS:
            raise ServerError("the server sends an event without end")
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)


def follow(
    client: HttpClient, path: str, *, attempts: int | None = None, **query: str | int
) -> Iterator[ServerEvent]:
    """Events of a stream, until the client is closed.

    After a break it connects again and again, and the server begins with the state as it is then.
    With `attempts`, so many failures in a row are an error; the first connection always is.
    """
    failures, begun = 0, False
    while not client.closed.is_set():
        try:
            with client.open("GET", path, query=query, timeout_s=_SILENCE_S) as answer:
                for event in parse_events(answer.iter_lines()):
                    failures, begun = 0, True
                    yield event
        except BrokenOffError:
            if not begun or failures + 1 == attempts:
                raise
        failures += 1
        if client.closed.wait(delay_s(failures - 1)):
            return
