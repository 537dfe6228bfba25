"""Optimizers that can be asked for by name.

The deeper a pipeline, the older its gradients, and some optimizers bear that better than others:
see benchmarks/staleness.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ravnest.errors import NodeError
from ravnest.stage.matrices import MATRIX, STACK

OptimizerFactory = Callable[..., torch.optim.Optimizer]
Groups = list[dict[str, Any]]

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Drives singular values from anywhere in (0, 1] to about 1 within a few rounds."""
_ROUNDS = 5
_OTHERS = "others"
"""Name of the group of what is no hidden matrix."""


class NAdamW(torch.optim.NAdam):
    """NAdam with weight decay apart from the gradient; the arguments of AdamW."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        momentum_decay: float = 4e-3,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            momentum_decay=momentum_decay,
            decoupled_weight_decay=True,
        )


class Muon(torch.optim.Optimizer):
    """Muon for hidden matrices, AdamW for everything else, as one optimizer.

    `lr` and `weight_decay` mean what they mean to AdamW: steps of matrices are scaled to match. The
    kernels of convolutions count as matrices with one row for each output channel. Which parameters
    are hidden matrices the groups say (see `grouped`); without groups all that have two dimensions
    or more.
    """

    tells_matrices = True
    """Wants its parameters in groups."""

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Groups,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        given: list[Any] = list(params)
        if given and not isinstance(given[0], dict):
            given = grouped(given, {p: MATRIX for p in given if p.dim() >= 2})
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(given, defaults)
        others = self._others()
        self._adamw = torch.optim.AdamW(others, betas=betas, eps=eps) if others else None
        self._share_state()

    def _share_state(self) -> None:
        """One state and one set of groups: schedulers, averaging and saving see all of it."""
        if self._adamw is not None:
            self._adamw.param_groups = self._others()
            self._adamw.state = self.state

    def _others(self) -> Groups:
        return [group for group in self.param_groups if group["name"] == _OTHERS]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share_state()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise NodeError("the optimizer 'muon' takes no closure")
        for group in self.param_groups:
            if group["name"] == _OTHERS:
                continue
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_matrix(parameter, parameter.grad, group)
        if self._adamw is not None:
            self._adamw.step()

    def _step_matrix(
        self, parameter: nn.Parameter, gradient: torch.Tensor, group: Mapping[str, Any]
    ) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum: torch.Tensor = state["momentum_buffer"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        ahead = gradient.lerp(momentum, group["momentum"])
        many = ahead if group["name"] == STACK else ahead.reshape(len(ahead), -1)
        step = orthogonal(many)
        scale = 0.2 * math.sqrt(max(many.shape[-2:]))  # the usual size of a step of AdamW
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(step.view_as(parameter).to(parameter.dtype), alpha=-group["lr"] * scale)


def grouped(parameters: Sequence[nn.Parameter], kinds: Mapping[nn.Parameter, str]) -> Groups:
    """Parameters in named groups, by what `kinds` says of the matrices among them."""
    names = {name: [p for p in parameters if kinds.get(p) == name] for name in (MATRIX, STACK)}
    names[_OTHERS] = [p for p in parameters if p not in kinds]
    return [{"params": params, "name": name} for name, params in names.items() if params]


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Nearly the nearest matrices whose singular values are all alike, by Newton and Schulz."""
    a, b, c = _QUINTIC
    # Half the numbers are enough for a direction, where a device computes faster with them.
    x: torch.Tensor = matrices.float() if matrices.device.type == "cpu" else matrices.bfloat16()
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if is_tall else x


NAMED: dict[str, OptimizerFactory] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadamw": NAdamW,
    "muon": Muon,
}


def optimizer_named(given: OptimizerFactory | str | None) -> OptimizerFactory | None:
    """The factory that goes by this name; anything but a name is returned as it is."""
    if not isinstance(given, str):
        return given
    if given.lower() not in NAMED:
        raise NodeError(
            f"optimizer is {given!r}; the names are {', '.join(NAMED)}, or give a class such as "
            "torch.optim.AdamW"
        )
    return NAMED[given.lower()]
