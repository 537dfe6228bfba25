"""Handwritten digits and a network for them: small, and really learnt in seconds."""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

from ravnest.session import Job, Session


class DigitsNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor) -> Any:
        return self.classifier(self.features(images))


def digits() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """To train with, and to judge by."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    target = torch.tensor(labels)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    pixels, target = pixels[order], target[order]
    return (pixels[:1500], target[:1500]), (pixels[1500:], target[1500:])


def submit(session: Session, **settings: Any) -> Job:
    torch.manual_seed(1)
    train, test = digits()
    given = {
        "optimizer": "adamw",
        "optimizer_params": {"lr": 2e-3},
        "metrics": ["accuracy"],
        "epochs": 5,
        "batch_size": 32,
        "name": "digits",
        "idle_gain": 1e9,
        **settings,
    }
    return session.submit(
        DigitsNet(), example_args=(train[0][:32],), data=train, validation=test, **given
    )


def accuracy(state: dict[str, torch.Tensor]) -> float:
    """Of the whole model, with these weights, in plain PyTorch."""
    model = DigitsNet()
    model.load_state_dict(state, strict=True)
    model.train(False)
    images, labels = digits()[1]
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())
