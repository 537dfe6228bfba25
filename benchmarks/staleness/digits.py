"""The demo's digits network (with BatchNorm, so that its batches stay whole)."""

from collections.abc import Iterator

import torch
from torch import nn

from ravnest.demo import DigitsNet


def rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels to train on, and to be judged by."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(found.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return images[:1440], labels[:1440], images[1440:], labels[1440:]


def batches(seed: int, size: int = 64) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Epoch after epoch, without end."""
    images, labels, _, _ = rows()
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(images), generator=generator)
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield images[chosen], labels[chosen]


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return DigitsNet()
