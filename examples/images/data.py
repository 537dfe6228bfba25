"""Images to learn from: made up, or read from a folder of CIFAR-10 or Tiny-ImageNet.

What is found decides: CIFAR-10 in its binary version has `data_batch_1.bin`, Tiny-ImageNet has
`wnids.txt`. Every dataset gives (3, size, size) images around zero, and whole numbers as labels.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset, TensorDataset

SEED = 42
Images = Dataset[tuple[Tensor, ...]]


class ImageSet(NamedTuple):
    train: Images
    test: Images
    classes: int


def load(folder: Path | None, size: int, classes: int, examples: int) -> ImageSet:
    """`classes` and `examples` say how much to make up; of a folder, `examples` are the most that
    are read for training (0: all), and a quarter as many for the test."""
    if folder is None:
        return generated(size, classes, examples or 400)
    if (folder / "data_batch_1.bin").exists():
        found = cifar10(folder, size)
    elif (folder / "wnids.txt").exists():
        found = tiny_imagenet(folder, size)
    else:
        raise SystemExit(
            f"{folder} has neither data_batch_1.bin (CIFAR-10, binary version) nor wnids.txt "
            "(Tiny-ImageNet)"
        )
    if not examples:
        return found
    return ImageSet(
        some(found.train, examples), some(found.test, max(1, examples // 4)), found.classes
    )


def some(images: Images, count: int) -> Images:
    """A random choice, the same everywhere: files often come sorted by class."""
    total = len(images)  # type: ignore[arg-type]
    order = torch.randperm(total, generator=torch.Generator().manual_seed(SEED))
    return Subset(images, order[:count].tolist())


def prepared(images: Tensor, size: int) -> Tensor:
    """(…, 3, height, width) bytes to numbers from -1 to 1, in the size asked for."""
    numbers = images.float() / 127.5 - 1
    if numbers.shape[-2:] == (size, size):
        return numbers
    batch = numbers if numbers.dim() == 4 else numbers[None]
    resized = F.interpolate(batch, (size, size), mode="bilinear", antialias=True)
    return resized if numbers.dim() == 4 else resized[0]


# ---- made up ---------------------------------------------------------------------------------


def generated(size: int, classes: int, examples: int) -> ImageSet:
    """Stripes. Each class has a direction and a width of its own; where the stripes begin, their
    colour and the noise over them are different in every image."""
    generator = torch.Generator().manual_seed(SEED)
    count = examples + max(classes, examples // 4)
    labels = torch.arange(count) % classes
    angle = labels / classes * torch.pi
    waves = 2 + 2 * (labels % 2)  # across the image
    begin = torch.rand(count, generator=generator) * 2 * torch.pi
    down, right = torch.meshgrid(*2 * (torch.linspace(0, 1, size),), indexing="ij")
    along = angle.cos()[:, None, None] * right + angle.sin()[:, None, None] * down
    stripes = torch.sin(2 * torch.pi * waves[:, None, None] * along + begin[:, None, None])
    colour = 0.5 + torch.rand(count, 3, 1, 1, generator=generator)
    noise = 0.3 * torch.randn(count, 3, size, size, generator=generator)
    images = stripes[:, None] * colour + noise
    return ImageSet(
        TensorDataset(images[:examples], labels[:examples]),
        TensorDataset(images[examples:], labels[examples:]),
        classes,
    )


# ---- CIFAR-10, binary version ----------------------------------------------------------------


class Cifar10(Dataset[tuple[Tensor, ...]]):
    """Records of 1 byte of label and 3 x 32 x 32 bytes of image. Kept as bytes, resized when asked
    for: 60,000 large images of floats would not fit most memories."""

    RECORD = 1 + 3 * 32 * 32

    def __init__(self, files: list[Path], size: int) -> None:
        raw = np.concatenate([np.fromfile(file, dtype=np.uint8) for file in files])
        if raw.size == 0 or raw.size % self.RECORD:
            raise SystemExit(
                f"{files[0].parent}: files are not whole records of {self.RECORD} bytes"
            )
        records = torch.from_numpy(raw.reshape(-1, self.RECORD))
        self.labels = records[:, 0].long()
        self.images = records[:, 1:].reshape(-1, 3, 32, 32)
        self.size = size

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return prepared(self.images[index], self.size), self.labels[index]


def cifar10(folder: Path, size: int) -> ImageSet:
    train = Cifar10(sorted(folder.glob("data_batch_*.bin")), size)
    return ImageSet(train, Cifar10([folder / "test_batch.bin"], size), classes=10)


# ---- Tiny-ImageNet ---------------------------------------------------------------------------


class Photographs(Dataset[tuple[Tensor, ...]]):
    """JPEG files with a class each; read when asked for. Needs Pillow."""

    def __init__(self, files: list[tuple[Path, int]], size: int) -> None:
        self.files = files
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        from PIL import Image

        path, label = self.files[index]
        with Image.open(path) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB")))
        return prepared(pixels.permute(2, 0, 1), self.size), torch.tensor(label)


def tiny_imagenet(folder: Path, size: int) -> ImageSet:
    """The folder as it comes out of the archive: train/<class>/images/*.JPEG, and val/images/*.JPEG
    with the classes in val/val_annotations.txt."""
    names = sorted((folder / "wnids.txt").read_text(encoding="utf-8").split())
    number = {name: index for index, name in enumerate(names)}

    def training() -> Iterator[tuple[Path, int]]:
        for name in names:
            for path in sorted((folder / "train" / name / "images").glob("*.JPEG")):
                yield path, number[name]

    def validation() -> Iterator[tuple[Path, int]]:
        lines = (folder / "val" / "val_annotations.txt").read_text(encoding="utf-8").splitlines()
        for line in lines:
            file, name = line.split("\t")[:2]  # then the box around the object
            yield folder / "val" / "images" / file, number[name]

    return ImageSet(
        Photographs(list(training()), size), Photographs(list(validation()), size), len(names)
    )
