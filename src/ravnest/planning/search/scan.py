"""One more provider in a cluster: the price for every kind in the pool at once.

The search mostly asks "who would do better here?". Asked for one candidate at a time, nearly all
answers are no and each costs a table. But with the pipeline in front of and behind the open place
fixed, all candidates differ in three numbers only (speed, bandwidth, memory), so a single
array operation prices the whole pool.

At the two ends of the pipeline one border of the stage is given and the answer is exact. In
between, both borders are free; the scan then considers only the most promising stages, so that it
may underrate a candidate, never overrate one.

Knows nothing about who is free to move: see `improve`.
"""

from typing import Any

import numpy as np

from ravnest.planning.costing.costs import Floats
from ravnest.planning.search.partition import SLOWEST, Singles, StageTables
from ravnest.planning.search.pricing import Order, Prices

STAGES_TRIED = 64
"""Stages considered at an inner place of the pipeline."""

UNFIT = np.float32(1e25)
LARGEST = np.float32(1e20)
"""Seconds charged for a stage that does not fit, and the most that a real one can take."""

KEPT_BYTES = 64_000_000
"""Memory for answers kept between calls."""


class Scanner:
    """Prices of joining a cluster. `scanned` counts the places priced so far."""

    def __init__(self, tables: StageTables, prices: Prices) -> None:
        kinds = prices.kinds
        self.scanned = 0
        self._tables = tables
        self._prices = prices
        self._slowness = np.array([1 / max(k.gflops, SLOWEST) for k in kinds], dtype=np.float32)
        self._per_byte = np.array([1 / max(k.bytes_per_s, SLOWEST) for k in kinds], np.float32)
        memory = np.array([k.memory_bytes for k in kinds], dtype=np.float64)
        self._sizes, rank = np.unique(memory, return_inverse=True)
        self._room = rank.astype(np.float32) * UNFIT
        starts, stops = np.nonzero(np.isfinite(tables.unit_s))
        self._starts, self._stops = starts, stops
        self._unit_s = tables.unit_s[starts, stops]
        self._again_s = tables.again_s[starts, stops]
        self._link = tables.link_bytes[starts, stops]
        self._fixed: dict[int, tuple[Singles, Singles]] = {}
        self._firsts: dict[int, Singles] = {}
        self._lasts: dict[int, Singles] = {}
        self._needs: dict[int, tuple[Singles, Singles | None]] = {}
        self._work = np.empty((3, max(STAGES_TRIED, len(tables.unit_s)), len(kinds)), np.float32)
        self._kept: dict[tuple[Order, int], Singles] = {}
        self._keep = max(64, KEPT_BYTES // (4 * len(kinds)))

    def joined(self, order: Order, place: int) -> Singles:
        """[kind]: batches per second of `order` with one more provider at this place."""
        key = order, place
        rates = self._kept.get(key)
        if rates is None:
            if len(self._kept) >= self._keep:
                self._kept.clear()
            rates = self._kept[key] = self._join(order, place)
        return rates

    def _join(self, order: Order, place: int) -> Singles:
        self.scanned += 1
        stages = len(order) + 1
        if stages == 1:
            steps = self._first(1)[-1]
        elif place == 0:
            steps = np.maximum(self._first(stages), self._prices.tail(order, stages)[:, None])
            steps = steps.min(axis=0)
        elif place == len(order):
            head = self._prices.head(order, stages)
            steps = np.maximum(self._last(stages), head[:, None]).min(axis=0)
        else:
            head = self._prices.head(order[:place], stages)
            tail = self._prices.tail(order[place:], stages)
            steps = self._between(head, tail, stages - place, stages)
        rates: Singles = 1 / np.maximum(steps, np.float32(SLOWEST))
        rates[steps >= LARGEST] = 0
        return rates

    def _overheads(self, stages: int) -> tuple[Singles, Singles]:
        """For every possible stage, what its micro-batches cost however small they are, and how
        long it takes on a usual provider."""
        parts = self._tables.training.division.parts(stages)
        if parts not in self._fixed:
            fixed_s = self._tables.fixed_s(stages)[self._starts, self._stops]
            computing_s = self._unit_s * np.median(self._slowness) + fixed_s
            usual_s = np.maximum(computing_s, self._link * np.median(self._per_byte))
            self._fixed[parts] = fixed_s, usual_s
        return self._fixed[parts]

    def _between(self, head: Singles, tail: Singles, distance: int, stages: int) -> Singles:
        given = np.maximum(head[self._starts], tail[self._stops])
        fixed_s, usual_s = self._overheads(stages)
        tried = np.flatnonzero(given < LARGEST)
        if len(tried) > STAGES_TRIED:
            usual = np.maximum(given, usual_s)[tried]
            tried = tried[np.argpartition(usual, STAGES_TRIED)[:STAGES_TRIED]]
        if len(tried) == 0:
            return np.full(len(self._room), np.inf, dtype=np.float32)
        if distance not in self._needs:
            self._needs[distance] = self._ranks((self._starts, self._stops), distance)
        kept, again = self._needs[distance]
        steps = self._seconds(
            self._unit_s[tried],
            fixed_s[tried],
            self._link[tried],
            kept[tried],
            None if again is None else (self._again_s[tried], again[tried]),
        )
        np.maximum(steps, given[tried][:, None], out=steps)
        fastest: Singles = steps.min(axis=0)
        return fastest

    def _rank(self, memory: Floats) -> Singles:
        """How many of the pool's memory sizes are too small, in units of UNFIT."""
        return np.searchsorted(self._sizes, memory, side="left").astype(np.float32) * UNFIT

    def _ranks(self, where: Any, distance: int) -> tuple[Singles, Singles | None]:
        """What stages need if they keep their activations, and if they compute them again; None
        where nobody would gain from that."""
        kept = self._rank(self._tables.memory(distance)[where])
        if distance == 1 or not kept.max(initial=0) > 0:
            return kept, None
        return kept, self._rank(self._tables.memory_again(distance)[where])

    def _seconds(
        self,
        unit_s: Singles,
        fixed_s: Singles,
        link: Singles,
        needs: Singles,
        again: tuple[Singles, Singles] | None,
    ) -> Singles:
        """[stage, kind]: seconds per batch, UNFIT or more where the stage does not fit.

        `again`: seconds of a second forward, and what is needed then.
        """
        seconds: Singles = self._work[0, : len(unit_s)]
        other = self._work[1, : len(unit_s)]
        np.multiply(unit_s[:, None], self._slowness, out=seconds)
        np.add(seconds, fixed_s[:, None], out=seconds)
        np.subtract(needs[:, None], self._room, out=other)
        np.maximum(seconds, other, out=seconds)
        if again is not None:
            twice = self._work[2, : len(unit_s)]
            np.multiply((unit_s + again[0])[:, None], self._slowness, out=twice)
            np.add(twice, fixed_s[:, None], out=twice)
            np.subtract(again[1][:, None], self._room, out=other)
            np.maximum(twice, other, out=twice)
            np.minimum(seconds, twice, out=seconds)
        np.multiply(link[:, None], self._per_byte, out=other)
        np.maximum(seconds, other, out=seconds)
        return seconds

    def _first(self, stages: int) -> Singles:
        """[q, kind]: seconds of the first of `stages` stages if it stops at q."""
        if stages not in self._firsts:
            tables = self._tables
            kept, again = self._ranks(0, stages)
            seconds = self._seconds(
                tables.unit_s[0],
                tables.fixed_s(stages)[0],
                tables.link_bytes[0],
                kept,
                None if again is None else (tables.again_s[0], again),
            )
            self._firsts[stages] = seconds.copy()
        return self._firsts[stages]

    def _last(self, stages: int) -> Singles:
        """[p, kind]: seconds of the last of `stages` stages if it starts at p."""
        parts = self._tables.training.division.parts(stages)
        if parts not in self._lasts:
            tables = self._tables
            needs, _ = self._ranks((slice(None), -1), 1)
            fixed_s = tables.fixed_s(stages)[:, -1]
            seconds = self._seconds(
                tables.unit_s[:, -1], fixed_s, tables.link_bytes[:, -1], needs, None
            )
            self._lasts[parts] = seconds.copy()
        return self._lasts[parts]
