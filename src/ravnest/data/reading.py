"""The part of a dataset that a worker has on disk, read without trust.

Everything is looked at before anything is used: a path that leads elsewhere, a link, a file of
another size, another tensor than announced are refused with the name of the file. That the bytes
are the right ones was checked by their hash when they came. The tensors stay in their files.
"""

import re
import stat
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from ravnest.api.jobs import FieldSpec
from ravnest.api.limits import FileRef
from ravnest.api.work import DataPart
from ravnest.errors import DataError
from ravnest.recipes.kinds import SIZES
from ravnest.recipes.randomness import Rows

_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,4}")


class PartReader:
    """Rows 0 … of a part, field by field."""

    def __init__(self, part: DataPart, folder: Path | str) -> None:
        spec = part.data
        self.fields: Mapping[str, FieldSpec] = {column.name: column for column in spec.fields}
        self.rows = part.range.rows
        self._first = part.range.first
        self._ends = np.cumsum([shard.rows for shard in spec.shards])
        if self._first + self.rows > int(self._ends[-1]):
            raise DataError(
                f"rows {self._first} to {self._first + self.rows} of a dataset were announced, and "
                f"its shards have {int(self._ends[-1])}"
            )
        self._shards: dict[str, list[torch.Tensor]] = {name: [] for name in self.fields}
        for shard in spec.shards:
            if len(shard.files) != len(spec.fields):
                raise DataError(f"{shard.files[0].path}: a shard needs a file for every field")
            for column, file in zip(spec.fields, shard.files, strict=True):
                self._shards[column.name].append(_mapped(Path(folder), file, column, shard.rows))

    def read(self, field: str, rows: Rows) -> torch.Tensor:
        """These rows of the part, in this order."""
        shards, column = self._shards[field], self.fields[field]
        places = rows + self._first
        owners = np.searchsorted(self._ends, places, side="right")
        found = torch.empty((len(rows), *column.shape), dtype=getattr(torch, column.dtype))
        for owner in np.unique(owners):
            mine = np.flatnonzero(owners == owner)
            begin = int(self._ends[owner - 1]) if owner else 0
            local = torch.from_numpy(places[mine] - begin)
            found[torch.from_numpy(mine)] = shards[owner].index_select(0, local)
        return found


def _mapped(folder: Path, file: FileRef, column: FieldSpec, rows: int) -> torch.Tensor:
    try:
        path = _plain(folder, file)
        with safe_open(path, framework="pt") as content:
            names = list(content.keys())
            if names != [column.name]:
                shown = ", ".join(name[:100] for name in names[:5])
                raise DataError(f"it holds the tensors {shown!r} instead of {column.name!r} alone")
            announced = [rows, *column.shape]
            shape = list(content.get_slice(column.name).get_shape())
            if shape != announced:
                raise DataError(f"its shape is {shape}, and {announced} was announced")
            tensor: torch.Tensor = content.get_tensor(column.name)
    except DataError as error:
        raise DataError(f"{file.path[:300]}: {error}") from None
    except (SafetensorError, OSError) as error:
        raise DataError(f"{file.path[:300]} cannot be read as safetensors: {error}") from error
    if column.dtype not in SIZES or tensor.dtype != getattr(torch, column.dtype):
        raise DataError(
            f"{file.path}: its type is {tensor.dtype}, and {column.dtype[:100]} was announced"
        )
    return tensor


def _plain(folder: Path, file: FileRef) -> Path:
    """The path of a file of its own inside the folder, with the size that was announced."""
    if not _PATH.fullmatch(file.path):
        raise DataError("such a path may not be part of a dataset")
    path = folder
    parts = file.path.split("/")
    for number, name in enumerate(parts):
        path = path / name
        status = path.lstat()
        wanted = stat.S_ISREG if number + 1 == len(parts) else stat.S_ISDIR
        if not wanted(status.st_mode):
            raise DataError(
                f"{name} is not a plain {'file' if wanted is stat.S_ISREG else 'folder'}"
            )
    if status.st_size != file.size:
        raise DataError(f"it has {status.st_size} bytes, and {file.size} were announced")
    return path
