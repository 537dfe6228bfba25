"""Handwritten digits with a small residual CNN on three providers.

python train.py                      plan: cut the model for the pool in node_data/
ravnest run train.py --nodes 3       train: this file once per provider
python train.py --score              fuse the stages and test the model in plain PyTorch
"""

import argparse
import os
import sys
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, clusterize, model_fusion, set_seed
from ravnest.callbacks import PrintProgress

SEED = 42


class Residual(nn.Module):
    """Two convolutions and a way around them. A cut may go through the middle of one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            # GroupNorm looks at one image at a time, so a batch may be divided into parts.
            nn.GroupNorm(4, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(4, channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.inner(x))


class DigitsCnn(nn.Module):
    """(batch, 1, 8, 8) grey images to (batch, 10) scores."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            Residual(channels),
            nn.MaxPool2d(2),
            Residual(channels),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(channels * 16, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layers(images)
        return scores


def make_model(options: argparse.Namespace) -> nn.Module:
    set_seed(SEED)
    return DigitsCnn(options.channels)


def make_loaders(options: argparse.Namespace) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """1,500 images to learn from, 297 to be tested on; they ship with scikit-learn."""
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(digits)
    generator = torch.Generator().manual_seed(SEED)  # Root and Leaf shuffle alike
    order = torch.randperm(len(labels), generator=generator)
    images, labels = images[order], labels[order]
    train = TensorDataset(images[:1500], labels[:1500])
    test = TensorDataset(images[1500:], labels[1500:])
    return (
        DataLoader(train, batch_size=options.batch_size, shuffle=True, generator=generator),
        DataLoader(test, batch_size=options.batch_size),
    )


def criterion(outputs: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(outputs, batch[1])


def plan(options: argparse.Namespace) -> None:
    sample = next(iter(make_loaders(options)[0]))[0]
    # One cluster of everybody, even if fewer would be faster: the point is to see them all work.
    clusterize(make_model(options), example_args=(sample,), max_clusters=1)


def provide(options: argparse.Namespace) -> None:
    set_seed(SEED)
    train, test = make_loaders(options)
    node = Node(  # which one, RAVNEST_NODE says
        optimizer=torch.optim.AdamW,
        optimizer_params={"lr": options.lr},
        criterion=criterion,
        labels=train,
        test_labels=test,
    )
    trainer = Trainer(
        node=node,
        train_loader=train,
        val_loader=test,
        epochs=options.epochs,
        save=True,
        callbacks=[PrintProgress(sys.stdout)],
    )
    trainer.train()
    accuracy = trainer.evaluate()
    if accuracy is not None:  # only the Root is told
        print(f"accuracy through the providers: {accuracy:.1%}")


def score(options: argparse.Namespace) -> None:
    """From here on it is an ordinary model, and nothing below knows of Ravnest."""
    path = model_fusion()
    model = make_model(options)
    model.load_state_dict(torch.load(path, weights_only=True), strict=True)
    model.eval()
    right = total = 0
    with torch.no_grad():
        for images, labels in make_loaders(options)[1]:
            right += int((model(images).argmax(1) == labels).sum())
            total += len(labels)
    print(f"accuracy of {path} in plain PyTorch: {right / total:.1%}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A digits CNN; plans, or trains as RAVNEST_NODE.")
    parser.add_argument("--score", action="store_true", help="fuse and test what was trained")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=60)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--channels", type=int, default=32, help="width of the network")
    parser.add_argument("--quick", action="store_true", help="a narrow network and two epochs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.channels, options.epochs, options.lr = 12, 2, 5e-3
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.score:
        score(options)
    elif "RAVNEST_NODE" in os.environ:
        provide(options)
    else:
        plan(options)


if __name__ == "__main__":
    main()
