"""Weights that stand where they are going to be when their gradients come back.

A gradient that was computed with weights that lack some steps of this stage is one for weights of
the past. Where steps go on as they went last, as they do with momentum, its weights are what they
should have been if they stood as many steps ahead. So after every step of the optimizer, whichever
it is, the weights are shifted by the last step times a multiple of the lag that is usual here, and
before the next step they are shifted back: the optimizer sees its own weights, everybody else those
of the future. Micro-batches of one update differ in their lag; what counts is that gradients are
right in the mean.

A stage whose gradients are never old (the last one, and all of a synchronous pipeline) shifts
nothing and remembers nothing. Decision 026 has the figures.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

_REMEMBERED = 8
"""Updates over which the lag is averaged: coalesced ones differ."""
_GAIN = 2.0
"""Steps ahead for every step that gradients are old. One makes up for their age; with two, the
newest gradient counts for more, as in Nesterov's momentum, and fewer updates are needed."""
_GAIN_OF_NESTEROV = 1.0
"""The same for an optimizer with Nesterov's momentum, which counts the newest gradient for more by
itself, at any lag, but does nothing about its age."""


class LookAhead:
    """Of the parameters of one stage. They may move to other memory between two calls."""

    def __init__(self, optimizer: torch.optim.Optimizer | None) -> None:
        self._parts = _parts(optimizer)
        self._lags: deque[float] = deque(maxlen=_REMEMBERED)

    @torch.no_grad()
    def before_step(self, lag: float) -> None:
        """The gradients that are going to be applied are so many steps old, in the mean."""
        self.return_()
        self._lags.append(lag)
        usual = sum(self._lags) / len(self._lags)
        for part in self._parts:
            part.before_step(usual)

    def needed(self, lag: float) -> int:
        """Bytes that the next step takes to remember where it began, if its gradients are old."""
        if not lag and not any(self._lags):
            return 0
        return sum(part.needed() for part in self._parts)

    @torch.no_grad()
    def after_step(self) -> None:
        for part in self._parts:
            part.after_step()

    @torch.no_grad()
    def return_(self) -> bool:
        """Put the weights where the optimizer left them; whether they were elsewhere."""
        shifted = [part.return_() for part in self._parts]
        return any(shifted)


class _Part:
    """Parameters that are put ahead alike."""

    def __init__(self, parameters: Sequence[nn.Parameter], gain: float) -> None:
        self._parameters = parameters
        self._gain = gain
        self._steps = 0.0
        self._shift: list[torch.Tensor] = []
        """Memory as large as the parameters, once it is needed."""
        self._is_shifted = False

    def needed(self) -> int:
        return 0 if self._shift else sum(p.numel() * p.element_size() for p in self._parameters)

    def before_step(self, lag: float) -> None:
        self._steps = self._gain * lag
        if self._steps:
            if not self._shift:
                self._shift = [torch.empty_like(p) for p in self._parameters]
            torch._foreach_copy_(self._shift, self._data())

    def after_step(self) -> None:
        if self._steps:
            data = self._data()
            torch._foreach_sub_(self._shift, data)
            torch._foreach_mul_(self._shift, -self._steps)
            torch._foreach_add_(data, self._shift)
            self._is_shifted = True

    def return_(self) -> bool:
        was_shifted, self._is_shifted = self._is_shifted, False
        if was_shifted:
            torch._foreach_sub_(self._data(), self._shift)
        return was_shifted

    def _data(self) -> list[torch.Tensor]:
        return [parameter.data for parameter in self._parameters]


def _parts(optimizer: torch.optim.Optimizer | None) -> list[_Part]:
    """Of the parameters whose steps go on as they went."""
    found = []
    for group in optimizer.param_groups if optimizer is not None else ():
        # In half precision there and back is not where one was.
        precise = [p for p in group["params"] if torch.finfo(p.dtype).bits >= 32]
        if precise and (gain := _gain(optimizer, group)):
            found.append(_Part(precise, gain))
    return found


def _gain(optimizer: torch.optim.Optimizer | None, group: Mapping[str, Any]) -> float:
    """Decision 026 has the reasons. More than half of a step of NAdam is the newest gradient and
    does not go on. Muon has Nesterov's momentum, too, but its steps are of one size whatever the
    curvature: it bears more than others."""
    if isinstance(optimizer, torch.optim.NAdam) or not _has_momentum(group):
        return 0.0
    is_muon = isinstance(optimizer, getattr(torch.optim, "Muon", ()))
    return _GAIN_OF_NESTEROV if group.get("nesterov") and not is_muon else _GAIN


def _has_momentum(group: Mapping[str, Any]) -> bool:
    """By the names that optimizers have in common."""
    betas = group.get("betas")
    first = betas[0] if isinstance(betas, list | tuple) and betas else 0.0
    return bool(first or group.get("momentum"))
