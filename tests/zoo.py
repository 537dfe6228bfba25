"""A zoo of small models: every kind of network that has to survive being cut into stages.

``ZOO`` maps a name to a :class:`ZooEntry`: how to build the model, how to make inputs for a batch
size, and a loss. Hand-written entries have plain names; ``tv_``, ``timm_`` and ``hf_`` mark models
built by torchvision, timm and transformers. All are untrained and small: a forward and backward
pass takes well below a second on one core, except where ``heavy`` says otherwise.

``NOT_CAPTURABLE`` lists models that ``torch.export`` cannot follow, with the reason; their inputs
are in ``NOT_CAPTURABLE_ENTRIES``.

Seed torch before building, before making inputs and before running: everything random here
(initial weights, inputs, dropout, the noise of ``vae``) comes from torch's global generator.

Three entries need care from whoever captures or cuts them. ``dataclass_output`` returns a class
that is no pytree, so its output has to be flattened first. ``variable_keywords`` takes inputs
through ``**extra``, for which ``torch.export`` (2.13) accepts no dynamic shapes, so its inputs have
to be flattened too. ``routed_experts`` has intermediate tensors whose sizes depend on the data.

This file knows nothing about Ravnest. The directory it lies in must be importable (``tests`` on
``sys.path``, as pytest arranges).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from zoo_models import (
    attention,
    convolutional,
    feedforward,
    operators,
    recurrent,
    refused,
    stateful,
    structured,
    timm_models,
    torchvision_models,
    transformers_media,
    transformers_text,
)
from zoo_models.dropout import without_dropout
from zoo_models.entry import ZooEntry

__all__ = [
    "ILL_CONDITIONED",
    "NOT_CAPTURABLE",
    "NOT_CAPTURABLE_ENTRIES",
    "ZOO",
    "ZooEntry",
    "without_dropout",
]

_FILES = (
    feedforward,
    convolutional,
    recurrent,
    attention,
    structured,
    stateful,
    operators,
    torchvision_models,
    timm_models,
    transformers_text,
    transformers_media,
)


def _by_name(entries: list[ZooEntry]) -> dict[str, ZooEntry]:
    named = {entry.name: entry for entry in entries}
    assert len(named) == len(entries), "two zoo entries share a name"
    return named


ZOO: dict[str, ZooEntry] = _by_name([entry for file in _FILES for entry in file.ENTRIES])

#: BatchNorm over a handful of values blows up the last bit of a sum; compare these in float64
ILL_CONDITIONED = {"dilated_pyramid", "tv_regnet", "tv_efficientnet", "timm_efficientnet"}

NOT_CAPTURABLE_ENTRIES: dict[str, ZooEntry] = _by_name([entry for entry, _ in refused.REFUSED])

NOT_CAPTURABLE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    entry.name: (entry.build, reason) for entry, reason in refused.REFUSED
}
