"""The user's side of a provider: what the user's thread asks for, and what it waits for.

Two threads meet here. The user's posts micro-batches, orders and questions into the inbox and waits
for what comes of them; the compute thread says what has come of them. A failure, whichever thread
it comes from, is the answer to all of it. Links, stages and schedules are not known here.
"""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ravnest.errors import RavnestError
from ravnest.provider.inbox import Asked, Inbox, Ordered, Submitted
from ravnest.wire import messages

T = TypeVar("T")
Outputs = tuple[messages.Result, tuple[torch.Tensor, ...]]


@dataclass
class _Waiters:
    """By what they wait for."""

    replies: dict[tuple[str, int], Future[messages.Reply]] = field(default_factory=dict)
    results: dict[int, Future[Outputs]] = field(default_factory=dict)
    asked: set[Future[Any]] = field(default_factory=set)

    def fail(self, error: RavnestError) -> None:
        """None of it will happen."""
        waiting: list[Future[Any]] = [*self.replies.values(), *self.results.values(), *self.asked]
        for future in waiting:
            with contextlib.suppress(InvalidStateError):  # it was answered at this very moment
                future.set_exception(error)


def _answer(future: Future[Any], work: Callable[[], Any]) -> None:
    """Do it, for somebody who may have been told of a failure meanwhile."""
    try:
        found = work()
    except BaseException as error:
        with contextlib.suppress(InvalidStateError):
            future.set_exception(error)
    else:
        with contextlib.suppress(InvalidStateError):
            future.set_result(found)


class UserSide:
    """Where the user's thread and the compute thread of a provider meet."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        is_first: bool,
        queue_limit: int,
        on_batch: Callable[[messages.MicroBatch, float | None], None] | None = None,
    ) -> None:
        self.failure: RavnestError | None = None
        self.failure_was_raised = False
        """Whether the user's thread has been told of it."""
        self.told_goodbye = threading.Event()
        self.training_over = threading.Event()
        self.last_heard = time.monotonic()
        self._inbox = inbox
        self._is_first = is_first
        self._queue_limit = queue_limit
        self._on_batch = on_batch
        self._changed = threading.Condition()
        self._queued = 0
        self._waiters = _Waiters()
        self._number = 0
        self._meets_others = False
        """The last thing that the Root has ordered is to wait for the other clusters."""

    # ---- the user's thread ----

    def check(self) -> None:
        """Raise what went wrong, if something did."""
        if self.failure is not None:
            self.failure_was_raised = True
            raise self.failure

    def submit(self, message: messages.Forward, values: dict[int, Any]) -> None:
        """Hand over a micro-batch; waits while too many stand in line."""
        with self._changed:
            self._changed.wait_for(lambda: self._queued < self._queue_limit or self.failure)
            self.check()
            self._queued += 1
        self._inbox.put(Submitted(message, values))

    def expect_result(self, batch: int) -> "Future[Outputs]":
        future: Future[Outputs] = Future()
        with self._changed:
            self.check()
            self._waiters.results[batch] = future
        return future

    def order(self, order: messages.Order) -> messages.Reply:
        """Have everybody carry out a command after all that was submitted, and wait for it."""
        future: Future[messages.Reply] = Future()
        with self._changed:
            self.check()
            self._number += 1
            number = self._number
            self._waiters.replies[order, number] = future
        token = uuid.uuid4().hex if order == "save" else ""
        self._inbox.put(Ordered(messages.Command(order=order, number=number, token=token)))
        return self.wait_for(future)

    def wait_for(self, future: "Future[T]") -> T:
        """What was asked for, or the error that has ended the run."""
        try:
            return future.result()
        except RavnestError:
            self.failure_was_raised = self.failure is not None
            raise

    def ask(self, work: Callable[[], Any]) -> Any:
        """Run something on the compute thread and wait for what it returns."""
        future: Future[Any] = Future()
        with self._changed:
            self.check()
            self._waiters.asked.add(future)
        self._inbox.put(Asked(lambda: _answer(future, work)))
        try:
            return self.wait_for(future)
        finally:
            with self._changed:
                self._waiters.asked.discard(future)

    def wait_for_call(self, arrange: Callable[[Callable[[], None]], None]) -> None:
        """Wait until somebody calls what is given to `arrange`, but no longer than the run goes
        well."""
        future: Future[None] = Future()
        with self._changed:
            self.check()
            self._waiters.asked.add(future)
        arrange(lambda: _answer(future, lambda: None))
        try:
            self.wait_for(future)
        finally:
            with self._changed:
                self._waiters.asked.discard(future)

    def wait_until_trained(self) -> None:
        """Serve until the Root says that training is over."""
        self.training_over.wait()
        self.check()

    def wait_for_goodbye(self, silence_s: float) -> bool:
        """Serve until the Root has said goodbye; False if nothing is heard for so long."""
        while not self.told_goodbye.is_set():
            left = self.last_heard + silence_s - time.monotonic()
            if self._meets_others:  # which has a time limit of its own
                left = silence_s
            if left <= 0:
                return False
            self.told_goodbye.wait(min(left, threading.TIMEOUT_MAX))
        return True

    # ---- the compute thread, which must not be held up ----

    def forwarded(self, of: messages.MicroBatch) -> None:
        if self._is_first:
            with self._changed:
                self._queued -= 1
                self._changed.notify_all()

    def batch_done(self, of: messages.MicroBatch, loss: float | None) -> None:
        if self._on_batch is not None:
            self._on_batch(of, loss)

    def obeyed(self, order: str, number: int) -> None:
        self._meets_others = order == "average"
        if order in ("done", "goodbye"):
            self.training_over.set()

    def replied(self, reply: messages.Reply) -> None:
        self._meets_others = False
        with self._changed:
            future = self._waiters.replies.pop((reply.order, reply.number), None)
        if reply.order == "goodbye":
            self.told_goodbye.set()
        if future is not None:
            future.set_result(reply)

    def result(self, message: messages.Result, tensors: tuple[torch.Tensor, ...]) -> None:
        with self._changed:
            future = self._waiters.results.pop(message.batch, None)
        if future is not None:
            future.set_result((message, tensors))

    def unanswered(self) -> tuple[list[str], int]:
        """Orders without a reply, and how many batches without their outputs."""
        with self._changed:
            return [order for order, _ in self._waiters.replies], len(self._waiters.results)

    # ---- any thread ----

    def fail(self, error: RavnestError) -> None:
        """The end for whoever waits here, and whoever will."""
        with self._changed:
            self.failure = self.failure or error
            waiters, self._waiters = self._waiters, _Waiters()
            self._changed.notify_all()
        self.training_over.set()
        self.told_goodbye.set()
        waiters.fail(error)
