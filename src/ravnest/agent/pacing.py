"""No more than so many bytes a second, over all that share one bucket."""

import threading
import time
from collections.abc import Callable

_BURST_S = 0.25
"""What may go at once after a silence."""


class Bucket:
    """A token bucket. `take` never refuses: it says how long to wait before the next piece."""

    def __init__(self, mbps: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s = max(1.0, mbps * 1e6 / 8)
        self._clock = clock
        self._free_at = clock()
        # Downloads take from threads, tunnels from the event loop.
        self._lock = threading.Lock()

    def take(self, size: int) -> float:
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now - _BURST_S) + size / self._bytes_per_s
            return max(0.0, self._free_at - now)


def bucket_of(mbps: float | None) -> Bucket | None:
    return None if mbps is None else Bucket(mbps)
