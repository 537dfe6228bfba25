"""A character GPT on text that ships with Python."""

import pydoc_data.topics
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpt import Block

WIDTH, LAYERS, HEADS, LENGTH, ROWS = 64, 8, 4, 64, 16


def text() -> tuple[torch.Tensor, int]:
    joined = "\n".join(pydoc_data.topics.topics.values())
    letters = sorted(set(joined))
    index = {letter: number for number, letter in enumerate(letters)}
    return torch.tensor([index[letter] for letter in joined]), len(letters)


class CharGPT(nn.Module):
    def __init__(self, letters: int, width: int = WIDTH) -> None:
        super().__init__()
        self.words = nn.Embedding(letters, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, HEADS) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.positions(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())
