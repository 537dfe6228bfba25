"""How often, how much: token buckets by caller and kind, in bounded memory."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    per_s: float
    burst: float


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Buckets:
    """Whoever comes too often is told so; those who have not come for long are forgotten."""

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
