"""What a dataset may be made of: rows that can be asked for by number, column by column.

Sources read when they are asked to, so a dataset may be larger than memory. Where files, images and
text come from is in the neighbouring modules.
"""

import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from ravnest.api.jobs import FieldSpec
from ravnest.errors import JobError, RavnestError
from ravnest.recipes.kinds import SIZES
from ravnest.recipes.randomness import Rows, order

Columns = dict[str, torch.Tensor]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")


@runtime_checkable
class Source(Protocol):
    """Rows of a dataset, wherever they are."""

    @property
    def fields(self) -> tuple[FieldSpec, ...]: ...
    def __len__(self) -> int: ...
    def read(self, rows: Rows) -> Columns:
        """These rows in this order, for every field."""
        ...


class Arrays:
    """Columns that are arrays or tensors, in memory or mapped from a file."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        if not columns:
            raise JobError("a dataset needs at least one column")
        self._columns = {check_name(name): _array(name, col) for name, col in columns.items()}
        lengths = {name: len(column) for name, column in self._columns.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name} has {count}" for name, count in lengths.items())
            raise JobError(f"the columns of a dataset must have equally many rows: {found}")
        self._rows = next(iter(lengths.values()))
        if not self._rows:
            raise JobError("the dataset has no rows")
        self.fields = tuple(
            FieldSpec(name=name, dtype=dtype_of(name, column[:1]), shape=tuple(column.shape[1:]))
            for name, column in self._columns.items()
        )

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: Rows) -> Columns:
        return {name: gathered(column, rows) for name, column in self._columns.items()}


class Items:
    """A map-style dataset of torch: something with a length that gives a row for a number."""

    def __init__(self, dataset: Any, names: Sequence[str] | None = None) -> None:
        self._dataset = dataset
        try:
            self._rows = len(dataset)
        except TypeError:
            raise JobError(
                "a dataset must have a length and give rows by number (dataset[17]); one that can "
                "only be iterated over must be written to arrays first"
            ) from None
        if not self._rows:
            raise JobError("the dataset has no rows")
        self._names = names
        first = self._row(0)
        self.fields = tuple(
            FieldSpec(name=check_name(name), dtype=dtype_of(name, value), shape=tuple(value.shape))
            for name, value in first.items()
        )

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: Rows) -> Columns:
        items = [self._checked(int(row)) for row in rows]
        return {
            column.name: torch.stack([item[column.name] for item in items])
            for column in self.fields
        }

    def _checked(self, number: int) -> Columns:
        row = self._row(number)
        if set(row) != {column.name for column in self.fields}:
            raise JobError(f"row {number} of the dataset has other fields than row 0")
        for column in self.fields:
            value = row[column.name]
            found = dtype_of(column.name, value), tuple(value.shape)
            if found != (column.dtype, column.shape):
                raise JobError(
                    f"row {number} of the dataset: {column.name!r} is {found[0]}{list(found[1])}, "
                    f"in row 0 it is {column.dtype}{list(column.shape)}; all rows must be alike"
                )
        return row

    def _row(self, number: int) -> Columns:
        item = self._asked_for(number)
        if not isinstance(item, Mapping):
            parts = list(item) if isinstance(item, tuple | list) else [item]
            names = self._names or default_names(len(parts))
            if len(names) != len(parts):
                raise JobError(f"rows have {len(parts)} parts, and there are {len(names)} names")
            item = dict(zip(names, parts, strict=True))
        return {name: _value(name, value) for name, value in item.items()}

    def _asked_for(self, number: int) -> Any:
        """What runs here is the user's, and so are its mistakes."""
        try:
            return self._dataset[number]
        except RavnestError:
            raise
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            raise JobError(
                f"row {number} of the dataset cannot be read: {type(error).__name__}: {error} "
                f"({at.filename}, line {at.lineno})"
            ) from error


class Part:
    """Some rows of another source."""

    def __init__(self, source: Source, rows: Rows) -> None:
        self._source, self._rows = source, rows
        self.fields = source.fields
        self.classes = getattr(source, "classes", None)
        self.vocabulary = getattr(source, "vocabulary", None)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, rows: Rows) -> Columns:
        return self._source.read(self._rows[rows])


def held_out(source: Source, share: float, seed: int = 42) -> tuple[Part, Part]:
    """Two parts of a dataset: what to train on, and a share of the rows to validate with."""
    rows = len(source)
    kept = round(rows * share)
    if not 0 < kept < rows:
        raise JobError(f"a share of {share:g} of {rows} rows leaves nothing on one side")
    shuffled = order(rows, seed, 1)
    return Part(source, np.sort(shuffled[kept:])), Part(source, np.sort(shuffled[:kept]))


def default_names(count: int) -> tuple[str, ...]:
    if count <= 2:
        return ("x", "y")[:count]
    return tuple(f"field_{number}" for number in range(count))


def check_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise JobError(f"a field is called {name!r}; use letters, digits and _, as in 'label'")
    return name


def dtype_of(name: str, value: torch.Tensor | np.ndarray[Any, Any]) -> str:
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in SIZES:
        raise JobError(
            f"the field {name!r} has the type {dtype}, which no column can have; convert it to one "
            f"of {', '.join(SIZES)}"
        )
    return dtype


def gathered(array: Any, rows: Rows) -> torch.Tensor:
    """These rows of an array. A file is read from front to back, whatever the order."""
    places = np.argsort(rows, kind="stable")
    if isinstance(array, torch.Tensor):
        back = torch.from_numpy(np.argsort(places, kind="stable"))
        return array[torch.from_numpy(rows[places])][back]
    found = np.empty((len(rows), *array.shape[1:]), dtype=array.dtype)
    found[places] = array[rows[places]]
    return torch.from_numpy(found)


def _array(name: str, column: Any) -> Any:
    if isinstance(column, torch.Tensor):
        column = column.detach().cpu()
    elif not isinstance(column, np.ndarray):
        try:
            column = np.asarray(column)
        except ValueError as error:  # rows of different lengths
            raise JobError(f"the field {name!r} is no array: {error}") from None
    if isinstance(column, np.ndarray):
        if not column.dtype.isnative:
            column = column.astype(column.dtype.newbyteorder("="))
        if not column.size and not column.ndim:
            raise JobError(f"the field {name!r} is empty")
    if not column.ndim:
        raise JobError(f"the field {name!r} is a single number; it needs one for each row")
    return column


def _value(name: str, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, bool | int):
        return torch.tensor(value)
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float32)
    array = np.asarray(value)
    dtype_of(name, array)
    return torch.from_numpy(array.copy()) if array.ndim else torch.tensor(array.item())
