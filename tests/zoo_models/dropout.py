"""Switch dropout off without leaving train mode.

Comparing two runs of a model in train mode needs the same numbers twice; ``eval()`` would change
BatchNorm too. Probabilities are found by name, because every library stores them its own way: a
``Dropout`` module's ``p``, an attribute such as ``attention_dropout``, a config field such as
``hidden_dropout_prob``. A probability written as a literal inside ``forward`` is out of reach.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)

# Attributes that hold the probability in modules whose class name says "drop":
# nn.Dropout*, StochasticDepth, DropPath, PatchDropout, DropBlock.
_PROBABILITY_NAMES = frozenset({"p", "prob", "drop_prob"})


def without_dropout(model: Module) -> Module:
    """Set every dropout, drop-path and layer-drop probability of the model to 0, in place."""
    for module in model.modules():
        _clear_probabilities(module, anything=_is_dropout(module))
        config = getattr(module, "config", None)
        if config is not None:
            _clear_config(config)
    return model


def _is_dropout(module: nn.Module) -> bool:
    class_name = type(module).__name__.lower()
    return "drop" in class_name or "stochasticdepth" in class_name


def _clear_probabilities(holder: Any, anything: bool = False) -> None:
    for name, value in list(vars(holder).items()):
        named = "drop" in name.lower() or (anything and name in _PROBABILITY_NAMES)
        if named and isinstance(value, float):
            setattr(holder, name, 0.0)


def _clear_config(config: Any) -> None:
    """Clear a configuration object and those nested in it (text and vision towers)."""
    if not hasattr(config, "__dict__"):
        return
    _clear_probabilities(config)
    for name, value in list(vars(config).items()):
        if name.endswith("_config"):
            _clear_config(value)
