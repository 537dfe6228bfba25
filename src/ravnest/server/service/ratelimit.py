"""Rate limits by caller: token buckets for requests and messages, a budget of memory for bodies
and answers, a least speed for uploads."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

from ravnest.server.service.problems import Refusal

MAX_BYTES = 256 << 20
MAX_BYTES_PER_CALLER = 64 << 20
"""Enough for the largest body there may be."""
_FREE_BYTES = 64 << 10
"""Of each body and each answer: a small request is served, however much others hold."""


@dataclass(frozen=True)
class Rate:
    per_s: float
    burst: float


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Buckets:
    """Token buckets of callers; those of callers that have not come for long are dropped."""

    def __init__(self, rates: Mapping[str, Rate], most: int = 20_000) -> None:
        self._rates = dict(rates)
        self._most = most
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()

    def take(self, kind: str, key: str, now: float, tokens: float = 1.0) -> bool:
        """Whether there are so many tokens left; if so they are taken."""
        bucket = self._filled(kind, key, now)
        if bucket.tokens < tokens:
            return False
        bucket.tokens -= tokens
        return True

    def take_some(self, kind: str, key: str, now: float, most: int) -> int:
        """As many as there are left, whole ones."""
        bucket = self._filled(kind, key, now)
        taken = min(most, int(bucket.tokens))
        bucket.tokens -= taken
        return taken

    def _filled(self, kind: str, key: str, now: float) -> _Bucket:
        rate = self._rates[kind]
        bucket = self._buckets.get((kind, key))
        if bucket is None:
            bucket = self._buckets[kind, key] = _Bucket(rate.burst, now)
            if len(self._buckets) > self._most:
                # The one that was used least recently is most probably full again.
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end((kind, key))
        grown = bucket.tokens + max(0.0, now - bucket.at) * rate.per_s
        bucket.tokens, bucket.at = min(rate.burst, grown), now
        return bucket


RATES = {
    "wrong": Rate(0.5, 20),
    "enrol": Rate(200, 2000),
    "call": Rate(100, 500),
    "stranger": Rate(200, 2000),
    "upload": Rate(200, 2000),
    "probe": Rate(0.5, 40),
    "submit": Rate(1, 20),
    "message": Rate(50, 400),
    "connect": Rate(1, 30),
    "relay": Rate(5, 500),
    "stream": Rate(1, 30),
}
"""Per caller and kind of call; tokens per second, and how many may be saved up. `wrong` are tokens
that are not accepted, or not for what was asked, counted by the address they come from."""


class MemoryBudget:
    """Bytes of bodies and answers that are in memory, by caller and in all."""

    def __init__(self) -> None:
        self._by_caller: Counter[str] = Counter()

    @property
    def in_use(self) -> int:
        return self._by_caller.total()

    def take(self, caller: str, size: int) -> None:
        if self._by_caller[caller] + size > MAX_BYTES_PER_CALLER:
            whose = "the requests of this caller"
        elif self.in_use + size > MAX_BYTES:
            whose = "all requests"
        else:
            self._by_caller[caller] += size
            return
        text = f"{whose} that are being answered hold much memory already; try again in a while"
        raise Refusal("limited", text)

    def give_back(self, caller: str, size: int) -> None:
        self._by_caller[caller] -= size
        if not self._by_caller[caller]:
            del self._by_caller[caller]


class Lease:
    """The part of a budget that one request has, from its body to the end of its answer."""

    def __init__(self, budget: MemoryBudget, caller: str) -> None:
        self._budget = budget
        self._caller = caller
        self._held = 0

    def resize(self, size: int) -> None:
        """To so many bytes; a `Refusal` if they are more than there is room for."""
        wanted = max(0, size - _FREE_BYTES)
        if wanted > self._held:
            self._budget.take(self._caller, wanted - self._held)
        elif wanted < self._held:
            self._budget.give_back(self._caller, self._held - wanted)
        self._held = wanted

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.resize(0)


@dataclass(frozen=True)
class UploadSpeed:
    """How slowly the body of a request may come. Only the time in which the sender is waited for
    counts; a slow disk of ours is not the sender's fault."""

    idle_s: float = 60.0
    """From one piece of a body to the next."""
    least_bytes_per_s: float = 4096.0
    """On average, of a body that takes longer than `free_s`."""
    free_s: float = 60.0

    async def enforce(
        self, body: AsyncIterator[bytes], clock: Callable[[], float] = time.monotonic
    ) -> AsyncIterator[bytes]:
        """The pieces of a body; a `Refusal` once it stands still or comes too slowly."""
        come, waited = 0, 0.0
        while True:
            began = clock()
            try:
                async with asyncio.timeout(self.idle_s):
                    piece = await anext(body, None)
            except TimeoutError:
                text = f"nothing has come for {self.idle_s:g} seconds, after {come} bytes"
                raise Refusal("late", text) from None
            if piece is None:
                return
            come += len(piece)
            waited += clock() - began
            if waited > self.free_s and come < waited * self.least_bytes_per_s:
                raise Refusal(
                    "late",
                    f"{come} bytes in {waited:.0f} seconds are too few; the server takes at least "
                    f"{self.least_bytes_per_s:g} in a second",
                )
            yield piece
