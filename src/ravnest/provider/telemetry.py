"""What a provider is doing, for somebody who looks on: noted in passing, fetched at leisure.

    compute thread   ──► spans, waits ──►┐
    averager thread  ──► rounds ────────►│ bounded deques ──► drain, on any other thread
    counters that there are anyway ─────►┘

Whoever notes something appends to a deque and goes on; there is no lock on that side. If nobody
drains, the oldest notes are dropped and counted. What becomes of a sample is not known here.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import msgspec

_SPANS_KEPT = 1 << 14
_ROUNDS_KEPT = 1 << 10
_SHORT_S = 1e-4
"""Waits up to here are not worth a line."""

Awaited = Literal["input", "gradients", "permission", "clusters"]
"""What a stage cannot go on without: micro-batches from the stage before (on the first one: from
the script), gradients from the stage behind, leave to update, or the other clusters."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """The compute thread did this, from … to …, in seconds since 1970.

    `kind` is forward, backward, evaluate (of this part of this batch), update (`batch` is its
    number), average (a snapshot for a round, or what came of one), the name of an order (epoch,
    save, …), or wait/ and what was waited for. `batch` and `part` are -1 where there is none.
    """

    kind: str
    batch: int
    part: int
    start: float
    end: float


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """A round of averaging that has ended, as this provider saw it."""

    ring: int
    number: int
    began: float
    ended: float
    members: tuple[str, ...] = ()
    """Nodes that took part; unknown if it never began."""
    weights: tuple[float, ...] = ()
    outcome: Literal["applied", "given up", "skipped"]
    """Given up after it had begun, skipped before."""
    reason: str = ""
    sent_bytes: int = 0


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Since the stage began to work."""

    forwards: int = 0
    backwards: int = 0
    updates: int = 0
    batches: float = 0.0
    """Applied by updates."""
    staleness: int = 0
    """Sum over backwards of the updates that their weights lacked."""
    worst_staleness: int = 0
    busy_s: float = 0.0
    rounds: int = 0
    epochs: int = 0
    """Whose end this stage has been told of."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What can be read off a provider at any moment."""

    in_flight: int = 0
    """Micro-batches between their forward and their backward."""
    queued: int = 0
    """Micro-batches and orders that stand in line."""
    links: dict[str, tuple[int, int]] = {}
    """Bytes sent and received since the beginning, by the node at the other end."""
    totals: Totals = Totals()


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """All that was noted since the last one, and how the provider stands now."""

    at: float
    standing: Standing
    spans: tuple[Span, ...] = ()
    spans_dropped: int = 0
    """Since the last sample, because nobody has fetched them in time."""
    waits_for: Awaited | None = None
    waits_since: float | None = None
    rounds: tuple[Round, ...] = ()
    rounds_dropped: int = 0


class _Notes:
    """Numbered, so that it can be told how many are missing. One thread adds, another one takes."""

    def __init__(self, kept: int) -> None:
        self._items: deque[tuple[int, Any]] = deque(maxlen=kept)
        self._numbers = itertools.count()
        self._next = 0

    def add(self, item: Any) -> None:
        self._items.append((next(self._numbers), item))

    def take_all(self) -> tuple[list[Any], int]:
        """Those that are there, and how many were dropped before or between them."""
        found = []
        first = self._next
        for _ in range(len(self._items)):  # no more than are there now: others keep adding
            try:
                number, item = self._items.popleft()
            except IndexError:
                break
            found.append(item)
            self._next = number + 1
        return found, self._next - first - len(found)


class Telemetry:
    """Of one provider."""

    def __init__(
        self,
        *,
        spans_kept: int = _SPANS_KEPT,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._spans = _Notes(spans_kept)
        self._rounds = _Notes(_ROUNDS_KEPT)
        self.distrusted: set[int] = set()
        """Clusters that this provider has seen to spoil a round; only ever added to."""
        self._offset = wall() - clock()
        """Read once: times that were noted stay in order when somebody sets the machine's clock."""
        self._clock = clock
        self._waiting: tuple[Awaited, float] | None = None
        self._look: Callable[[], Standing] = Standing
        self._draining = threading.Lock()

    def watch(self, look: Callable[[], Standing]) -> None:
        """Where to read off how the provider stands, from any thread."""
        self._look = look

    # ---- the compute thread ----

    def did(self, kind: str, batch: int, part: int, start: float, end: float) -> None:
        if self._waiting is not None:
            self._waited(start)
        self._spans.add((kind, batch, part, start, end))

    def waits(self, what: Awaited, now: float) -> None:
        """There is nothing to do; may be said again and again."""
        if self._waiting is None or self._waiting[0] != what:
            if self._waiting is not None:
                self._waited(now)
            self._waiting = (what, now)

    def _waited(self, until: float) -> None:
        assert self._waiting is not None
        what, since = self._waiting
        self._waiting = None
        if until - since > _SHORT_S:
            self._spans.add((f"wait/{what}", -1, -1, since, until))

    # ---- the averager's thread ----

    def round_ended(self, ended: Round) -> None:
        """With times of this provider's clock."""
        self._rounds.add(ended)

    def caught(self, cluster: int) -> None:
        self.distrusted.add(cluster)

    # ---- any other thread ----

    def drain(self) -> Sample:
        """What was noted since the last time."""
        with self._draining:
            spans, spans_dropped = self._spans.take_all()
            rounds, rounds_dropped = self._rounds.take_all()
        waiting = self._waiting
        offset = self._offset
        return Sample(
            at=self._clock() + offset,
            standing=self._look(),
            spans=tuple(
                Span(k, b, p, start + offset, end + offset) for k, b, p, start, end in spans
            ),
            spans_dropped=spans_dropped,
            waits_for=None if waiting is None else waiting[0],
            waits_since=None if waiting is None else waiting[1] + offset,
            rounds=tuple(
                msgspec.structs.replace(one, began=one.began + offset, ended=one.ended + offset)
                for one in rounds
            ),
            rounds_dropped=rounds_dropped,
        )
