"""What the agent says while a worker works, on stdin; and that the agent is gone, at its end."""

import logging
import threading
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from ravnest.api.limits import NOT_UNDERSTOOD

logger = logging.getLogger("ravnest.worker")
_MOST_BYTES = 1 << 16


class Lines(Protocol):
    """A stream that is read line by line."""

    def readline(self, size: int, /) -> bytes: ...


Action = Literal["stop", "pause", "resume"]


class _Said(msgspec.Struct, frozen=True):
    action: Action


class Steering:
    """Listens in a thread of its own; what comes before somebody takes it is kept for them."""

    def __init__(self, stream: Lines, on_gone: Callable[[], None]) -> None:
        self._stream = stream
        self._on_gone = on_gone
        self._lock = threading.Lock()
        self._kept: list[Action] = []
        self._obey: Callable[[Action], None] | None = None

    def start(self) -> None:
        threading.Thread(target=self._listen, name="steering", daemon=True).start()

    def obey_with(self, obey: Callable[[Action], None]) -> None:
        """From now on, and for what was said so far."""
        with self._lock:
            kept, self._kept, self._obey = self._kept, [], obey
        for action in kept:
            obey(action)

    def _listen(self) -> None:
        try:
            while line := self._stream.readline(_MOST_BYTES):
                self._hear(line)
        except (OSError, ValueError):
            logger.debug("stdin cannot be read any more", exc_info=True)
        self._on_gone()

    def _hear(self, line: bytes) -> None:
        try:
            action = msgspec.json.decode(line, type=_Said).action
        except NOT_UNDERSTOOD as error:
            logger.warning("the agent said something that is not understood: %s", error)
            return
        with self._lock:
            obey = self._obey
            if obey is None:
                self._kept.append(action)
                return
        obey(action)
