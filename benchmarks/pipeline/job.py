"""The model and data that all contestants of this benchmark train, and their step."""

import time
from dataclasses import dataclass

import torch
from torch import nn

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH = 512, 384, 6, 6, 128
ROWS = 16
WARM_UP, MEASURED = 3, 8
"""Batches; the first ones fill caches and pipelines and are not counted."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


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
    return nn.Sequential(Embedding(), *(Block() for _ in range(LAYERS)), Head())


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
