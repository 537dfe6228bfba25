"""A model is planned as it will be trained, whatever mode the caller happens to be in.

Inside `torch.no_grad()` or `inference_mode()` a capture would not see which of the model's own
stretches run without gradients, and a comparison would have no gradients to compare. Inside an
autocast region it would record casts that training elsewhere does not make.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator

import torch
import torch.backends.mha

_AUTOCAST_DEVICES = ("cpu", "cuda")


@contextlib.contextmanager
def as_in_training() -> Iterator[None]:
    """Gradients on, autocast off, and one way through attention for capture and comparison."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in _AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(_attention_written_out())
        yield


@contextlib.contextmanager
def log_silenced() -> Iterator[None]:
    """torch logs each failure at length, also where there is another way."""
    log = logging.getLogger("torch")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@contextlib.contextmanager
def _attention_written_out() -> Iterator[None]:
    """`nn.TransformerEncoder` as its layers say, also in evaluation.

    Its fast path packs padded sequences, which no graph can follow, and leaves zeros where the
    layers compute something that nobody reads.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*nested tensor.*")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
