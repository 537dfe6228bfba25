"""A dataset as files: one for every field of every shard, with its hash.

Rows are shuffled once, by a seed, so that any consecutive ones of them are a fair share. Memory
holds one shard at a time.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import save

from ravnest.api.jobs import DataSpec, FieldSpec, Legend, ShardSpec
from ravnest.api.limits import FileRef
from ravnest.data.files import as_source
from ravnest.errors import JobError
from ravnest.recipes.kinds import SIZES
from ravnest.recipes.randomness import Rows, order

SHARD_BYTES = 16 << 20


@dataclass(frozen=True)
class NotFinite:
    """Numbers of a field that are none, or infinite."""

    field: str
    count: int
    first_row: int
    """Of the rows as they were given."""

    def __str__(self) -> str:
        numbers = "number that is" if self.count == 1 else "numbers that are"
        return f"{self.count:,} {numbers} NaN or infinite, the first in row {self.first_row}"


@dataclass(frozen=True)
class Written:
    """A dataset on disk. `classes` or `vocabulary` are what the numbers in it mean, if known."""

    spec: DataSpec
    folder: Path
    classes: tuple[str, ...] | None = None
    vocabulary: tuple[str, ...] | None = None
    not_finite: tuple["NotFinite", ...] = ()

    @property
    def legend(self) -> Legend | None:
        if not self.classes and not self.vocabulary:
            return None
        return Legend(classes=self.classes or (), vocabulary=self.vocabulary or ())

    def files(self) -> Iterator[tuple[FileRef, Path]]:
        """Every file, and where it is."""
        for shard in self.spec.shards:
            for file in shard.files:
                yield file, self.folder / file.path


def write_data(
    data: Any,
    folder: Path | str,
    *,
    split: str = "train",
    seed: int = 42,
    shuffle: bool = True,
    shard_bytes: int = SHARD_BYTES,
) -> Written:
    """Write `folder/data/<split>/<field>-00000.safetensors` and so on. `data` is a source, or what
    `as_source` makes one of."""
    source = as_source(data)
    rows = len(source)
    numbers: Rows = order(rows, seed, 0) if shuffle else np.arange(rows, dtype=np.int64)
    step = max(1, shard_bytes // max(1, *(_row_bytes(column) for column in source.fields)))
    shards, odd = [], _Odd()
    for number, first in enumerate(range(0, rows, step)):
        part = numbers[first : first + step]
        values = source.read(part)
        odd.look(values, part)
        files = tuple(
            _write(values[column.name], column, Path(folder), f"data/{split}", number)
            for column in source.fields
        )
        shards.append(ShardSpec(rows=len(part), files=files))
    spec = DataSpec(fields=tuple(source.fields), shards=tuple(shards))
    return Written(
        _checked(spec),
        Path(folder),
        classes=getattr(source, "classes", None),
        vocabulary=getattr(source, "vocabulary", None),
        not_finite=odd.found(),
    )


class _Odd:
    """Numbers that are not finite, counted shard by shard."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, int] = {}

    def look(self, values: Mapping[str, torch.Tensor], rows: Rows) -> None:
        for name, column in values.items():
            # The sum alone is much faster, and is finite where all are (unless it overflows).
            if not column.is_floating_point() or bool(column.sum(dtype=torch.float64).isfinite()):
                continue
            odd = ~column.isfinite().reshape(len(column), -1)
            count = int(odd.sum())
            if count:
                first = int(rows[odd.any(1).numpy()].min())
                self._first[name] = min(first, self._first.get(name, first))
                self._counts[name] += count

    def found(self) -> tuple[NotFinite, ...]:
        return tuple(NotFinite(name, n, self._first[name]) for name, n in self._counts.items())


def _row_bytes(column: FieldSpec) -> int:
    return SIZES[column.dtype] * math.prod(column.shape)


def _write(
    values: torch.Tensor, column: FieldSpec, folder: Path, place: str, number: int
) -> FileRef:
    content = save({column.name: values.contiguous()})
    path = f"{place}/{column.name}-{number:05d}.safetensors"
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return FileRef(path=path, sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def _checked(spec: DataSpec) -> DataSpec:
    """As a server will read it: limits hold for what is decoded, not for what is made here."""
    try:
        return msgspec.json.decode(msgspec.json.encode(spec), type=DataSpec)
    except msgspec.ValidationError as error:
        raise JobError(f"the dataset cannot be handed over: {error}") from error
