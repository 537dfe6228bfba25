"""Optimizers by name, with what they need of memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ravnest.api.jobs import Named
from ravnest.recipes.parameters import Entry, Param, Registry, Values

OptimizerFactory = Callable[..., Any]


@dataclass(frozen=True)
class _Optimizer(Entry):
    torch_name: str = ""
    """Of the class in torch.optim; empty for what a Node knows under the same name."""
    copies: Callable[[Values], float] = lambda values: 2.0
    """How many numbers it keeps for each parameter."""


def _rate(default: float) -> Param:
    return Param("number", default, "learning rate", low=0.0)


def _share(default: float, says: str) -> Param:
    return Param("number", default, says, low=0.0, high=1.0)


_BETAS = Param("numbers", [0.9, 0.999], "decay of the two averages", low=0.0, high=1.0, length=2)
_DECAY = Param("number", 0.0, "weight decay", low=0.0)


def _eps(default: float) -> Param:
    return Param("number", default, "added to denominators", low=0.0)


_MOMENTUM = Param("number", 0.0, "momentum", low=0.0)


def _nesterov(values: Values) -> str | None:
    if values["nesterov"] and (not values["momentum"] or values["dampening"]):
        return "nesterov needs a momentum above 0 and no dampening"
    return None


def _adam(weight_decay: float) -> dict[str, Param]:
    return {
        "lr": _rate(1e-3),
        "betas": _BETAS,
        "eps": _eps(1e-8),
        "weight_decay": Param("number", weight_decay, "weight decay", low=0.0),
        "amsgrad": Param("flag", False, "keep the largest second average"),
    }


OPTIMIZERS = Registry(
    "optimizer",
    {
        "sgd": _Optimizer(
            "Stochastic gradient descent, with or without momentum.",
            {
                "lr": _rate(1e-2),
                "momentum": _MOMENTUM,
                "dampening": Param("number", 0.0, "of the momentum", low=0.0),
                "weight_decay": _DECAY,
                "nesterov": Param("flag", False, "look ahead"),
            },
            check=_nesterov,
            torch_name="SGD",
            copies=lambda values: 1.0 if values["momentum"] else 0.0,
        ),
        "adam": _Optimizer(
            "Adam.",
            _adam(0.0),
            torch_name="Adam",
            copies=lambda values: 3.0 if values["amsgrad"] else 2.0,
        ),
        "adamw": _Optimizer(
            "Adam with weight decay apart from the gradient.",
            _adam(0.01),
            torch_name="AdamW",
            copies=lambda values: 3.0 if values["amsgrad"] else 2.0,
        ),
        "nadam": _Optimizer(
            "Adam with a look ahead, which bears the old gradients of deep pipelines better.",
            {
                "lr": _rate(2e-3),
                "betas": _BETAS,
                "eps": _eps(1e-8),
                "weight_decay": _DECAY,
                "momentum_decay": Param("number", 4e-3, "of the momentum", low=0.0),
                "decoupled_weight_decay": Param("flag", False, "as AdamW does"),
            },
            torch_name="NAdam",
        ),
        "nadamw": _Optimizer(
            "Adam with a look ahead and weight decay apart from the gradient.",
            {
                "lr": _rate(1e-3),
                "betas": _BETAS,
                "eps": _eps(1e-8),
                "weight_decay": Param("number", 0.01, "weight decay", low=0.0),
                "momentum_decay": Param("number", 4e-3, "of the momentum", low=0.0),
            },
        ),
        "radam": _Optimizer(
            "Adam that begins carefully.",
            {
                "lr": _rate(1e-3),
                "betas": _BETAS,
                "eps": _eps(1e-8),
                "weight_decay": _DECAY,
                "decoupled_weight_decay": Param("flag", False, "as AdamW does"),
            },
            torch_name="RAdam",
        ),
        "adamax": _Optimizer(
            "Adam by the largest instead of the mean square gradient.",
            {"lr": _rate(2e-3), "betas": _BETAS, "eps": _eps(1e-8), "weight_decay": _DECAY},
            torch_name="Adamax",
        ),
        "rmsprop": _Optimizer(
            "RMSprop.",
            {
                "lr": _rate(1e-2),
                "alpha": _share(0.99, "decay of the average"),
                "eps": _eps(1e-8),
                "weight_decay": _DECAY,
                "momentum": _MOMENTUM,
                "centered": Param("flag", False, "subtract the mean gradient"),
            },
            torch_name="RMSprop",
            copies=lambda values: 1.0 + bool(values["momentum"]) + values["centered"],
        ),
        "adagrad": _Optimizer(
            "Adagrad.",
            {
                "lr": _rate(1e-2),
                "lr_decay": Param("number", 0.0, "of the learning rate", low=0.0),
                "weight_decay": _DECAY,
                "initial_accumulator_value": Param("number", 0.0, "to begin with", low=0.0),
                "eps": _eps(1e-10),
            },
            torch_name="Adagrad",
            copies=lambda values: 1.0,
        ),
        "adadelta": _Optimizer(
            "Adadelta.",
            {
                "lr": _rate(1.0),
                "rho": _share(0.9, "decay of the averages"),
                "eps": _eps(1e-6),
                "weight_decay": _DECAY,
            },
            torch_name="Adadelta",
        ),
        "muon": _Optimizer(
            "Muon for hidden matrices; AdamW for embeddings, heads and vectors.",
            {
                "lr": _rate(1e-3),
                "weight_decay": Param("number", 0.01, "weight decay", low=0.0),
                "momentum": _share(0.95, "of the matrices"),
                "betas": _BETAS,
                "eps": _eps(1e-8),
            },
        ),
    },
)


def build_optimizer(named: Named) -> tuple[OptimizerFactory | str, dict[str, Any]]:
    """What `Node(optimizer=…, optimizer_params=…)` takes."""
    values = OPTIMIZERS.values(named)
    torch_name = OPTIMIZERS[named.name].torch_name
    if not torch_name:
        return named.name, values
    import torch

    return getattr(torch.optim, torch_name), values


def optimizer_memory(named: Named) -> float:
    """Numbers that it keeps for each parameter, which planning has to find room for."""
    return OPTIMIZERS[named.name].copies(OPTIMIZERS.values(named))
