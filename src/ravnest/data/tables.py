"""A table of numbers in a text file (.csv, .tsv): one column is to be learnt, from all others."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ravnest.data.places import check_there
from ravnest.data.sources import Arrays
from ravnest.errors import JobError

SUFFIXES = (".csv", ".tsv")
TARGETS = ("y", "label", "labels", "target", "targets")
"""Columns that are to be learnt if nothing is said."""
INPUTS = "x"
_DELIMITERS = ",;\t"
_WHOLE_UP_TO = 2.0**53
"""From there on, not every whole number is a float64."""


def table(path: Path | str, target: str | None = None) -> Arrays:
    """Two fields: `x` with all columns but one, and that one under its own name.

    The first line may have names. Without any, the last column is the target, and called `y`. A
    target of whole numbers stays whole. The file is read into memory.
    """
    path = Path(path)
    check_there(path)
    lines = _lines(path)
    names = lines[0] if any(_number(cell) is None for cell in lines[0]) else None
    rows = lines[1:] if names else lines
    if not rows or len(rows[0]) < 2:
        raise JobError(f"{path} is no table: it needs rows of at least two columns, as in 0.5,1")
    numbers = _numbers(path, rows, names, first=2 if names else 1)
    place = _place(path, names, target)
    wanted = numbers[:, place]
    name = names[place] if names else target or "y"
    if name == INPUTS:
        raise JobError(
            f"{path}: the column that is to be learnt is called {INPUTS!r}, as all others together "
            "are; call it something else in the file"
        )
    is_whole = bool(((wanted == np.round(wanted)) & (abs(wanted) < _WHOLE_UP_TO)).all())
    return Arrays(
        {
            INPUTS: np.delete(numbers, place, axis=1).astype(np.float32),
            name: wanted.astype(np.int64 if is_whole else np.float32),
        }
    )


def _lines(path: Path) -> list[list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(_DELIMITERS, key=first.count)
            found = [
                [cell.strip() for cell in line] for line in csv.reader(file, delimiter=delimiter)
            ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise JobError(f"{path} cannot be read as a table of text: {error}") from error
    lines = [line for line in found if any(line)]
    if not lines:
        raise JobError(f"{path} is empty")
    return lines


def _numbers(
    path: Path, rows: list[list[str]], names: Sequence[str] | None, first: int
) -> np.ndarray[Any, Any]:
    width = len(names or rows[0])
    for number, row in enumerate(rows, first):
        if len(row) != width:
            raise JobError(f"{path}, row {number}: {len(row)} columns, the first row has {width}")
    try:
        return np.array(rows, dtype=np.float64)
    except ValueError:
        pass  # find out where
    for number, row in enumerate(rows, first):
        for place, cell in enumerate(row):
            if _number(cell) is None:
                column = names[place] if names else f"number {place + 1}"
                raise JobError(
                    f"{path}, row {number}: the column {column} has {cell!r}, which is no number; "
                    "make numbers of words, fill or leave out what is missing"
                )
    raise AssertionError("numpy has found something that is no number")


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _place(path: Path, names: Sequence[str] | None, target: str | None) -> int:
    if names is None:
        return -1
    likely = [target] if target is not None else [name for name in TARGETS if name in names]
    if likely and likely[0] in names:
        return list(names).index(likely[0])
    said = "" if target is None else f"there is no column {target!r}; "
    raise JobError(
        f"{path}: {said}which column is to be learnt? Say target=…, one of {', '.join(names)}"
    )
