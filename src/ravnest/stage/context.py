"""What a `Context` means when an operator runs.

One meaning for whoever runs operators: a stage while it trains, the planner while it measures.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from ravnest.stage.graph import Context
from ravnest.stage.operators import DTYPES


def in_context(
    function: Callable[..., Any], context: Context | None, device_type: str
) -> Callable[..., Any]:
    """The function as it behaves inside the user's `no_grad` and autocast regions."""
    if context is None:
        return function
    without_grad = context.grad is False
    dtype = None if context.autocast_dtype is None else DTYPES[context.autocast_dtype]
    enabled = bool(context.autocast_enabled)

    def run(*args: Any, **kwargs: Any) -> Any:
        grad = torch.no_grad() if without_grad else contextlib.nullcontext()
        if dtype is None:
            with grad:
                return function(*args, **kwargs)
        # No cache: it keeps what was cast for as long as an autocast region outside of this one.
        with grad, torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=False):
            return function(*args, **kwargs)

    return run
