"""The user's model, borrowed for a trial and given back exactly as it was."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ravnest.planning.capture.attributes import containers_restored, plain_tensors
from ravnest.stage.graph import Mode


@contextlib.contextmanager
def switched_to(model: nn.Module, mode: Mode) -> Iterator[Callable[[Mode], None]]:
    """The model in train or eval mode, with its own flags put back afterwards; yields what
    switches it again.

    Modules that arrive frozen with `.eval()` inside a model in training mode stay frozen, and so do
    those that the model's own `train()` freezes. A model that arrives in evaluation mode is
    switched as a whole.
    """
    flags = {module: module.training for module in model.modules()}
    frozen = frozen_modules(model)

    def switch(mode: Mode) -> None:
        # Called even if it is in this mode already: a model may do more in train() than set flags.
        model.train(mode == "train")
        for module in frozen.values():
            module.training = False

    switch(mode)
    configs = [(config, dict(vars(config))) for config in _caching_configs(model)]
    try:
        for config, _ in configs:
            config.use_cache = False
        yield switch
    finally:
        for config, before in configs:
            vars(config).clear()
            vars(config).update(before)
        for module, flag in flags.items():
            module.training = flag


def frozen_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that evaluate inside a model that trains."""
    if not model.training:
        return {}
    return {path: module for path, module in model.named_modules() if not module.training}


def changes_on_switching(model: nn.Module) -> bool:
    """Does a module do something of its own when it is switched to another mode?"""
    plain = (nn.Module.train, nn.Module.eval)
    return any((type(m).train, type(m).eval) != plain for m in model.modules())


def _caching_configs(model: nn.Module) -> list[Any]:
    """transformers-style configurations that would make the model return its key/value cache."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    return [config for config in configs.values() if getattr(config, "use_cache", None) is True]


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Buffers, plain attributes and torch's random state as they were before."""
    # Registries too (buffers, parameters, hooks): some libraries install hooks at the first call
    # and remember in an attribute that they did; undoing one without the other doubles the hooks.
    registries: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (registry, dict(registry))
        for module in model.modules()
        for registry in vars(module).values()
        if isinstance(registry, dict)
    ]
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    with torch.random.fork_rng(devices=[]), containers_restored(model):
        try:
            yield
        finally:
            for registry, entries in registries:
                registry.clear()
                registry.update(entries)
            for module, before in attributes:
                _restore(module, before)


def _restore(module: nn.Module, before: dict[str, Any]) -> None:
    current = vars(module)
    for name in [name for name in current if name not in before]:
        del current[name]
    current.update(before)


@contextlib.contextmanager
def registered_restored(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers put back afterwards, those replaced as well as those written to.

    Parameters too, because some models clamp or average them in their forward.
    """
    registries: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (registry, dict(registry))
        for module in model.modules()
        for registry in (vars(module)["_parameters"], vars(module)["_buffers"])
    ]
    with _written_back((*model.parameters(), *model.buffers())):
        try:
            yield
        finally:
            for registry, entries in registries:
                registry.update(entries)


@contextlib.contextmanager
def values_restored(model: nn.Module) -> Iterator[None]:
    """Values of all the model's tensors put back afterwards: a trial run is not training."""
    with _written_back(plain_tensors(model)), registered_restored(model):
        yield


@contextlib.contextmanager
def _written_back(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    saved = [(tensor, tensor.detach().clone()) for tensor in tensors if not tensor.is_meta]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in saved:
                # Sparse tensors cannot be compared.
                if tensor.layout is not torch.strided or not torch.equal(tensor, value):
                    tensor.copy_(value)
