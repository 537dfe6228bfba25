"""A character GPT that learns to write like Python's help pages.

python train.py                      plan: cut the model for the pool in node_data/
ravnest run train.py --nodes 2       train, test, and write a sample
ravnest fuse                         one state_dict of the whole model
"""

import argparse
import os
import pydoc_data.topics
import sys
from typing import Any

import torch
from model import CharGpt
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, clusterize, set_seed
from ravnest.callbacks import PrintProgress

SEED = 42
TEXT = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
"""The same for everybody only if all providers run the same version of Python. If they do not,
Root and Leaf notice at the first batch, and the run ends with an error."""
LETTERS = sorted(set(TEXT))


def encode(text: str) -> Tensor:
    number = {letter: index for index, letter in enumerate(LETTERS)}
    return torch.tensor([number[letter] for letter in text])


def make_model(options: argparse.Namespace) -> nn.Module:
    set_seed(SEED)
    return CharGpt(len(LETTERS), options.length, options.width, options.layers)


def make_loaders(options: argparse.Namespace) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Windows of the text, and the same one letter later; the last tenth is kept for the test."""
    letters = encode(TEXT)
    usable = len(letters) - 1 - (len(letters) - 1) % options.length
    inputs = letters[:usable].view(-1, options.length)
    targets = letters[1 : usable + 1].view(-1, options.length)
    if options.windows:
        chosen = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(SEED))
        chosen = chosen[: options.windows].sort().values
        inputs, targets = inputs[chosen], targets[chosen]
    kept = len(inputs) * 9 // 10
    train = TensorDataset(inputs[:kept], targets[:kept])
    test = TensorDataset(inputs[kept:], targets[kept:])
    generator = torch.Generator().manual_seed(SEED)  # Root and Leaf shuffle alike
    return (
        DataLoader(train, batch_size=options.batch_size, shuffle=True, generator=generator),
        DataLoader(test, batch_size=options.batch_size),
    )


def criterion(outputs: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch[1].flatten())


def loss_of_frequencies() -> float:
    """What one gets by knowing how frequent each letter is, and nothing else."""
    share = torch.bincount(encode(TEXT)) / len(TEXT)
    return float(-(share * share.log()).sum())


def write(trainer: Trainer, options: argparse.Namespace) -> str:
    """Letter by letter through the providers. The model was planned for windows of one length, so
    what is not written yet is filled up; no letter looks at those after it."""
    text: str = options.prompt
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(options.sample):
        seen = encode(text[-options.length :])
        window = torch.zeros(1, options.length, dtype=torch.long)
        window[0, : len(seen)] = seen
        scores = trainer.pred(window)[0, len(seen) - 1]
        chance = torch.softmax(scores / options.temperature, dim=0)
        text += LETTERS[int(torch.multinomial(chance, 1, generator=generator))]
    return text


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
        clip_grad_value=1.0,
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
        found = trainer.metrics["loss"]
        print(
            f"loss per letter {found:.2f}; by letter frequencies alone {loss_of_frequencies():.2f}"
        )
        print(f"--- sample\n{write(trainer, options)}\n---")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A letter GPT; plans, or trains as RAVNEST_NODE.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--length", type=int, default=64, help="letters in a window")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--windows", type=int, default=0, help="use only so many of the windows")
    parser.add_argument("--prompt", default="The ", help="how the sample begins")
    parser.add_argument("--sample", type=int, default=300, help="letters to write at the end")
    parser.add_argument("--temperature", type=float, default=0.7, help="below 1: safer letters")
    parser.add_argument("--quick", action="store_true", help="a tiny model and 200 batches")
    options = parser.parse_args(arguments)
    if options.quick:
        options.width, options.layers, options.length = 32, 2, 32
        options.batch_size, options.windows, options.epochs = 16, 3600, 1
        options.lr, options.sample = 5e-3, 40
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if "RAVNEST_NODE" in os.environ:
        provide(options)
    else:
        plan(options)


if __name__ == "__main__":
    main()
