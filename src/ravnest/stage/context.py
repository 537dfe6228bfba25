"""What a `Context` means when an operator runs.

One meaning for whoever runs operators: a stage while it trains, the planner while it measures.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ravnest.stage.graph import Context
from ravnest.stage.operators import DTYPES


@contextlib.contextmanager
def casts_kept() -> Iterator[None]:
    """While active, what operators that share their casts have cast outlives each of them."""
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()  # the next optimizer step makes it wrong


def in_context(
    function: Callable[..., Any], context: Context | None, device_type: str
) -> Callable[..., Any]:
    """The function as it behaves inside the user's `no_grad` and autocast regions."""
    if context is None:
        return function
    without_grad = context.grad is False
    dtype = None if context.autocast_dtype is None else DTYPES[context.autocast_dtype]
    enabled = bool(context.autocast_enabled)
    shared = context.cast_once is not None

    def run(*args: Any, **kwargs: Any) -> Any:
        grad = torch.no_grad() if without_grad else contextlib.nullcontext()
        if dtype is None:
            with grad:
                return function(*args, **kwargs)
        # No cache of its own accord: it keeps what was cast for as long as a region outside lasts.
        with grad, torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=shared):
            return function(*args, **kwargs)

    return run
