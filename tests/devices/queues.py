"""The queues of the toy device, played as badly as CUDA's may behave.

    late      what is asked of a queue is done when somebody who may waits for it, and not before:
              results are NaN until then, and arguments are read only then
    early     or the queues for copies do at once what they are asked for; the computing is late
    greedy    memory that nobody refers to is given out again at once, to the queue that it was
              asked for on, unless it has been recorded for another queue that has yet to read it

Whoever forgets to wait, or to record, computes garbage: certainly, and every time. The computing
queue is as late as the others, by one operator.
"""

import contextlib
import ctypes
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from devices import toy
from ravnest.provider.compute import copies

_LEAST_BYTES = 512
_lock = threading.RLock()


class Queue:
    """In the place of `torch.cuda.Stream`."""

    early = False

    def __init__(self, device: Any = None) -> None:
        self._pending: deque[Callable[[], None]] = deque()
        self.asked = self.done = 0

    def ask(self, do: Callable[[], None]) -> None:
        with _lock:
            self._pending.append(do)
            self.asked += 1
            if self.early:
                self.run()

    def run(self, until: int | None = None) -> None:
        with _lock:
            until = self.asked if until is None else until
            while self.done < until:
                self._pending.popleft()()
                self.done += 1

    synchronize = run

    def wait_stream(self, other: "Queue") -> None:
        position = other.asked
        self.ask(lambda: other.run(position))

    def wait_event(self, event: "Event") -> None:
        self.ask(event.synchronize)


class _EarlyQueue(Queue):
    early = True


class Event:
    """In the place of `torch.cuda.Event`."""

    def __init__(self, blocking: bool = False) -> None:
        assert blocking, "whoever waits for it would be busy waiting"
        self._queue, self._position = Queue(), 0

    def record(self, queue: Queue) -> None:
        self._queue, self._position = queue, queue.asked

    def synchronize(self) -> None:
        self._queue.run(self._position)


class _Memory:
    """A block that somebody refers to."""

    def __init__(self, block: torch.Tensor, queue: Queue) -> None:
        self.block, self.queue = block, queue
        self.recorded: set[Queue] = set()
        queue.ask(lambda: block.fill_(255))  # NaN, as whatever it is read


class Greedy(toy.Players):
    """Plays while it is the last one of `toy.PLAYING`."""

    def __init__(self) -> None:
        self.computing = [Queue() for _ in range(toy.COUNT)]
        self.reused = self.waited_for_copies = 0
        self._here = threading.local()
        self._free: defaultdict[tuple[int, Queue], list[torch.Tensor]] = defaultdict(list)
        self._used: dict[int, _Memory] = {}
        self._blocks: list[torch.Tensor] = []
        self._pinned: set[int] = set()

    # ---- queues ----

    def current(self, device: Any = None) -> Queue:
        index = 0 if device is None else device.index or 0
        found: Queue | None = getattr(self._here, "queue", None)
        return found or self.computing[index]

    @contextlib.contextmanager
    def using(self, queue: Queue) -> Iterator[None]:
        before = getattr(self._here, "queue", None)
        self._here.queue = queue
        try:
            yield
        finally:
            self._here.queue = before

    def before(self, index: int) -> None:
        self.current().run()

    def puts_off(self, do: Callable[[], Any]) -> bool:
        self.current().ask(do)
        return True

    def made(
        self, result: torch.Tensor, index: int, again: Callable[[], torch.Tensor] | None
    ) -> torch.Tensor:
        if not result.numel():
            return toy.on_toy(result, index)
        found = toy.on_toy(self._room_for(result), index)
        place = toy.Place(found)
        self.current().ask(lambda: place.read().copy_(again() if again else result))
        return found

    def copy(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
        on_host = next((t for t in (source, target) if not toy.is_toy(t)), None)
        queue = self.current()
        if on_host is not None and not (non_blocking and on_host.data_ptr() in self._pinned):
            queue.run()
            self.waited_for_copies += non_blocking
            toy.host(target).copy_(toy.host(source))
            return
        # Pinned memory is kept until it has been copied, by the allocator; that of the device not.
        read, write = (t if t is on_host else toy.Place(t) for t in (source, target))
        queue.ask(lambda: _tensor(write).copy_(_tensor(read)))

    # ---- memory ----

    def _room_for(self, like: torch.Tensor) -> torch.Tensor:
        """Memory of the same size and strides."""
        steps = zip(like.shape, like.stride(), strict=True)
        count = 1 + sum((size - 1) * step for size, step in steps)
        size = -(-count * like.element_size() // _LEAST_BYTES) * _LEAST_BYTES
        with _lock:
            queue = self.current()
            free = self._free[size, queue]
            if free:
                block = free.pop()
                self.reused += 1
            else:
                block = torch.full((size,), 255, dtype=torch.uint8)
                self._blocks.append(block)
            memory = _Memory(block, queue)
            self._used[block.data_ptr()] = memory
        buffer = (ctypes.c_ubyte * size).from_address(block.data_ptr())
        weakref.finalize(buffer, self._given_back, memory)
        flat = torch.frombuffer(buffer, dtype=like.dtype, count=count)
        return flat.as_strided(like.shape, like.stride())

    def _given_back(self, memory: _Memory) -> None:
        with _lock:
            self._used.pop(memory.block.data_ptr(), None)
            readers = [queue for queue in memory.recorded if queue.done < queue.asked]
            waits = [len(readers)]

            def read() -> None:
                waits[0] -= 1
                if waits[0] <= 0:
                    self._free[memory.block.numel(), memory.queue].append(memory.block)

            for queue in readers:
                queue.ask(read)
            if not readers:
                read()

    def record(self, tensor: torch.Tensor, queue: Queue) -> None:
        with _lock:
            for start, memory in self._used.items():
                if start <= tensor.data_ptr() < start + memory.block.numel():
                    memory.recorded.add(queue)

    def pinned_room(self, like: torch.Tensor) -> torch.Tensor:
        room = torch.empty_like(like, device="cpu")
        room.untyped_storage().fill_(255)
        self._pinned.add(room.data_ptr())
        weakref.finalize(room, self._pinned.discard, room.data_ptr())
        return room


def _tensor(item: Any) -> torch.Tensor:
    return item if isinstance(item, torch.Tensor) else item.read()


@contextlib.contextmanager
def played(*, early: bool = False) -> Iterator[tuple[Greedy, pytest.MonkeyPatch]]:
    """While active, the toy device has queues."""
    player = Greedy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy.MODULE, "Stream", _EarlyQueue if early else Queue, raising=False)
        patch.setattr(toy.MODULE, "Event", Event, raising=False)
        patch.setattr(toy.MODULE, "stream", player.using, raising=False)
        patch.setattr(toy.MODULE, "current_stream", player.current, raising=False)
        patch.setattr(torch.Tensor, "record_stream", lambda t, queue: player.record(t, queue))
        patch.setattr(copies, "pinned_room", player.pinned_room)
        toy.PLAYING.append(player)
        try:
            yield player, patch
        finally:
            toy.PLAYING.remove(player)
