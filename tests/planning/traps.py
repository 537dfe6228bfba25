"""Small models to set traps with, and the comparison that shows whether one has snapped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import compare, even_cuts, load_stages
from torch import Tensor, nn

from ravnest.planning.study import Study, study


def linear_inputs(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(rows, 6),), {}


def total(output: Any) -> Tensor:
    return sum((leaf.square().sum() for leaf in _floats(output)), torch.zeros(()))


def _floats(output: Any) -> list[Tensor]:
    leaves: list[Tensor] = []
    if isinstance(output, Tensor):
        leaves = [output]
    elif isinstance(output, dict):
        leaves = [leaf for item in output.values() for leaf in _floats(item)]
    elif isinstance(output, tuple | list):
        leaves = [leaf for item in output for leaf in _floats(item)]
    return [leaf for leaf in leaves if leaf.is_floating_point()]


def assert_equal_in_stages(
    model: nn.Module,
    folder: Path,
    inputs: Callable[[int], Any] = linear_inputs,
    stages: tuple[int, ...] = (2, 3),
    rows: tuple[int, ...] = (4, 3),
) -> Study:
    args, kwargs = inputs(4)
    studied = study(model, args, kwargs)
    for count in stages:
        pipeline = load_stages(studied, even_cuts(studied, count), folder)
        errors = compare(model, pipeline, studied, inputs, total, rows)
        assert errors.worst() <= 1e-5, errors
    return studied


class Doubling(torch.autograd.Function):
    """Writes to its input, which is more than a graph can hold of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


def chain_of(middle: nn.Module) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(6, 6), middle, nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            # The sum makes this no plain chain, so module boundaries are no way out.
            return self.last(self.middle(self.first(x))) + x

    return Net()


class Apply(nn.Module):
    """Applies any function, so that a test can be one line."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class TwoWays(nn.Module):
    """Not a chain, so there is no way around the capture."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(6, 6), layer, nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + self.layer(x))
