"""What a zoo entry is, and the small vocabulary in which entries are written.

Knows nothing about any particular model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
TensorMaker = Callable[[int], Tensor]


def output_leaves(output: Any) -> Iterator[Any]:
    """The leaves of a model output, in a fixed order.

    Descends into mappings (``ModelOutput`` included), tuples, lists and dataclasses, registered
    as pytrees or not.
    """
    if isinstance(output, Mapping):
        children = list(output.values())
    elif isinstance(output, (tuple, list)):
        children = list(output)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        children = [getattr(output, field.name) for field in dataclasses.fields(output)]
    elif hasattr(output, "__dict__") and not isinstance(output, Tensor):
        children = list(vars(output).values())
    else:
        yield output
        return
    for child in children:
        yield from output_leaves(child)


def output_loss(output: Any) -> Tensor:
    """A scalar whose gradient reaches every floating or complex tensor of the output.

    Each element has its own weight, so that an exchange of elements or of whole tensors shows;
    the square makes the gradient depend on the output's value.
    """
    total = torch.zeros(())
    for position, leaf in enumerate(output_leaves(output)):
        if not isinstance(leaf, Tensor):
            continue
        if leaf.is_complex():
            leaf = torch.view_as_real(leaf)
        if not leaf.is_floating_point():
            continue
        values = leaf.float().reshape(-1)
        weights = torch.linspace(0.5, 1.5, values.numel(), device=values.device)
        weights = weights * (1 + 0.1 * position)
        total = total + (weights * values + 0.1 * values.square()).mean()
    return total


@dataclasses.dataclass(frozen=True)
class ZooEntry:
    """One model of the zoo with what a test needs to run, cut and compare it."""

    name: str
    build: Callable[[], nn.Module]
    #: batch size -> example (args, kwargs); draws from torch's global generator only
    inputs: Callable[[int], Inputs]
    #: model output -> scalar that depends on every floating tensor in it
    loss: Callable[[Any], Tensor] = output_loss
    #: the library the model comes from, or "handwritten"
    family: str = "handwritten"
    #: slow on one core: run it outside the quick suite
    heavy: bool = False
    #: the numbers of stages worth trying
    stages: tuple[int, ...] = (2, 3, 5)
    #: a batch size other than the captured one that must work too
    other_batch: int = 3


def floats(*shape: int) -> TensorMaker:
    """Normally distributed values of shape (batch, *shape)."""
    return lambda batch: torch.randn(batch, *shape)


def integers(high: int, *shape: int, low: int = 0) -> TensorMaker:
    """Integers in [low, high) of shape (batch, *shape)."""
    return lambda batch: torch.randint(low, high, (batch, *shape))


def flags(*shape: int) -> TensorMaker:
    """Booleans of shape (batch, *shape), about two thirds of them true."""
    return lambda batch: torch.rand(batch, *shape) > 1 / 3


def right_padding(length: int, valid: int) -> TensorMaker:
    """An integer attention mask of shape (batch, length): ``valid`` ones, then zeros."""
    return lambda batch: (torch.arange(length) < valid).long().expand(batch, length).clone()


def constant(value: Any) -> Callable[[int], Any]:
    """The same value whatever the batch size."""
    return lambda batch: value


def inputs(*args: Callable[[int], Any], **kwargs: Callable[[int], Any]) -> Callable[[int], Inputs]:
    """Combine one maker per argument into a maker of (args, kwargs)."""

    def make(batch: int) -> Inputs:
        positional = tuple(maker(batch) for maker in args)
        return positional, {name: maker(batch) for name, maker in kwargs.items()}

    return make
