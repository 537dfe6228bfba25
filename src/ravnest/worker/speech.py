"""What a worker says to the agent that has started it: lines of JSON on what was its stdout.

Nothing else may get there: whatever a library prints goes to stderr and so into the log.
"""

import contextlib
import os
import sys
import threading
from typing import BinaryIO

import msgspec

from ravnest.api.work import MOST_LINE_BYTES, End, Line


class Speech:
    """From any thread, one line at a time; after the end nothing is said any more."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._ended = False

    @classmethod
    def instead_of_stdout(cls) -> "Speech":
        """Take stdout for this; what is printed goes to stderr from now on."""
        sys.stdout.flush()
        own = os.dup(1)
        os.set_inheritable(own, False)
        os.dup2(2, 1)
        return cls(os.fdopen(own, "wb", buffering=0))

    def say(self, line: Line) -> None:
        content = msgspec.json.encode(line) + b"\n"
        if len(content) > MOST_LINE_BYTES:
            return  # only a report can be so long, and the next one is shorter
        with self._lock:
            if self._ended:
                return
            self._ended = isinstance(line, End)
            # An agent that is gone hears nothing; that it is gone shows on stdin.
            with contextlib.suppress(OSError):
                self._stream.write(content)
