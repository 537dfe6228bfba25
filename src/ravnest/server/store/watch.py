"""Looks at the clock for threads that wait for an answer on a socket, which may never come.

A server that hangs keeps no limit that it was given; only its client can end the waiting. Nothing
is started and nobody is woken for what is answered in time.
"""

import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Iterator

logger = logging.getLogger("ravnest.server")


class Watch:
    """Of one thread at a time that waits; `who` is it that does not answer."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._changed = threading.Condition()
        self._line: socket.socket | None = None
        self._due = self._wakes_at = self._most_s = math.inf
        self._closed = False
        threading.Thread(target=self._look, name="store-watch", daemon=True).start()

    @contextlib.contextmanager
    def within(self, seconds: float, line: socket.socket) -> Iterator[None]:
        """What is done here ends by then: with an answer, or because the line is cut."""
        with self._changed:
            self._line, self._due = line, time.monotonic() + min(seconds, self._most_s)
            self._look_by_then()
        try:
            yield
        finally:
            with self._changed:
                self._line, self._due = None, math.inf

    def hurry(self, seconds: float) -> None:
        """From now on nothing may take longer than this."""
        with self._changed:
            self._most_s = seconds
            if self._line is not None:
                self._due = min(self._due, time.monotonic() + seconds)
                self._look_by_then()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _look_by_then(self) -> None:
        if self._due < self._wakes_at:
            self._changed.notify()

    def _look(self) -> None:
        with self._changed:
            while not self._closed:
                left_s = self._due - time.monotonic()
                if self._line is not None and left_s <= 0:
                    with contextlib.suppress(OSError):  # it has just broken
                        self._line.shutdown(socket.SHUT_RDWR)
                    logger.warning("%s does not answer; the connection is given up", self._who)
                    self._line, self._due, left_s = None, math.inf, math.inf
                self._wakes_at = self._due
                self._changed.wait(None if self._line is None else left_s)
