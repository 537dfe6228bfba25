"""What a requester calls a loss, an optimizer or a schedule → its name in the registry.

Besides names, torch's own classes, functions and objects are understood where the registry has
exactly the same thing. Nothing is approximated: what has no equal there is refused, with what there
is instead.
"""

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from ravnest.api.jobs import Named
from ravnest.errors import JobError
from ravnest.recipes.losses import LOSSES
from ravnest.recipes.optimizers import OPTIMIZERS
from ravnest.recipes.parameters import Registry
from ravnest.recipes.schedules import SCHEDULES

_F = nn.functional
_LOSSES: dict[Any, str] = {
    nn.CrossEntropyLoss: "cross_entropy",
    nn.NLLLoss: "nll",
    nn.BCEWithLogitsLoss: "bce_with_logits",
    nn.BCELoss: "bce",
    nn.MSELoss: "mse",
    nn.L1Loss: "l1",
    nn.SmoothL1Loss: "smooth_l1",
    nn.HuberLoss: "huber",
    nn.PoissonNLLLoss: "poisson_nll",
    nn.SoftMarginLoss: "soft_margin",
    nn.KLDivLoss: "kl_div",
    _F.cross_entropy: "cross_entropy",
    _F.nll_loss: "nll",
    _F.binary_cross_entropy_with_logits: "bce_with_logits",
    _F.binary_cross_entropy: "bce",
    _F.mse_loss: "mse",
    _F.l1_loss: "l1",
    _F.smooth_l1_loss: "smooth_l1",
    _F.huber_loss: "huber",
    _F.poisson_nll_loss: "poisson_nll",
    _F.soft_margin_loss: "soft_margin",
    _F.kl_div: "kl_div",
}
_SCHEDULES: dict[type, tuple[str, dict[str, str]]] = {
    lr_scheduler.StepLR: ("step", {"step_size": "step_size", "gamma": "gamma"}),
    lr_scheduler.MultiStepLR: ("multistep", {"milestones": "milestones", "gamma": "gamma"}),
    lr_scheduler.ExponentialLR: ("exponential", {"gamma": "gamma"}),
    lr_scheduler.LinearLR: (
        "linear",
        {"start_factor": "start", "end_factor": "end", "total_iters": "steps"},
    ),
    lr_scheduler.PolynomialLR: ("polynomial", {"total_iters": "steps", "power": "power"}),
    lr_scheduler.CosineAnnealingWarmRestarts: (
        "cosine_restarts",
        {"T_0": "period", "T_mult": "growth"},
    ),
}
"""Torch's name of each parameter → the registry's. Others must be left at their defaults."""
_OLD_WORDS = {"size_average", "reduce"}
"""What `reduction` stood for long ago; torch has taken them into it already."""
_HOW_NOT_WHAT = {"foreach", "fused", "capturable", "differentiable", "initial_lr"}
"""Settings of an optimizer that change no result: the provider's to choose."""
_SCRIPT_HINT = "; anything else takes a script (Session.submit_script, with providers' consent)"


def loss_named(given: Any) -> Named:
    """A name, `nn.CrossEntropyLoss(label_smoothing=0.1)`, or `F.cross_entropy`."""
    thing, params = _taken_apart(given)
    if isinstance(thing, str):
        return _checked(LOSSES, thing, params)
    kind = type(thing) if isinstance(thing, nn.Module) else thing
    name = _LOSSES.get(kind) if isinstance(kind, type) or callable(kind) else None
    if name is None:
        raise JobError(_unknown("loss", thing, LOSSES))
    values = {**(_settings(thing) if isinstance(thing, nn.Module) else {}), **params}
    if name == "kl_div":
        values = _divergence_values(thing, values)
    return _checked(LOSSES, name, values)


def optimizer_named(given: Any, params: Mapping[str, Any], model: nn.Module | None = None) -> Named:
    """A name, `torch.optim.AdamW`, or an optimizer that was made for the model."""
    thing, own = _taken_apart(given)
    if isinstance(thing, str):
        return _checked(OPTIMIZERS, thing, {**own, **params})
    kind = type(thing) if isinstance(thing, Optimizer) else thing
    name = next(
        (one for one in OPTIMIZERS if getattr(torch.optim, OPTIMIZERS[one].torch_name, 0) is kind),
        None,
    )
    if name is None:
        raise JobError(_unknown("optimizer", thing, OPTIMIZERS))
    known = OPTIMIZERS[name].params
    values = _defaults(kind)
    if isinstance(thing, Optimizer):
        plain = {**values, "decoupled_weight_decay": kind is torch.optim.AdamW}
        values |= _of_one_group(thing, model)
        for key in values.keys() - known.keys() - _HOW_NOT_WHAT:
            if values[key] != plain.get(key):
                raise JobError(f"the optimizer {name!r} has nothing like {key}={values[key]!r}")
    values = {key: value for key, value in values.items() if key in known}
    return _checked(OPTIMIZERS, name, {**values, **own, **params})


def schedule_named(given: Any) -> Named | None:
    """A name with parameters, or `(StepLR, {"step_size": 2})`."""
    if given is None:
        return None
    thing, params = _taken_apart(given)
    if isinstance(thing, str):
        return _checked(SCHEDULES, thing, params)
    if isinstance(thing, lr_scheduler.LRScheduler):
        raise JobError(
            "schedule is a scheduler that belongs to an optimizer of this process; give its class "
            'and parameters, as in schedule=(StepLR, {"step_size": 2})'
        )
    if not isinstance(thing, type) or thing not in _SCHEDULES:
        raise JobError(_unknown("schedule", thing, SCHEDULES))
    name, words = _SCHEDULES[thing]
    defaults = _defaults(thing)
    values = {key: value for key, value in {**defaults, **params}.items() if key in words}
    for key, value in params.items():
        if key not in words and value != defaults.get(key):
            raise JobError(
                f"the schedule {name!r} has nothing like {key}={value!r} of {thing.__name__}; "
                f"without it, or as a name with parameters, it can be used"
            )
    return _checked(SCHEDULES, name, {words[key]: value for key, value in values.items()})


def named(given: Any) -> Named:
    """Something without an equal in torch, by name: a metric, a transform."""
    thing, params = _taken_apart(given)
    if not isinstance(thing, str):
        raise JobError(f"{_described(thing)} is no name; give one, or (name, {{parameter: value}})")
    return Named(name=thing, params=_plain(params))


# ---- taking things apart ----


def _taken_apart(given: Any) -> tuple[Any, dict[str, Any]]:
    """The thing, and parameters that came with it in any of the ways people write that."""
    match given:
        case Named(name=name, params=params):
            return name, dict(params)
        case (thing, Mapping() as params):
            return thing, dict(params)
        case Mapping() if "name" in given:
            rest = {key: value for key, value in given.items() if key not in ("name", "params")}
            return given["name"], {**rest, **given.get("params", {})}
        case functools.partial(func=thing, args=(), keywords=params):
            return thing, dict(params)
    return given, {}


def _defaults(function: Any) -> dict[str, Any]:
    found = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in found if one.default is not inspect.Parameter.empty}


def _settings(module: nn.Module) -> dict[str, Any]:
    """What a loss was made with, where it differs from what it is made with by default."""
    defaults = _defaults(type(module))
    values = {name: getattr(module, name, default) for name, default in defaults.items()}
    return {
        name: value
        for name, value in values.items()
        if name not in _OLD_WORDS and not (value is defaults[name] or _equal(value, defaults[name]))
    }


def _equal(one: Any, other: Any) -> bool:
    return not isinstance(one, torch.Tensor) and bool(one == other)


def _divergence_values(thing: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Torch's mean is over all numbers there; the registry's is over rows, as it should be."""
    reduction = values.get("reduction", "mean")
    if reduction == "batchmean":
        return {**values, "reduction": "mean"}
    if reduction == "mean":
        raise JobError(
            f"{_described(thing)} divides by the number of all values; the loss 'kl_div' divides "
            "by rows, which is reduction='batchmean': say so, or give the name"
        )
    return values


def _of_one_group(optimizer: Optimizer, model: nn.Module | None) -> dict[str, Any]:
    if len(optimizer.param_groups) != 1:
        raise JobError(
            f"the optimizer has {len(optimizer.param_groups)} groups of parameters, and here all "
            f"parameters have the same settings{_SCRIPT_HINT}"
        )
    (group,) = optimizer.param_groups
    if model is not None:
        trained = {id(one) for one in model.parameters() if one.requires_grad}
        if trained != {id(one) for one in group["params"] if one.requires_grad}:
            raise JobError(
                "the optimizer was not made for all parameters of the model that can be trained; "
                "set requires_grad=False for those that must stay as they are"
            )
    return {key: value for key, value in group.items() if key != "params"}


# ---- saying it ----


def _checked(registry: Registry[Any], name: str, params: Mapping[str, Any]) -> Named:
    found = Named(name=name, params=_plain(params))
    registry.values(found)
    return found


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): _plain_value(str(key), value) for key, value in params.items()}


def _plain_value(key: str, value: Any) -> Any:
    """As JSON has it."""
    if hasattr(value, "tolist"):  # tensors; arrays and numbers of numpy
        if value.ndim > 1:
            raise JobError(f"{key} has shape {list(value.shape)}; a number or a list is possible")
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain_value(key, item) for item in value]
    return value


def _unknown(kind: str, thing: Any, known: Iterable[str]) -> str:
    return (
        f"there is no {kind} here that is the same as {_described(thing)}; the names are "
        f"{', '.join(sorted(known))}{_SCRIPT_HINT}"
    )


def _described(thing: Any) -> str:
    name = getattr(thing, "__qualname__", None)
    return name if name else f"{thing!r}" if len(repr(thing)) < 80 else type(thing).__name__
