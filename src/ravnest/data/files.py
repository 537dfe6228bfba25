"""Sources that are files: arrays, safetensors, tables; and finding out what one was given."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch.utils.data import Dataset, TensorDataset

from ravnest.api.jobs import FieldSpec
from ravnest.data import tables
from ravnest.data.places import check_there, held_by
from ravnest.data.sources import Arrays, Columns, Items, Source, default_names
from ravnest.errors import JobError
from ravnest.recipes.randomness import Rows

_UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)
"""What numpy makes of files that are damaged, or something else."""
_SUFFIXES = (".npy", ".npz", ".safetensors", *tables.SUFFIXES)


def as_source(data: Any, names: Sequence[str] | None = None) -> Source:
    """What was given, as rows that can be read.

    A mapping of names to arrays, tensors or .npy files; a tuple of them; one file, or several
    safetensors files whose rows follow each other; a TensorDataset or another map-style dataset.
    `names` are those of the parts of a tuple, or of the rows of a dataset.
    """
    match data:
        case str() | Path():
            return _from_file(Path(data), names)
        case Mapping():
            return Arrays({name: _column(value) for name, value in data.items()})
        case TensorDataset():
            return Arrays(_named(data.tensors, names))
        case Dataset():
            return Items(data, names)
        case np.ndarray() | torch.Tensor():
            return Arrays(_named([data], names))
        case tuple() | list() if data and all(isinstance(part, str | Path) for part in data):
            paths = [Path(part) for part in data]
            if all(path.suffix == ".safetensors" for path in paths):
                return Joined([_safetensors(path) for path in paths])
            return Arrays(_named([_column(path) for path in paths], names))
        case tuple() | list() if data:
            return Arrays(_named(data, names))
        case Source():
            return data
        case _ if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            return Items(data, names)
    raise JobError(
        f"a dataset cannot be made of {type(data).__name__}: give a mapping of names to arrays, "
        f"a tuple of arrays, a map-style torch Dataset, or files ({', '.join(_SUFFIXES)})"
    )


class Joined:
    """The rows of several sources with the same fields, one after another."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = list(sources)
        self.fields: tuple[FieldSpec, ...] = self._sources[0].fields
        wanted = set(self.fields)
        for number, source in enumerate(self._sources):
            if set(source.fields) != wanted:
                raise JobError(f"file {number} of the dataset has other fields than the first")
        self._ends = np.cumsum([len(source) for source in self._sources])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, rows: Rows) -> Columns:
        owners = np.searchsorted(self._ends, rows, side="right")
        found: Columns = {}
        for owner in np.unique(owners):
            places = np.flatnonzero(owners == owner)
            begin = int(self._ends[owner - 1]) if owner else 0
            for name, values in self._sources[owner].read(rows[places] - begin).items():
                if name not in found:
                    found[name] = values.new_empty((len(rows), *values.shape[1:]))
                found[name][torch.from_numpy(places)] = values
        return found


def _safetensors(path: Path) -> Source:
    check_there(path)
    try:
        with safe_open(path, framework="pt") as file:
            # The tensors stay in the file until they are read.
            return Arrays({name: file.get_tensor(name) for name in sorted(file.keys())})
    except (SafetensorError, OSError) as error:
        raise JobError(f"{path} cannot be read as safetensors: {error}") from error


def _from_file(path: Path, names: Sequence[str] | None) -> Source:
    check_there(path)
    match path.suffix:
        case ".safetensors":
            return _safetensors(path)
        case ".npy":
            return Arrays(_named([_column(path)], names))
        case ".npz":
            return Arrays(_npz(path))
        case suffix if suffix in tables.SUFFIXES:
            return tables.table(path)
    hint = ""
    if path.is_dir():
        hint = f"; of a folder ({held_by(path)}), use image_folder or text_windows"
    raise JobError(f"{path} is none of {', '.join(_SUFFIXES)}{hint}")


def _column(value: Any) -> Any:
    """A .npy file stays where it is and is read as needed."""
    if not isinstance(value, str | Path):
        return value
    check_there(Path(value))
    try:
        found = np.load(value, mmap_mode="r", allow_pickle=False)
    except _UNREADABLE as error:
        raise JobError(f"{value} cannot be read as .npy: {error}") from error
    if not isinstance(found, np.ndarray):
        raise JobError(f"{value} holds several arrays: give it as the whole dataset")
    return found


def _npz(path: Path) -> dict[str, Any]:
    """Compressed, and therefore read into memory."""
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise ValueError("it is a single array: call it .npy")
        with found as file:
            return {name: file[name] for name in file.files}
    except _UNREADABLE as error:
        raise JobError(f"{path} cannot be read as .npz: {error}") from error


def _named(parts: Sequence[Any], names: Sequence[str] | None) -> dict[str, Any]:
    names = names or default_names(len(parts))
    if len(names) != len(parts):
        raise JobError(f"the dataset has {len(parts)} columns, and there are {len(names)} names")
    return dict(zip(names, (_column(part) for part in parts), strict=True))
