"""Hand-written networks around less common operators: indexing, windows, sampling, FFT, loops."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.entry import ZooEntry, flags, floats, inputs, integers


class MaskedPooling(nn.Module):
    """Einsum scores, a masked softmax, gather by index, cumulative sum, top-k."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.query = nn.Parameter(torch.randn(3, width))
        self.mix = nn.Linear(width, width)
        self.rank = nn.Linear(width, 1)
        self.head = nn.Linear(5 * width, 4)

    def forward(self, x: Tensor, valid: Tensor, pick: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        scores = torch.einsum("qw,blw->bql", self.query, x)
        scores = scores.masked_fill(~valid.unsqueeze(1), -1e4)
        pooled = torch.einsum("bql,blw->bqw", scores.softmax(dim=-1), self.mix(x))
        picked = x.gather(1, pick[:, None, None].expand(-1, 1, x.shape[-1]))
        running = x.cumsum(dim=1)
        best = self.rank(running).squeeze(-1).topk(2, dim=1)
        # torch.take_along_dim would do the same, but capture bakes the batch size into it.
        top = running.gather(1, best.indices.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        top = (top * best.values.unsqueeze(-1)).sum(dim=1, keepdim=True)
        return self.head(torch.cat([pooled, picked, top], dim=1).flatten(1))


class MessagePassing(nn.Module):
    """A graph network: messages gathered along edges, summed by ``scatter_add``."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.message = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.update = nn.GRUCell(width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        x = torch.relu(self.embed(nodes))
        width = x.shape[-1]
        for message in self.message:
            ends = [
                x.gather(1, end.unsqueeze(-1).expand(-1, -1, width)) for end in (source, target)
            ]
            sent = torch.relu(message(torch.cat(ends, dim=-1)))
            where = target.unsqueeze(-1).expand(-1, -1, width)
            received = torch.zeros_like(x).scatter_add(1, where, sent)
            x = self.update(received.flatten(0, 1), x.flatten(0, 1)).view_as(x)
        return self.head(x.amax(dim=1))


class ShiftedWindows(nn.Module):
    """Swin-like cyclic shift, window partition by unfold, fold back."""

    def __init__(self, width: int = 8, window: int = 4) -> None:
        super().__init__()
        self.window = window
        self.stem = nn.Conv2d(3, width, 1)
        size = width * window * window
        self.local = nn.ModuleList(nn.Linear(size, size) for _ in range(2))
        self.norm = nn.GroupNorm(2, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.local:
            shifted = x.roll((2, 2), dims=(2, 3))
            windows = F.unfold(shifted, self.window, stride=self.window).transpose(1, 2)
            windows = torch.relu(layer(windows)).transpose(1, 2)
            folded = F.fold(windows, x.shape[-2:], self.window, stride=self.window)
            x = x + folded.roll((-2, -2), dims=(2, 3))
        return self.head(self.norm(x).flatten(2).mean(dim=-1))


class SpatialTransformer(nn.Module):
    """Predicts an affine map and samples the input image through it."""

    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Sequential(
            nn.Conv2d(1, 4, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 6)
        )
        self.features = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 4 * 4, 5)
        identity = torch.tensor([1.0, 0, 0, 0, 1, 0])
        self.register_buffer("identity", identity, persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        theta = (0.1 * self.locate(x) + self.get_buffer("identity")).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        x = F.grid_sample(x, grid, align_corners=False)
        x = F.adaptive_max_pool2d(torch.relu(self.norm(self.features(x))), 4)
        return self.head(x.flatten(1)), theta


class FourierMixer(nn.Module):
    """Filters learned in the frequency domain: rfft, complex product, irfft."""

    def __init__(self, length: int = 16, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.filters = nn.ParameterList(
            0.3 * torch.randn(length // 2 + 1, width, 2) for _ in range(depth)
        )
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        for weights, mix in zip(self.filters, self.mix, strict=True):
            spectrum = torch.fft.rfft(x, dim=1, norm="ortho") * torch.view_as_complex(weights)
            x = x + F.gelu(mix(torch.fft.irfft(spectrum, n=x.shape[1], dim=1, norm="ortho")))
        return self.head(x), spectrum.abs()


class Capsules(nn.Module):
    """Routing by agreement: a Python loop that refines coupling coefficients."""

    def __init__(self, inside: int = 6, outside: int = 4, size: int = 8, rounds: int = 3) -> None:
        super().__init__()
        self.inside, self.size, self.rounds = inside, size, rounds
        self.primary = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, inside * size))
        self.votes = nn.Parameter(0.2 * torch.randn(inside, outside, size, size))
        self.decode = nn.Sequential(nn.Linear(outside * size, 32), nn.ReLU(), nn.Linear(32, 20))

    @staticmethod
    def squash(x: Tensor) -> Tensor:
        norm = x.square().sum(dim=-1, keepdim=True)
        return x * norm.sqrt() / (1 + norm)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        capsules = self.squash(self.primary(x).unflatten(-1, (self.inside, self.size)))
        votes = torch.einsum("bid,iode->bioe", capsules, self.votes)
        logits = torch.zeros_like(votes[..., 0])
        for _ in range(self.rounds):
            coupling = logits.softmax(dim=-1)
            digits = self.squash(torch.einsum("bio,bioe->boe", coupling, votes))
            logits = logits + torch.einsum("bioe,boe->bio", votes, digits)
        return digits.norm(dim=-1), self.decode(digits.flatten(1))


class InPlaceWrites(nn.Module):
    """Slices and views of one tensor written in place after its creation."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Linear(6, width), nn.ReLU(inplace=True), nn.Linear(width, width)
        )
        self.left, self.right = nn.Linear(width, width // 2), nn.Linear(width, width // 2)
        self.body, self.head = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        canvas = x.new_zeros(x.shape)
        half = x.shape[-1] // 2
        canvas[:, :half] = self.left(x)
        canvas[:, half:].copy_(self.right(x)).mul_(2.0)
        y = self.body(canvas)
        y += x
        y.clamp_(-3, 3)
        return self.head(y)


ENTRIES = (
    ZooEntry("masked_pooling", MaskedPooling, inputs(floats(7, 6), flags(7), integers(7))),
    ZooEntry(
        "message_passing", MessagePassing, inputs(floats(6, 5), integers(6, 9), integers(6, 9))
    ),
    ZooEntry("shifted_windows", ShiftedWindows, inputs(floats(3, 8, 8))),
    ZooEntry("spatial_transformer", SpatialTransformer, inputs(floats(1, 16, 16))),
    ZooEntry("fourier_mixer", FourierMixer, inputs(floats(16, 4))),
    ZooEntry("capsules", Capsules, inputs(floats(20))),
    ZooEntry("in_place_writes", InPlaceWrites, inputs(floats(6))),
)
