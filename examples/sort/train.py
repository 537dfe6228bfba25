"""A GPT that learns to sort digits, from examples only.

    python train.py                      plan: cut the model for the pool in node_data/
    ravnest run train.py --nodes 2       train: this file once per provider
    python train.py --score              fuse, and let the model sort in plain PyTorch

It reads a row of digits, then the same digits in order, one after another, and is asked at every
place what comes next. Only the answers in the second half count.
"""

import argparse
import os
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, clusterize, model_fusion, set_seed
from ravnest.callbacks import PrintProgress

SEED = 42
DIGITS = 10
NOT_ASKED = -100
"""torch's own mark for targets that do not count."""


class SortingGpt(nn.Module):
    """(batch, 2 * length - 1) digits to (batch, 2 * length - 1, 10) scores of the next one."""

    def __init__(self, length: int, width: int, layers: int) -> None:
        super().__init__()
        places = 2 * length - 1
        self.digits = nn.Embedding(DIGITS, width)
        self.places = nn.Embedding(places, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, DIGITS))
        later = torch.ones(places, places).triu(1).bool()  # what a place must not look at
        self.register_buffer("later", later, persistent=False)

    def forward(self, digits: Tensor) -> Tensor:
        x = self.digits(digits) + self.places.weight
        for block in self.blocks:
            x = block(x, src_mask=self.later)
        scores: Tensor = self.head(x)
        return scores


def make_model(options: argparse.Namespace) -> nn.Module:
    set_seed(SEED)
    return SortingGpt(options.length, options.width, options.layers)


def problems(count: int, length: int, seed: int) -> TensorDataset:
    """Inputs and targets of `count` random rows to be sorted."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(DIGITS, (count, length), generator=generator)
    whole = torch.cat([row, row.sort(dim=1).values], dim=1)
    inputs, targets = whole[:, :-1], whole[:, 1:].clone()
    targets[:, : length - 1] = NOT_ASKED
    return TensorDataset(inputs, targets)


def make_loaders(options: argparse.Namespace) -> tuple[DataLoader[Any], DataLoader[Any]]:
    generator = torch.Generator().manual_seed(SEED)  # Root and Leaf shuffle alike
    train = problems(options.rows, options.length, seed=1)
    test = problems(1000, options.length, seed=2)
    return (
        DataLoader(train, batch_size=options.batch_size, shuffle=True, generator=generator),
        DataLoader(test, batch_size=options.batch_size),
    )


def criterion(outputs: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch[1].flatten())


def sorted_right(outputs: Tensor, batch: Any) -> tuple[float, int]:
    """How many rows are right from the first to the last digit, of how many.

    Every place was shown the right digits before it. That makes no difference here: a model that
    is right everywhere would have written exactly these digits by itself.
    """
    asked = batch[1] != NOT_ASKED
    right = ((outputs.argmax(-1) == batch[1]) | ~asked).all(dim=1)
    return float(right.sum()), len(right)


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
        metrics={"sorted": sorted_right},
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
    trainer.evaluate()
    if node.is_root:
        print(f"rows sorted without a mistake: {trainer.metrics['sorted']:.1%}")


@torch.no_grad()
def sort(model: nn.Module, rows: Tensor) -> Tensor:
    """Digit by digit: each answer is read as part of the next question."""
    length = rows.shape[1]
    text = torch.cat([rows, torch.zeros_like(rows)], dim=1)
    for place in range(length, 2 * length):
        text[:, place] = model(text[:, :-1])[:, place - 1].argmax(-1)
    return text[:, length:]


def score(options: argparse.Namespace) -> None:
    """From here on it is an ordinary model, and nothing below knows of Ravnest."""
    path = model_fusion()
    model = make_model(options)
    model.load_state_dict(torch.load(path, weights_only=True), strict=True)
    model.eval()
    rows = problems(1000, options.length, seed=2).tensors[0][:, : options.length]
    answers = sort(model, rows)
    for row, answer in zip(rows[:3].tolist(), answers[:3].tolist(), strict=True):
        print(*row, "->", *answer)
    right = (answers == rows.sort(dim=1).values).all(dim=1).float().mean()
    print(f"rows sorted without a mistake in plain PyTorch: {float(right):.1%}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A sorting GPT; plans, or trains as RAVNEST_NODE.")
    parser.add_argument("--score", action="store_true", help="fuse and test what was trained")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--length", type=int, default=8, help="digits to sort")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000, help="rows to learn from")
    parser.add_argument("--quick", action="store_true", help="four digits, a tiny model")
    options = parser.parse_args(arguments)
    if options.quick:
        options.length, options.width, options.layers, options.lr = 4, 32, 2, 5e-3
        options.epochs, options.rows, options.batch_size = 1, 8000, 50
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
