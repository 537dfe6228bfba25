"""What reaches the compute thread, one thing after another: messages, requests, the end."""

import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ravnest.wire import messages
from ravnest.wire.link import LinkEvent


@dataclass(frozen=True, slots=True)
class Submitted:
    """A micro-batch from the user, on the first stage."""

    message: messages.Forward
    values: dict[int, Any]


@dataclass(frozen=True, slots=True)
class Ordered:
    """A command from the user, on the first stage."""

    message: messages.Command


@dataclass(frozen=True, slots=True)
class Asked:
    """Something to be done on the thread that owns the weights."""

    work: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Stop:
    """The last thing the compute thread is told."""


Item = LinkEvent | Submitted | Ordered | Asked | Stop


class Inbox:
    """Any thread puts, the compute thread takes."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()

    def put(self, item: Item) -> None:
        self._items.put(item)

    def take(self, within_s: float = 0.0) -> Item | None:
        """The next item; None if there is none within that time."""
        try:
            return self._items.get(block=within_s > 0, timeout=within_s)
        except queue.Empty:
            return None
