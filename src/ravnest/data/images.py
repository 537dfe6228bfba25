"""A folder of images as a dataset: one sub-folder for each class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ravnest.api.jobs import FieldSpec
from ravnest.data.places import check_there, held_by
from ravnest.data.sources import Columns
from ravnest.errors import JobError
from ravnest.recipes.randomness import Rows

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


class ImageFolder:
    """Images of one size, as uint8 with channels first, and the numbers of their classes."""

    def __init__(
        self,
        folder: Path | str,
        size: int | tuple[int, int],
        *,
        channels: int = 3,
        crop: bool = False,
        classes: Sequence[str] | None = None,
    ) -> None:
        """`size` is height and width. Images are stretched to it, or with `crop` cut to its shape.
        `classes` are those of the training images, for validation images."""
        if channels not in (1, 3):
            raise JobError(f"channels is {channels}; expected 1 (grey) or 3 (colours)")
        height, width = (size, size) if isinstance(size, int) else size
        if min(height, width) < 1:
            raise JobError(f"size is {size}; expected numbers of pixels")
        _pillow()
        self._size = width, height
        self._mode = "L" if channels == 1 else "RGB"
        self._crop = crop
        self.classes = tuple(classes) if classes is not None else _folders(Path(folder))
        self._images = _images(Path(folder), self.classes)
        self.fields = (
            FieldSpec(name="image", dtype="uint8", shape=(channels, height, width)),
            FieldSpec(name="label", dtype="int64"),
        )

    def __len__(self) -> int:
        return len(self._images)

    def read(self, rows: Rows) -> Columns:
        images = [self._image(self._images[int(row)][0]) for row in rows]
        labels = [self._images[int(row)][1] for row in rows]
        return {"image": torch.stack(images), "label": torch.tensor(labels)}

    def _image(self, path: Path) -> torch.Tensor:
        pillow, operations = _pillow()
        try:
            with pillow.open(path) as file:
                upright = operations.exif_transpose(file).convert(self._mode)
                if self._crop:
                    image = operations.fit(upright, self._size, pillow.Resampling.BILINEAR)
                else:
                    image = upright.resize(self._size, pillow.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
            raise JobError(f"{path} cannot be read as an image: {error}") from error
        pixels = np.array(image, dtype=np.uint8)
        return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1).copy())


def image_folder(folder: Path | str, size: int | tuple[int, int], **options: Any) -> ImageFolder:
    """`folder/<class>/…/<image>` as a dataset with the fields image and label."""
    return ImageFolder(folder, size, **options)


def _folders(folder: Path) -> tuple[str, ...]:
    check_there(folder)
    if not folder.is_dir():
        raise JobError(f"{folder} is no folder")
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    found = [name for name in found if not name.startswith(".")]
    if not found:
        raise JobError(
            f"{folder} has no sub-folders, and there must be one for each class of images: "
            f"{held_by(folder)}"
        )
    return tuple(found)


def _images(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    if unknown := set(_folders(folder)) - set(classes):
        raise JobError(f"{folder} has the class {min(unknown)!r}, which is not among the others")
    found = []
    for number, name in enumerate(classes):
        paths = sorted(path for path in (folder / name).rglob("*") if path.is_file())
        found += [(path, number) for path in paths if path.suffix.lower() in SUFFIXES]
    if not found:
        raise JobError(f"{folder} has no images ({', '.join(sorted(SUFFIXES))}): {held_by(folder)}")
    return found


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise JobError("reading images needs Pillow: pip install pillow") from None
    return Image, ImageOps
