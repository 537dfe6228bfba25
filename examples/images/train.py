"""ResNet-50 or Inception-v3 on images, from torchvision as it is.

    python train.py                      plan: cut ResNet-50 for the pool in node_data/
    ravnest run train.py --nodes 2       train: this file once per provider
    ravnest fuse                         one state_dict of the whole model

Inception-v3: the same with `--model inception_v3` in the first two lines. Without `--data` the
images are made up. Only the plan needs torchvision; providers have their stages from node_data/.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch
from data import ImageSet, load
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ravnest import Node, Trainer, clusterize, set_seed
from ravnest.callbacks import PrintProgress

SEED = 42
AUXILIARY_WEIGHT = 0.4
SMALLEST_WITH_OWN_HEAD = 299
"""Inception's auxiliary head pools with a fixed window that fits no smaller image."""


class SmallAuxiliaryHead(nn.Module):
    """In its place for small images: (batch, channels, any, any) to (batch, classes)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 128, 1, bias=False)
        self.norm = nn.BatchNorm2d(128)
        self.fc = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        scores: Tensor = self.fc(features)
        return scores


def make_model(options: argparse.Namespace, classes: int | None = None) -> nn.Module:
    import torchvision

    classes = classes or make_data(options).classes
    set_seed(SEED)
    model: nn.Module
    if options.model == "resnet50":
        model = torchvision.models.resnet50(num_classes=classes, zero_init_residual=True)
    else:
        model = torchvision.models.inception_v3(num_classes=classes, init_weights=False)
        if options.size < SMALLEST_WITH_OWN_HEAD:
            model.AuxLogits = SmallAuxiliaryHead(768, classes)
    return model


def make_data(options: argparse.Namespace) -> ImageSet:
    return load(options.data, options.size, options.classes, options.examples)


def make_loaders(options: argparse.Namespace) -> tuple[DataLoader[Any], DataLoader[Any]]:
    images = make_data(options)
    generator = torch.Generator().manual_seed(SEED)  # Root and Leaf shuffle alike
    train = DataLoader(
        images.train,
        batch_size=options.batch_size,
        shuffle=True,
        generator=generator,
        drop_last=True,  # BatchNorm needs more than a row or two
    )
    return train, DataLoader(images.test, batch_size=options.batch_size)


def criterion(outputs: Any, batch: Any) -> Tensor:
    """In training Inception answers twice, in evaluation once, like ResNet."""
    if isinstance(outputs, Tensor):
        return nn.functional.cross_entropy(outputs, batch[1])
    main = nn.functional.cross_entropy(outputs.logits, batch[1])
    return main + AUXILIARY_WEIGHT * nn.functional.cross_entropy(outputs.aux_logits, batch[1])


def plan(options: argparse.Namespace) -> None:
    sample = next(iter(make_loaders(options)[0]))[0]
    clusterize(
        make_model(options),
        example_args=(sample,),
        # One cluster of everybody, even if fewer would be faster: the point is to see all work.
        max_clusters=1,
    )


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


SIZES = {"resnet50": 32, "inception_v3": 80}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ResNet-50 or Inception-v3; plans, or trains.")
    parser.add_argument("--model", choices=sorted(SIZES), default="resnet50")
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10 (binary) or Tiny-ImageNet")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--size", type=int, help=f"height and width of images; {SIZES}")
    parser.add_argument("--classes", type=int, default=4, help="of the images made up")
    parser.add_argument(
        "--examples", type=int, default=0, help="images to train on; 0: 400 made up, all of --data"
    )
    parser.add_argument("--quick", action="store_true", help="20 batches")
    options = parser.parse_args(arguments)
    options.size = options.size or SIZES[options.model]
    if options.quick:
        options.examples, options.batch_size, options.epochs = 320, 16, 1
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if "RAVNEST_NODE" in os.environ:
        provide(options)
    else:
        plan(options)


if __name__ == "__main__":
    main()
