"""A character GPT on text that ships with Python."""

import pydoc_data.topics

import torch
from torch import nn

WIDTH, LAYERS, HEADS, LENGTH, ROWS = 64, 8, 4, 64, 16


def text() -> tuple[torch.Tensor, int]:
    joined = "\n".join(pydoc_data.topics.topics.values())
    letters = sorted(set(joined))
    index = {letter: number for number, letter in enumerate(letters)}
    return torch.tensor([index[letter] for letter in joined]), len(letters)


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


class CharGPT(nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.words = nn.Embedding(letters, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.positions(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(count: int, seed: int = 1) -> list[torch.Tensor]:
    """Rows of LENGTH + 1 letters: inputs, and the same one letter later."""
    letters, _ = text()
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(letters) - LENGTH - 1, (count, ROWS), generator=generator)
    return [torch.stack([letters[s : s + LENGTH + 1] for s in row]) for row in starts]


def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())
