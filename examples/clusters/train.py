"""Two clusters of unequal length train one model, each on its share of the data.

python train.py                      plan: two clusters from the pool in node_data/
ravnest run train.py --nodes 5       train: this file once per provider
python train.py --score              fuse each cluster, compare them, test in plain PyTorch
"""

import argparse
import logging
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


def make_model(options: argparse.Namespace) -> nn.Module:
    """(batch, 64) points of grey images to (batch, 10) scores."""
    set_seed(SEED)
    width = options.width
    layers: list[nn.Module] = [nn.Linear(64, width), nn.GELU()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def make_loaders(options: argparse.Namespace) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """The whole data on every provider, in the same order; Trainer and Node take from it the
    batches of their own cluster."""
    pixels, digits = load_digits(return_X_y=True)
    points, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    generator = torch.Generator().manual_seed(SEED)
    order = torch.randperm(len(labels), generator=generator)
    points, labels = points[order], labels[order]
    train = TensorDataset(points[:1500], labels[:1500])
    test = TensorDataset(points[1500:], labels[1500:])
    return (
        DataLoader(train, batch_size=options.batch_size, shuffle=True, generator=generator),
        DataLoader(test, batch_size=options.batch_size),
    )


def criterion(outputs: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(outputs, batch[1])


def plan(options: argparse.Namespace) -> None:
    sample = next(iter(make_loaders(options)[0]))[0]
    # Everybody is used, even if fewer would be faster: the point is to see them all work.
    clusterize(make_model(options), example_args=(sample,), max_clusters=2)


def provide(options: argparse.Namespace) -> None:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("ravnest.averaging").setLevel("INFO" if options.rounds else "WARNING")
    set_seed(SEED)
    train, test = make_loaders(options)
    node = Node(  # which one, and so in which cluster, RAVNEST_NODE says
        optimizer="adamw",
        optimizer_params={"lr": options.lr},
        criterion=criterion,
        labels=train,
        test_labels=test,
        reduce_factor=options.reduce_factor,
        compression={"edges": False, "rings": "int8"},
    )
    trainer = Trainer(
        node=node,
        train_loader=train,
        val_loader=test,
        val_freq=options.epochs,  # once, after the last round
        epochs=options.epochs,
        save=True,
        callbacks=[PrintProgress(sys.stdout)],
    )
    trainer.train()


def score(options: argparse.Namespace) -> None:
    states = [
        torch.load(model_fusion(cluster, output=f"trained/cluster_{cluster}"), weights_only=True)
        for cluster in (0, 1)
    ]
    same = all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    print(f"the weights of both clusters are {'the same, bit by bit' if same else 'different'}")
    model = make_model(options)
    model.load_state_dict(states[0], strict=True)
    model.eval()
    right = total = 0
    with torch.no_grad():
        for points, labels in make_loaders(options)[1]:
            right += int((model(points).argmax(1) == labels).sum())
            total += len(labels)
    print(f"accuracy in plain PyTorch: {right / total:.1%}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Two clusters; plans, or trains as RAVNEST_NODE.")
    parser.add_argument("--score", action="store_true", help="fuse, compare and test")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=20, help="of each cluster")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--width", type=int, default=128, help="of the network")
    parser.add_argument("--reduce-factor", type=int, default=8, help="updates between rounds")
    parser.add_argument("--rounds", action="store_true", help="report every round")
    parser.add_argument("--quick", action="store_true", help="a narrow network and three epochs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.width, options.epochs, options.lr = 48, 3, 5e-3
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
