"""The model and data that all contestants of this benchmark train, and their step."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpt import Block

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH = 512, 384, 6, 6, 128
ROWS = 16
WARM_UP, MEASURED = 3, 8
"""Batches; the first ones fill caches and pipelines and are not counted."""


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        where = torch.arange(words.shape[1], device=words.device)
        return self.words(words) + self.positions(where)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.words = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words(self.norm(x))


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Embedding(), *(Block(WIDTH, HEADS) for _ in range(LAYERS)), Head())


def batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator) for _ in range(count)]


def loss_of(outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch.roll(-1, 1).flatten())


def make_optimizer(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-4)  # type: ignore[arg-type]


@dataclass
class Pace:
    """Batches per second over those that are counted."""

    started: float = 0.0
    ended: float = 0.0
    done: int = 0

    def batch_done(self, now: float | None = None) -> None:
        self.done += 1
        now = time.monotonic() if now is None else now
        if self.done == WARM_UP:
            self.started = now
        if self.done == WARM_UP + MEASURED:
            self.ended = now

    @property
    def batches_per_second(self) -> float:
        return MEASURED / (self.ended - self.started)


def train_alone(threads: int) -> float:
    """One process; batches per second."""
    torch.set_num_threads(threads)
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    pace = Pace()
    for batch in batches(WARM_UP + MEASURED):
        optimizer.zero_grad()
        loss_of(model(batch), batch).backward()
        optimizer.step()
        pace.batch_done()
    return pace.batches_per_second
