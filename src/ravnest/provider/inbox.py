"""What reaches the compute thread, one thing after another: messages, requests, the end."""

import functools
import queue
import threading
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
        self._entrance = self._items

    def put(self, item: Item) -> None:
        self._entrance.put(item)

    def look_ahead(self, see: Callable[[Item], Item]) -> None:
        """From now on every item goes through `see`, on a thread of its own, before the compute
        thread takes it; in the same order, until the end."""
        self._entrance = queue.SimpleQueue()
        pass_on = functools.partial(self._pass_on, self._entrance, see)
        threading.Thread(target=pass_on, name="ravnest-ahead", daemon=True).start()

    def _pass_on(self, entrance: "queue.SimpleQueue[Item]", see: Callable[[Item], Item]) -> None:
        item: Item | None = None
        while not isinstance(item, Stop):
            item = entrance.get()
            try:
                seen = see(item)
            except Exception as error:
                seen = Asked(functools.partial(_fail, error))
            self._items.put(seen)
            del seen  # it may hold memory of a device until the next one comes

    def take(self, within_s: float = 0.0) -> Item | None:
        """The next item; None if there is none within that time."""
        try:
            return self._items.get(block=within_s > 0, timeout=within_s)
        except queue.Empty:
            return None


def _fail(error: Exception) -> None:
    """On the compute thread, whose errors end the run."""
    raise error
