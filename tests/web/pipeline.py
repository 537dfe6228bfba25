"""Spans of a made-up pipeline: stages that pass micro-batches on and back, as fast as they can."""

import heapq

Span = tuple[str, int, int, float, float]
PARTS = 4
LINK_S = 0.012


class Pipeline:
    """One cluster. `speeds` is relative to a stage that takes 24 ms for a forward pass."""

    def __init__(self, speeds: list[float], began: float) -> None:
        self.durations = [0.024 * speed for speed in speeds]
        self.spans: list[list[Span]] = [[] for _ in speeds]
        self._free = [began] * len(speeds)
        self._tasks: list[tuple[float, int, int, int]] = []
        # (ready at, backward?, micro-batch, stage): the earliest first, whoever gets to it.
        self._next = 0
        for _ in range(len(speeds) + 1):
            self._feed(began)

    def run_until(self, now: float) -> None:
        while self._tasks and self._tasks[0][0] < now:
            ready, backward, micro, stage = heapq.heappop(self._tasks)
            self._work(ready, bool(backward), micro, stage)
        for rows in self.spans:
            del rows[: sum(span[4] < now - 40 for span in rows)]

    def pause_for_averaging(self, at: float, seconds: float) -> None:
        for stage, free in enumerate(self._free):
            start = max(at, free)
            self.spans[stage].append(("average", -1, 0, start, start + seconds))
            self._free[stage] = start + seconds

    def busy(self, stage: int, now: float, seconds: float) -> float:
        begin = now - seconds
        total = sum(
            min(end, now) - max(start, begin)
            for _, _, _, start, end in self.spans[stage]
            if end > begin and start < now
        )
        return max(0.0, min(1.0, total / seconds))

    def _feed(self, at: float) -> None:
        heapq.heappush(self._tasks, (at, 0, self._next, 0))
        self._next += 1

    def _work(self, ready: float, backward: bool, micro: int, stage: int) -> None:
        batch, part = divmod(micro, PARTS)
        seconds = self.durations[stage] * (1.9 if backward else 1.0)
        start = max(ready, self._free[stage])
        end = start + seconds
        kind = "backward" if backward else "forward"
        self.spans[stage].append((kind, batch, part, start, end))
        if backward and part == PARTS - 1:
            self.spans[stage].append(("update", batch, 0, end, end + 0.006))
            end += 0.006
        self._free[stage] = end
        last = stage == len(self.durations) - 1
        if not backward and not last:
            heapq.heappush(self._tasks, (end + LINK_S, 0, micro, stage + 1))
        elif not backward:
            heapq.heappush(self._tasks, (end, 1, micro, stage))
        elif stage > 0:
            heapq.heappush(self._tasks, (end + LINK_S, 1, micro, stage - 1))
        else:
            self._feed(end)
