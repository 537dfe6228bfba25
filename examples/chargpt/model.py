"""A GPT over letters: what comes next, at every position of a window of text."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Every letter looks at those before it, then thinks for itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.look_norm = nn.LayerNorm(width)
        self.look = nn.Linear(width, 3 * width)
        self.looked = nn.Linear(width, width)
        self.think = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        asked = self.look(self.look_norm(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = asked.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, …)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.looked(seen.transpose(1, 2).reshape(batch, length, width))
        thought: Tensor = self.think(x)
        return x + thought


class CharGpt(nn.Module):
    """(batch, length) letters to (batch, length, letters) scores of the next one."""

    def __init__(self, letters: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Parameter(torch.randn(length, width) * width**-0.5)
        self.blocks = nn.ModuleList(Block(width, heads=4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters, bias=False)
        nn.init.normal_(self.letters.weight, std=width**-0.5)
        # One table reads and writes letters. Reading is the first provider's work and writing the
        # last one's, which has a copy that follows the original.
        self.head.weight = self.letters.weight

    def forward(self, text: Tensor) -> Tensor:
        x = self.letters(text) + self.places
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x))
        return scores
