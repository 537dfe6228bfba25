"""Reins for training: pause, resume, stop, from any thread, between two batches.

Whoever feeds batches asks before each one. How it waits while training is paused, and what is to be
done when it is stopped, is not known here.
"""

import threading
from collections.abc import Callable


class Control:
    """Of one cluster's training; held by whoever may interrupt it. Give it to the `Trainer`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_paused = False
        self._is_stopped = False
        self._held: list[Callable[[], None]] = []

    @property
    def is_paused(self) -> bool:
        return self._is_paused and not self._is_stopped

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def pause(self) -> None:
        """No further batches until `resume`; what is under way is finished."""
        with self._lock:
            self._is_paused = True

    def resume(self) -> None:
        with self._lock:
            self._is_paused = False
        self._let_go()

    def stop(self) -> None:
        """End training before the next batch, as if there were no more; paused or not. For good."""
        with self._lock:
            self._is_stopped = True
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            held, self._held = self._held, []
        for call in held:
            call()

    def when_not_paused(self, call: Callable[[], None]) -> None:
        """Do this once training may go on, or is to end; at once if it is not paused."""
        with self._lock:
            if self._is_paused and not self._is_stopped:
                self._held.append(call)
                return
        call()
