"""Hand-written convolutional networks for images and signals."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.entry import ZooEntry, floats, inputs


class DigitsCNN(nn.Module):
    """8x8 digits; in-place ReLU, BatchNorm, both kinds of dropout, a view."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout2d(0.25)
        self.fc1, self.fc2 = nn.Linear(32 * 4 * 4, 64), nn.Linear(64, 10)
        self.head_dropout = 0.5

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm1(self.conv1(x)))
        x = self.act(self.norm2(self.conv2(x)))
        x = self.drop(F.max_pool2d(x, 2)).view(x.size(0), -1)
        x = F.dropout(self.act(self.fc1(x)), self.head_dropout, self.training)
        return F.log_softmax(self.fc2(x), dim=1)


def _double_conv(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Skip connections across the whole depth, concatenated after interpolation."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(
            _double_conv(i, o) for i, o in zip([3, *widths], widths, strict=False)
        )
        self.bottom = _double_conv(4 * width, 8 * width)
        self.up = nn.ModuleList(_double_conv(3 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for block, skip in zip(self.up, reversed(skips), strict=True):
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = block(torch.cat([x, skip], dim=1))
        return self.head(x)


class DilatedPyramid(nn.Module):
    """DeepLab-like: parallel dilations over deep features, joined with a shallow skip."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.shallow = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(inplace=True))
        self.deep = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.Hardswish()
        )
        self.branches = nn.ModuleList(
            nn.Conv2d(2 * width, width, 3, padding=rate, dilation=rate) for rate in (1, 2, 3)
        )
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(2 * width, width, 1))
        self.project = nn.Conv2d(4 * width, width, 1)
        self.head = nn.Conv2d(2 * width, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        shallow = self.shallow(x)
        deep = self.deep(shallow)
        parts = [branch(deep) for branch in self.branches]
        parts.append(self.pooled(deep).expand_as(parts[0]))
        mixed = self.project(torch.cat(parts, dim=1))
        mixed = F.interpolate(mixed, size=shallow.shape[-2:], mode="nearest")
        logits = self.head(torch.cat([mixed, shallow], dim=1))
        return {"out": F.interpolate(logits, size=x.shape[-2:], mode="bilinear")}


class WaveNet(nn.Module):
    """Gated, causally padded, dilated convolutions with residual and skip sums."""

    def __init__(self, width: int = 12, layers: int = 5) -> None:
        super().__init__()
        self.dilations = [2**layer for layer in range(layers)]
        self.stem = nn.Conv1d(1, width, 1)
        self.gated = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 2, dilation=dilation) for dilation in self.dilations
        )
        self.residual = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in self.dilations)
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        skip = torch.zeros_like(x)
        for dilation, gated, residual in zip(
            self.dilations, self.gated, self.residual, strict=True
        ):
            value, gate = gated(F.pad(x, (dilation, 0))).chunk(2, dim=1)
            update = residual(torch.tanh(value) * torch.sigmoid(gate))
            x, skip = x + update, skip + update
        return self.head(skip)


class ConvAutoencoder1d(nn.Module):
    """Strided convolutions down, transposed convolutions up."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv1d(2, 8, 5, stride=2, padding=2),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv1d(8, 16, 5, stride=2, padding=2),
            nn.LeakyReLU(0.1, inplace=True),
        )
        self.middle = nn.Conv1d(16, 16, 3, padding=1, padding_mode="circular")
        self.decode = nn.Sequential(
            nn.ConvTranspose1d(16, 8, 4, stride=2, padding=1),
            nn.SELU(),
            nn.ConvTranspose1d(8, 2, 4, stride=2, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.middle(self.encode(x)))


class PixelShuffleUpscaler(nn.Module):
    """Sub-pixel super-resolution on top of a bicubic base image."""

    def __init__(self, width: int = 12, factor: int = 2) -> None:
        super().__init__()
        self.factor = factor
        self.head = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width)) for _ in range(3)
        )
        self.tail = nn.Conv2d(width, 3 * factor**2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        features = self.head(x)
        for block in self.body:
            features = features + block(features)
        detail = F.pixel_shuffle(self.tail(features), self.factor)
        base = F.interpolate(x, scale_factor=self.factor, mode="bicubic", align_corners=False)
        return base + detail


def depthwise_separable() -> nn.Module:
    """Depthwise and pointwise convolutions, pooled."""

    def block(inside: int, outside: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False),
            nn.BatchNorm2d(inside),
            nn.ReLU6(inplace=True),
            nn.Conv2d(inside, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU6(inplace=True),
        ]

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1),
        *block(8, 16, 2),
        *block(16, 24, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 6),
    )


def batch_free_norms() -> nn.Module:
    """GroupNorm, InstanceNorm (one with running statistics), LocalResponseNorm."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.Mish(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.InstanceNorm2d(8, affine=True),
        nn.CELU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        nn.LocalResponseNorm(3),
        nn.AlphaDropout(0.1),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(8 * 3 * 3, 5),
    )


def volumetric() -> nn.Module:
    """Three-dimensional convolutions over a short clip."""
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1),
        nn.BatchNorm3d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool3d(2),
        nn.Conv3d(4, 8, 3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose3d(8, 4, 2, stride=2),
        nn.AdaptiveAvgPool3d(2),
        nn.Flatten(),
        nn.Linear(32, 3),
    )


ENTRIES = (
    ZooEntry("digits_cnn", DigitsCNN, inputs(floats(1, 8, 8))),
    ZooEntry("unet", UNet, inputs(floats(3, 24, 24))),
    ZooEntry("dilated_pyramid", DilatedPyramid, inputs(floats(3, 24, 24))),
    ZooEntry("wavenet", WaveNet, inputs(floats(1, 40))),
    ZooEntry("conv_autoencoder_1d", ConvAutoencoder1d, inputs(floats(2, 32))),
    ZooEntry("pixel_shuffle", PixelShuffleUpscaler, inputs(floats(3, 12, 12))),
    ZooEntry("depthwise_separable", depthwise_separable, inputs(floats(3, 16, 16))),
    ZooEntry("batch_free_norms", batch_free_norms, inputs(floats(3, 12, 12))),
    ZooEntry("volumetric", volumetric, inputs(floats(1, 8, 8, 8))),
)
