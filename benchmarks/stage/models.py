"""The models of the stage benchmark: compute-bound and overhead-bound ones."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.body(x))


def cnn() -> nn.Module:
    blocks = [Block(64) for _ in range(4)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder-only transformer with tied embeddings."""

    def __init__(
        self, layers: int = 12, width: int = 256, heads: int = 8, vocabulary: int = 512
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(256, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.layers(x)))


def small_gpt() -> nn.Module:
    return GPT(layers=6, width=64, heads=4)


def tiny_mlp() -> nn.Module:
    """Forty operators on next to no data: nothing but call overhead."""
    layers: list[nn.Module] = []
    for _ in range(20):
        layers += [nn.Linear(16, 16), nn.ReLU()]
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Tensor]


CASES = (
    Case("CNN, 4 residual blocks", cnn, lambda: torch.randn(8, 3, 32, 32)),
    Case("GPT, 12 layers of 256", GPT, lambda: torch.randint(0, 512, (4, 128))),
    Case("GPT, 6 layers of 64, overhead-bound", small_gpt, lambda: torch.randint(0, 512, (2, 16))),
    Case("MLP, 40 tiny operators", tiny_mlp, lambda: torch.randn(4, 16)),
)
