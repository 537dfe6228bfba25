"""Models of three kinds, large enough that their tensors are what a process's memory is made of."""

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipeline"))

import job as gpt


@dataclass(frozen=True)
class Job:
    make_model: Callable[[], nn.Module]
    make_batch: Callable[[], torch.Tensor]
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    stages: int
    batches: int = 12


def wide() -> nn.Module:
    """Many parameters, hardly any activations."""
    torch.manual_seed(0)
    widths = [1024, 2048, 2048, 2048, 2048, 1024]
    layers: list[nn.Module] = []
    for here, there in itertools.pairwise(widths):
        layers += [nn.Linear(here, there), nn.ReLU()]
    return nn.Sequential(*layers)


def convolutional() -> nn.Module:
    """Few parameters, large activations; BatchNorm keeps batches whole."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(5):
        layers += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def square(outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return outputs.square().mean()


JOBS = {
    "GPT, 11 M parameters": Job(gpt.make_model, lambda: gpt.batches(1)[0], gpt.loss_of, stages=3),
    "wide MLP, 17 M parameters": Job(
        wide,
        lambda: torch.randn(64, 1024, generator=torch.Generator().manual_seed(0)),
        square,
        stages=2,
    ),
    "CNN, 32 images of 96x96": Job(
        convolutional, lambda: torch.ones(32, 3, 96, 96), square, stages=3
    ),
}
