"""Hand-written networks of linear layers: chains, sharing, experts, depth."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.entry import ZooEntry, flags, floats, inputs, integers


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 64),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(inplace=True),
        nn.Linear(64, 32),
        nn.LayerNorm(32),
        nn.GELU(),
        nn.Linear(32, 32),
        nn.SiLU(),
        nn.Linear(32, 5),
    )


class DeepNarrow(nn.Module):
    """About 200 small operators in one chain."""

    def __init__(self, width: int = 8, depth: int = 66) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class ResidualThenIdentity(nn.Module):
    """A residual chain whose last registered module computes nothing."""

    def __init__(self, width: int = 24, depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
            for _ in range(depth)
        )
        self.head = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Siamese(nn.Module):
    """One tower applied to two inputs; the distance and both embeddings come out."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)
        )
        self.verdict = nn.Linear(8, 1)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b = self.tower(left), self.tower(right)
        return self.verdict((a - b).abs()), a, b


class TiedAutoencoder(nn.Module):
    """The last layer reads the first layer's weight, transposed, through the same parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(20, 12)
        self.middle = nn.Sequential(
            nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12)
        )
        self.decode_bias = nn.Parameter(torch.zeros(20))

    def forward(self, x: Tensor) -> Tensor:
        code = self.middle(torch.tanh(self.encode(x)))
        return F.linear(code, self.encode.weight.t(), self.decode_bias)


class SharedEnds(nn.Module):
    """First and last layer are the same module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.body = nn.Sequential(
            nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16)
        )
        self.last = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self.first(x)))


class DenseExperts(nn.Module):
    """Every expert runs; a softmax gate weighs them."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.stem = nn.Linear(12, width)
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
            for _ in range(experts)
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = torch.relu(self.stem(x))
        weights = self.gate(x).softmax(-1)
        mixed = torch.stack([expert(x) for expert in self.experts], dim=1)
        return {"y": self.head(torch.einsum("be,bew->bw", weights, mixed)), "gate": weights}


class TopTwoExperts(nn.Module):
    """A sparse gate written with dense operators: top-k, softmax, scatter."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.stem = nn.Linear(12, width)
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 24) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, 24, width) * 0.2)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        scores = self.gate(x)
        best, which = scores.topk(2, dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, which, best.softmax(-1))
        hidden = F.gelu(torch.einsum("bi,eij->bej", x, self.up))
        return self.head(torch.einsum("be,bej,eji->bi", weights, hidden, self.down))


class RoutedExperts(nn.Module):
    """Each token goes to one expert: intermediate sizes that depend on the data."""

    def __init__(self, width: int = 16, experts: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(12, width)
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.head = nn.Linear(width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.relu(self.stem(tokens.flatten(0, 1)))
        weight, choice = self.gate(x).softmax(-1).max(dim=-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = torch.where(choice.squeeze(-1) == number)[0]
            mixed = mixed.index_add(0, rows, expert(x[rows]) * weight[rows])
        return self.head(x + mixed).unflatten(0, tokens.shape[:2])


class SplitExperts(nn.Module):
    """Tokens in the order of their experts, divided by numbers that the data make."""

    def __init__(self, width: int = 16, experts: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(12, width)
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.head = nn.Linear(width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.relu(self.stem(tokens.flatten(0, 1)))
        weight, choice = self.gate(x).softmax(-1).max(dim=-1)
        order = choice.argsort(stable=True)
        counts = F.one_hot(choice, len(self.experts)).sum(0).tolist()
        parts = x[order].split(counts)
        mixed = torch.cat([e(part) for e, part in zip(self.experts, parts, strict=True)])
        mixed = torch.zeros_like(x).index_add(0, order, mixed) * weight.unsqueeze(-1)
        return self.head(x + mixed).unflatten(0, tokens.shape[:2])


class BagOfWords(nn.Module):
    """``EmbeddingBag`` over a fixed number of words, beside a plain embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(60, 16, mode="mean")
        self.topic = nn.Embedding(5, 16, padding_idx=0)
        self.body = nn.Sequential(
            nn.Linear(32, 32), nn.PReLU(), nn.Linear(32, 16), nn.Softplus(), nn.Linear(16, 4)
        )

    def forward(self, words: Tensor, topic: Tensor) -> Tensor:
        return self.body(torch.cat([self.words(words), self.topic(topic)], dim=-1))


class ManyInputs(nn.Module):
    """Positional and keyword inputs of float, integer and boolean type."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(10, 16)
        self.table = nn.Embedding(20, 16)
        self.weigh = nn.Bilinear(16, 16, 16)
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 2)

    def forward(
        self, x: Tensor, ids: Tensor, mask: Tensor, *, weight: Tensor, count: Tensor
    ) -> Tensor:
        words = self.table(ids).masked_fill(~mask.unsqueeze(-1), 0.0)
        words = words.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        mixed = self.weigh(self.dense(x), words) * weight
        mixed = torch.where(count.unsqueeze(-1) > 3, mixed, -mixed)
        return self.head(self.body(mixed) + mixed)


ENTRIES = (
    ZooEntry("mlp", mlp, inputs(floats(20))),
    ZooEntry("deep_narrow", DeepNarrow, inputs(floats(8))),
    ZooEntry("residual_identity", ResidualThenIdentity, inputs(floats(24))),
    ZooEntry("siamese", Siamese, inputs(floats(16), floats(16))),
    ZooEntry("tied_autoencoder", TiedAutoencoder, inputs(floats(20))),
    ZooEntry("shared_ends", SharedEnds, inputs(floats(16))),
    ZooEntry("dense_experts", DenseExperts, inputs(floats(12))),
    ZooEntry("top_two_experts", TopTwoExperts, inputs(floats(12))),
    ZooEntry("split_experts", SplitExperts, inputs(floats(5, 12))),
    ZooEntry("routed_experts", RoutedExperts, inputs(floats(5, 12))),
    ZooEntry("bag_of_words", BagOfWords, inputs(integers(60, 9), integers(5))),
    ZooEntry(
        "many_inputs",
        ManyInputs,
        inputs(floats(10), integers(20, 6), flags(6), weight=floats(16), count=integers(8)),
    ),
)
