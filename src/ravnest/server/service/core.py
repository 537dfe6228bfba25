"""Events in, persisted, then carried out: the one place that changes the state.

An instruction is carried out when everything that was decided before it, and with it, is on disk;
never earlier, and in the order in which things happened. If the store fails the server ends: what
it knows and what it would know after a restart are not the same any more.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from ravnest.errors import JobError
from ravnest.server.changes import Change
from ravnest.server.changes import Event as LoggedEvent
from ravnest.server.state.effects import Effects, Order, Wake
from ravnest.server.state.events import ClockMoved, Event, Tick
from ravnest.server.state.machine import handle
from ravnest.server.state.world import CLOCK_MOVED_S, World
from ravnest.server.store import Reading, Store

_Answer = TypeVar("_Answer")
logger = logging.getLogger("ravnest.server")


class Watcher(Protocol):
    """Whoever goes by the state: shows it to others, or ends what it does not allow any more."""

    def touch(self, effects: Effects) -> None: ...


class _Pending:
    __slots__ = ("orders", "ready")

    def __init__(self, orders: Sequence[Order], ready: bool) -> None:
        self.orders = orders
        self.ready = ready


class Core:
    def __init__(
        self,
        world: World,
        store: Store,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Times are those of `clock`, which people may set; `steady` tells when they have."""
        self.world = world
        self.store = store
        self.clock = clock
        self._steady = steady
        self._read = clock(), steady()
        self.perform: Callable[[Order], None] = lambda order: None
        """What carries out an instruction; it must not wait."""
        self.watchers: list[Watcher] = []
        self.failed: asyncio.Event = asyncio.Event()
        self.failure: BaseException | None = None
        self._pending: deque[_Pending] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at: float | None = None
        self._point_number = 0
        self._closed = False

    @property
    def is_closed(self) -> bool:
        return self._closed

    def number_points_from(self, last: int) -> None:
        self._point_number = last

    def next_point(self) -> int:
        self._point_number += 1
        return self._point_number

    def happen(self, event: Event, extra: Sequence[Change] = ()) -> "asyncio.Future[None]":
        """The event has its effects; done when they are on disk. What a `JobError` refuses has
        none."""
        (before, steady_before), self._read = self._read, (self.clock(), self._steady())
        now, steady = self._read
        by_s = (now - before) - (steady - steady_before)
        if abs(by_s) > CLOCK_MOVED_S:
            # All that is waited for was asked for by another clock, and is asked for anew.
            self._cancel_timer()
            self._happen(ClockMoved(by_s=by_s), (), now)
        return self._happen(event, extra, now)

    def _happen(self, event: Event, extra: Sequence[Change], now: float) -> "asyncio.Future[None]":
        try:
            effects = handle(self.world, event, now)
        except JobError:
            raise
        except Exception:
            # A mistake of ours. What it has changed is known here, and has to be after a restart.
            self.world.out.seal()
            self._follow(self.world.out, extra)
            raise
        return self._follow(effects, extra)

    def _follow(self, effects: Effects, extra: Sequence[Change]) -> "asyncio.Future[None]":
        for watcher in self.watchers:
            watcher.touch(effects)
        done = self._commit([*extra, *effects.changes], effects.orders)
        # Last: a log that cannot be written must not part what is known from what is kept.
        for note in effects.notes:
            _log(note)
        return done

    def keep(self, changes: Sequence[Change]) -> "asyncio.Future[None]":
        """Write what nothing follows from."""
        return self._commit(changes, [])

    async def read(self, question: Callable[[Reading], _Answer]) -> _Answer:
        """An answer that knows of everything that has happened before it was asked for."""
        await asyncio.wrap_future(self.store.write(()))
        return await asyncio.wrap_future(self.store.ask(question))

    def _commit(self, changes: Sequence[Change], orders: Sequence[Order]) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if not changes:
            done.set_result(None)
            if orders:
                self._pending.append(_Pending(orders, ready=True))
                self._carry_out()
            return done
        pending = _Pending(orders, ready=False)
        self._pending.append(pending)

        def written(future: Future[None]) -> None:
            error = future.exception()
            try:
                if error is not None:
                    self._fail(error)
                else:
                    pending.ready = True
                    self._carry_out()
            finally:
                if not done.done():
                    done.set_result(None) if error is None else done.set_exception(error)
                    done.exception()  # whoever does not wait for it need not hear of it twice

        def tell(future: Future[None]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(written, future)

        self.store.write(changes).add_done_callback(tell)
        return done

    def _carry_out(self) -> None:
        while self._pending and self._pending[0].ready:
            for order in self._pending.popleft().orders:
                try:
                    if isinstance(order, Wake):
                        self._set_timer(order.at)
                    elif not self._closed:
                        self.perform(order)
                except Exception:  # those that come after it are for others
                    logger.exception("%s could not be carried out", type(order).__name__)

    def _set_timer(self, at: float) -> None:
        if self._closed or (self._wake_at is not None and self._wake_at <= at):
            return
        self._cancel_timer()
        self._wake_at = at
        delay = max(0.0, at - self.clock())
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._wake_at = None

    def _tick(self) -> None:
        self._timer = self._wake_at = None
        self.happen(Tick())

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self.failed.set()
            logger.error("the server ends, for what it decides cannot be kept: %s", error)

    def close(self) -> None:
        """No instruction is carried out any more; what has happened is kept."""
        self._closed = True
        self._cancel_timer()


def _log(note: LoggedEvent) -> None:
    level: Any = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
    about = "".join(
        [
            f" [job {note.job}]" if note.job else "",
            f" [provider {note.provider}]" if note.provider is not None else "",
        ]
    )
    logger.log(level[note.level], "%s%s", note.text, about)
