"""Hand-written networks with state, special regions or unusual parameters.

Buffers that change in forward, parameters that are frozen, unused or computed from others,
regions under no_grad, autocast or activation checkpointing, noise drawn in forward, functions
with a backward of their own.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from zoo_models.entry import ZooEntry, floats, inputs

_WIDTH = 16


def _layers(depth: int, width: int = _WIDTH) -> nn.Sequential:
    """``depth`` linear layers with a Tanh behind each."""
    return nn.Sequential(
        *(module for _ in range(depth) for module in (nn.Linear(width, width), nn.Tanh()))
    )


class UnusedAndFrozen(nn.Module):
    """An unused layer, an unused buffer, frozen layers at both ends, a detached output."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen_stem = _layers(1).requires_grad_(False)
        self.body = _layers(4)
        self.never_called = nn.Linear(3, 3)
        self.register_buffer("never_read", torch.arange(4.0))
        self.frozen_bias = nn.Linear(_WIDTH, _WIDTH)
        self.frozen_bias.bias.requires_grad_(False)
        self.head = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(self.frozen_stem(x))
        return self.head(self.frozen_bias(hidden)), hidden.detach()


class FrozenBatchNorm(nn.Module):
    """One BatchNorm was put into eval mode after construction, as users do; the other trains.

    A call of ``train()`` on the model ends that, so a capture has to take the flags as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)
        nn.init.uniform_(self.norm1.get_buffer("running_mean"))
        nn.init.uniform_(self.norm1.get_buffer("running_var"), 0.5, 2.0)
        self.norm1.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.norm1(self.conv1(x)))
        x = torch.relu_(self.norm2(self.conv2(x)))
        return self.head(x.mean(dim=(2, 3)))


class PinnedBatchNorm(FrozenBatchNorm):
    """The same, but ``train()`` keeps the first BatchNorm frozen."""

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.norm1.eval()
        return self


class NoGradRegion(nn.Module):
    """A frozen-by-context feature extractor in front, a centring constant in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.features = _layers(2)
        self.body = _layers(2)
        self.tail = _layers(2)
        self.head = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.features(x)
        x = self.body(x)
        with torch.no_grad():
            centre = self.body[0](x).mean(dim=-1, keepdim=True)
        return self.head(self.tail(x - centre))


class AutocastRegion(nn.Module):
    """The middle runs in bfloat16, with an inner region back in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.low = _layers(2), _layers(2)
        self.exact, self.mixed = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.tail, self.head = _layers(2), nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.low(x)
            with torch.autocast("cpu", enabled=False):
                x = self.exact(x.float())
            x = self.mixed(x)
        return self.head(self.tail(x.float()))


class MovingAverages(nn.Module):
    """One buffer reassigned, one written in place, one counted, each in train mode only."""

    ema: Tensor
    spread: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = _layers(2), _layers(2)
        self.head = nn.Linear(_WIDTH, 3)
        self.register_buffer("ema", torch.zeros(_WIDTH))
        self.register_buffer("spread", torch.ones(_WIDTH))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.training:
            self.ema = 0.9 * self.ema + 0.1 * x.detach().mean(dim=0)
            self.spread.mul_(0.9).add_(0.1 * x.detach().abs().amax(dim=0))
            self.steps += 1
        return self.head(self.body((x - self.ema) / self.spread))


class Parametrised(nn.Module):
    """Weights computed from other parameters: weight norm and orthogonal layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = weight_norm(nn.Conv1d(3, 8, 3, padding=1))
        self.normed = nn.ModuleList(weight_norm(nn.Linear(_WIDTH, _WIDTH)) for _ in range(3))
        self.rotate = orthogonal(nn.Linear(_WIDTH, _WIDTH), orthogonal_map="cayley")
        self.head = orthogonal(nn.Linear(_WIDTH, 3))  # of reflections, because it is not square

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv(x)).mean(dim=1)
        for layer in self.normed:
            x = torch.tanh(layer(x))
        return self.head(self.rotate(x))


class SpectrallyNormed(nn.Module):
    """Spectral norm updates its power-iteration vectors in place at every training step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(spectral_norm(nn.Linear(_WIDTH, _WIDTH)) for _ in range(4))
        self.head = nn.Linear(_WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


class Checkpointed(nn.Module):
    """Two of three blocks recompute their activations in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_layers(2) for _ in range(3))
        self.head = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        for block in list(self.blocks)[1:]:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x)


class VAE(nn.Module):
    """Noise drawn in forward in both modes: equal seeds must give equal outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(24, 6), nn.Linear(24, 6)
        self.decoder = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 20))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        sample = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return {"x": self.decoder(sample), "mean": mean, "log_variance": log_variance}


_ROWS = inputs(floats(_WIDTH))


class _Quantised(torch.autograd.Function):
    """Rounds to a learned step; gradients pass where nothing was clipped."""

    @staticmethod
    def forward(ctx, x: Tensor, step: Tensor, most: int) -> Tensor:
        ctx.save_for_backward(x, step)
        ctx.most = most
        return (x / step).round().clamp(-most, most) * step

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, step = ctx.saved_tensors
        scaled = x / step
        inside = scaled.abs() <= ctx.most
        error = torch.where(inside, scaled.round() - scaled, scaled.sign() * ctx.most)
        return grad * inside, (grad * error).sum().reshape(1), None


class OwnBackward(nn.Module):
    """Activations and a weight that are quantised in training."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
        self.steps = nn.ParameterList(torch.full((1,), 0.1) for _ in range(4))
        self.head = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer, step in zip(self.body, self.steps, strict=True):
            weight = _Quantised.apply(layer.weight, step, 7)
            x = torch.tanh(_Quantised.apply(nn.functional.linear(x, weight, layer.bias), step, 15))
        return self.head(x)


ENTRIES = (
    ZooEntry("own_backward", OwnBackward, _ROWS),
    ZooEntry("unused_and_frozen", UnusedAndFrozen, _ROWS),
    ZooEntry("frozen_batch_norm", FrozenBatchNorm, inputs(floats(3, 8, 8))),
    ZooEntry("pinned_batch_norm", PinnedBatchNorm, inputs(floats(3, 8, 8))),
    ZooEntry("no_grad_region", NoGradRegion, _ROWS),
    ZooEntry("autocast_region", AutocastRegion, _ROWS),
    ZooEntry("moving_averages", MovingAverages, _ROWS),
    ZooEntry("parametrised", Parametrised, inputs(floats(3, _WIDTH))),
    ZooEntry("spectrally_normed", SpectrallyNormed, _ROWS),
    ZooEntry("checkpointed", Checkpointed, _ROWS),
    ZooEntry("vae", VAE, inputs(floats(20))),
)
