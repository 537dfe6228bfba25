"""Speed and delay of the line between this machine and the server, measured with its own bytes."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ravnest.agent.pacing import Bucket
from ravnest.client.answers import AnswerError
from ravnest.client.http import HttpClient
from ravnest.errors import ServerError

_PINGS = 5
_SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, 8 << 20)
_LONG_ENOUGH_S = 0.5
"""A transfer that takes so long has left the slow beginning of a connection behind."""
_MOST_S = 3.0
_LONGEST_S = 120.0
"""For one transfer: nobody can be told to give it up."""
_STABLE = 0.15
"""Two transfers in a row that differ by less than this agree."""
_PIECE = os.urandom(64 << 10)
"""Not compressible, in case somebody on the way tries."""


@dataclass(frozen=True)
class LinkFigures:
    up_mbps: float
    down_mbps: float
    latency_ms: float


def measure_link(
    client: HttpClient,
    *,
    up: Bucket | None = None,
    down: Bucket | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> LinkFigures:
    """Takes a few seconds at most. A direction the server does not let us measure further has the
    figure that was found so far. What the owner does not allow is not measured."""
    # A byte each, without the bucket: what else the agent receives is no delay of the line.
    latency_s = min(_timed(clock, lambda: _down(client, 1, None)) for _ in range(_PINGS))

    def speed(
        transfer: Callable[[HttpClient, int, Bucket | None], None], bucket: Bucket | None
    ) -> float:
        return settled_mbps(
            lambda size: _timed(clock, lambda: transfer(client, size, bucket)), latency_s=latency_s
        )

    found = speed(_down, down)
    return LinkFigures(speed(_up, up), found, latency_s * 1e3)


def settled_mbps(seconds_for: Callable[[int], float], *, latency_s: float = 0.0) -> float:
    """Larger and larger transfers, until two agree, one is long, or it has taken long enough."""
    found, spent = 0.0, 0.0
    for size in _SIZES:
        try:
            taken = seconds_for(size)
        except AnswerError as error:
            if error.status == 429 and found:
                break
            raise
        spent += taken
        # The way to the server and back is no part of the line's speed.
        previous, found = found, size * 8 / 1e6 / max(taken - latency_s, taken / 4, 1e-6)
        agree = previous > 0 and abs(found - previous) <= _STABLE * previous and size >= 1 << 20
        if agree or taken >= _LONG_ENOUGH_S or spent >= _MOST_S:
            break
    return found


def _timed(clock: Callable[[], float], act: Callable[[], None]) -> float:
    began = clock()
    act()
    return clock() - began


def _down(client: HttpClient, size: int, bucket: Bucket | None) -> None:
    ends_at = time.monotonic() + _LONGEST_S
    with client.open("GET", "/probe/down", query={"bytes": size}) as answer:
        for piece in answer.iter_raw():
            size -= len(piece)
            if size < 0 or time.monotonic() > ends_at:
                raise ServerError("/probe/down does not end where it should")
            if bucket is not None:
                client.closed.wait(bucket.take(len(piece)))


def _up(client: HttpClient, size: int, bucket: Bucket | None) -> None:
    def pieces() -> Iterator[bytes]:
        left = size
        while left > 0:
            if bucket is not None:
                client.closed.wait(bucket.take(min(left, len(_PIECE))))
            yield _PIECE[:left]
            left -= len(_PIECE)

    headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
    with client.open("POST", "/probe/up", content=pieces(), headers=headers):
        pass
