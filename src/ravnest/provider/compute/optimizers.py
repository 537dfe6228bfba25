"""Optimizers that can be asked for by name.

The deeper a pipeline, the older its gradients, and some optimizers bear that better than others:
see benchmarks/staleness. Muon, which follows whole matrices rather than single numbers, does.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ravnest.errors import NodeError

OptimizerFactory = Callable[..., torch.optim.Optimizer]


class Muon(torch.optim.Optimizer):
    """Muon for matrices, AdamW for everything else, as one optimizer.

    `lr` and `weight_decay` mean what they mean to AdamW: steps of matrices are scaled to match. The
    kernels of convolutions count as matrices with one row for each output channel.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise NodeError(
                f"the optimizer 'muon' needs torch 2.9 or later; this is {torch.__version__}"
            )
        parameters = list(params)
        matrices = [p for p in parameters if p.dim() >= 2]
        others = [p for p in parameters if p.dim() < 2]
        # Views share memory with their parameter, so a step on the view is a step on both.
        self._views = [(p, nn.Parameter(p.data.view(p.shape[0], -1))) for p in matrices]
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            self._parts.append(
                torch.optim.Muon(
                    [view for _, view in self._views],
                    lr=lr,
                    weight_decay=weight_decay,
                    momentum=momentum,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        if others:
            self._parts.append(
                torch.optim.AdamW(others, lr=lr, weight_decay=weight_decay, betas=betas)
            )
        super().__init__(parameters, {"lr": lr})
        # Schedulers write to the groups of the parts through these.
        self.param_groups = [group for part in self._parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise NodeError("the optimizer 'muon' takes no closure")
        for parameter, view in self._views:
            # An update may have moved the parameter to other memory since.
            view.data = parameter.data.view(view.shape)
            gradient = parameter.grad
            view.grad = None if gradient is None else gradient.reshape(view.shape)
        for part in self._parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self._parts for group in part.param_groups]


NAMED: dict[str, OptimizerFactory] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
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
