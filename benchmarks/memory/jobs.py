"""Models of three kinds, large enough that their tensors are what a process's memory is made of."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Job:
    make_model: Callable[[], nn.Module]
    make_batch: Callable[[], torch.Tensor]
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    stages: int
    batches: int = 12
    ram_gb: float = 8.0
    """Of every provider."""


def transformer() -> nn.Module:
    """Parameters and activations in equal parts."""
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(640, 8, 2560, dropout=0.1, batch_first=True) for _ in range(8)
    ]
    return nn.Sequential(nn.Embedding(2000, 640), *layers, nn.Linear(640, 2000))


def words() -> torch.Tensor:
    return torch.randint(0, 2000, (8, 128), generator=torch.Generator().manual_seed(0))


def next_word(outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch.roll(-1, 1).flatten())


def wide() -> nn.Module:
    """Many parameters, hardly any activations."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for here, there in itertools.pairwise([1024, 2048, 2048, 2048, 2048, 1024]):
        layers += [nn.Linear(here, there), nn.ReLU()]
    return nn.Sequential(*layers)


def convolutional() -> nn.Module:
    """Few parameters, large activations; BatchNorm keeps batches whole."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(5):
        layers += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def small() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU()]
    return nn.Sequential(*layers)


def square(outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return outputs.square().mean()


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


JOBS = {
    "transformer, 42 M parameters": Job(transformer, words, next_word, stages=3, batches=8),
    "wide MLP, 17 M parameters": Job(wide, lambda: rows(64, 1024), square, stages=2),
    "long run, 2,000 steps": Job(small, lambda: rows(16, 128), square, stages=3, batches=1000),
    "CNN, 32 images of 96x96": Job(convolutional, lambda: rows(32, 3, 96, 96), square, stages=3),
    "CNN in 0.4 GB": Job(convolutional, lambda: rows(32, 3, 96, 96), square, stages=3, ram_gb=0.4),
}
