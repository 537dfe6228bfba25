"""Those of other threads who wait for what a provider does."""

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

import torch

from ravnest.errors import RavnestError
from ravnest.wire import messages

Outputs = tuple[messages.Result, tuple[torch.Tensor, ...]]


@dataclass
class Waiters:
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


def answer(future: Future[Any], work: Callable[[], Any]) -> None:
    """Do it, for somebody who may have been told of a failure meanwhile."""
    try:
        found = work()
    except BaseException as error:
        with contextlib.suppress(InvalidStateError):
            future.set_exception(error)
    else:
        with contextlib.suppress(InvalidStateError):
            future.set_result(found)
