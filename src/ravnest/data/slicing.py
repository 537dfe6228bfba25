"""Some rows of a shard as a file of their own, byte by byte: needs neither torch nor memory.

All rows of a column have one size, so that consecutive ones are consecutive bytes, whatever the
column is of: numbers, windows of tokens, pixels. The file that comes out is a shard as any other.
"""

import hashlib
import math
from pathlib import Path
from typing import BinaryIO

import msgspec

from ravnest.api.jobs import FieldSpec
from ravnest.api.limits import NOT_UNDERSTOOD, FileRef
from ravnest.errors import JobError
from ravnest.recipes.kinds import SIZES

_LENGTH_BYTES, _ALIGNED = 8, 8
_MOST_HEADER = 1 << 16
_PIECE = 1 << 20


class _Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a safetensors header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def row_bytes(column: FieldSpec) -> int:
    return SIZES[column.dtype] * math.prod(column.shape)


def slice_rows(
    source: Path, target: Path, file: FileRef, column: FieldSpec, rows: int, wanted: range
) -> FileRef:
    """Write the `wanted` rows of a shard of `rows` to `target`; how the file is called stays."""
    width, digest = row_bytes(column), hashlib.sha256()
    try:
        with source.open("rb") as shard, target.open("xb") as cut:
            entry, begin = _entry(shard, column, rows)
            header = _header(column.name, entry, len(wanted), len(wanted) * width)
            shard.seek(begin + wanted.start * width)
            left, piece = len(wanted) * width, header
            while piece:
                cut.write(piece)
                digest.update(piece)
                piece = shard.read(min(_PIECE, left))
                left -= len(piece)
            if left:
                raise JobError(f"it ends {left} bytes before its last row")
    except JobError as error:
        target.unlink(missing_ok=True)
        raise JobError(f"{file.path} cannot be divided: {error}") from None
    except OSError:
        target.unlink(missing_ok=True)
        raise
    size = len(header) + len(wanted) * width
    return FileRef(path=file.path, sha256=digest.hexdigest(), size=size)


def _entry(shard: BinaryIO, column: FieldSpec, rows: int) -> tuple[_Tensor, int]:
    """The only tensor of a shard, and where its bytes begin."""
    length = int.from_bytes(shard.read(_LENGTH_BYTES), "little")
    if length > _MOST_HEADER:
        raise JobError(f"its header has {length} bytes, more than the {_MOST_HEADER} allowed")
    try:
        found = msgspec.json.decode(shard.read(length), type=dict[str, msgspec.Raw])
        found.pop("__metadata__", None)
        if set(found) != {column.name}:
            raise JobError(f"it does not hold the tensor {column.name!r} alone")
        entry = msgspec.json.decode(found[column.name], type=_Tensor)
    except NOT_UNDERSTOOD as error:
        raise JobError(f"it is no safetensors file ({error})") from None
    if entry.shape != [rows, *column.shape]:
        announced = [rows, *column.shape]
        raise JobError(f"its shape is {entry.shape}, and {announced} was announced")
    if entry.data_offsets != (0, rows * row_bytes(column)):
        raise JobError(f"its bytes are not those of {rows} rows of {column.dtype}")
    return entry, _LENGTH_BYTES + length


def _header(name: str, entry: _Tensor, rows: int, size: int) -> bytes:
    cut = _Tensor(dtype=entry.dtype, shape=[rows, *entry.shape[1:]], data_offsets=(0, size))
    text = msgspec.json.encode({name: cut})
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
