"""Text as a dataset: windows of tokens, from which a model learns each time the next one.

A window has one token more than the model sees at once; what goes in and what is to come out are
slices of it (`next_token`). Files are read in pieces, so text may be larger than memory.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from ravnest.api.jobs import FieldSpec, InputSpec, Named
from ravnest.data.places import check_there, held_by
from ravnest.data.sources import Columns
from ravnest.errors import JobError
from ravnest.recipes.randomness import Rows

_PIECE = 1 << 20
_CODE_POINTS = 0x110000
Tokens = npt.NDArray[np.integer]


class TokenWindows:
    """Windows of `length` + 1 tokens; the next begins `stride` tokens later."""

    def __init__(
        self,
        tokens: Any,
        length: int,
        *,
        stride: int | None = None,
        vocabulary: Sequence[str] | None = None,
    ) -> None:
        found = tokens.detach().cpu().numpy() if isinstance(tokens, torch.Tensor) else tokens
        self._tokens: Tokens = np.asarray(found) if not isinstance(found, np.ndarray) else found
        if self._tokens.ndim != 1 or self._tokens.dtype.kind not in "iu":
            raise JobError(
                f"tokens must be one long row of whole numbers, not {self._tokens.dtype}"
                f"{list(self._tokens.shape)}"
            )
        if self._tokens.dtype.name not in ("uint8", "int8", "int16", "int32", "int64"):
            raise JobError(f"tokens are {self._tokens.dtype}; convert them to int32 or int64")
        self._stride = length if stride is None else stride
        if length < 1 or self._stride < 1:
            raise JobError(f"length is {length} and stride {stride}; expected numbers from 1")
        if len(self._tokens) <= length:
            raise JobError(
                f"there are {len(self._tokens)} tokens, and a window of length {length} needs "
                f"{length + 1}: make it shorter, or give more text"
            )
        self._length = length
        self.vocabulary = None if vocabulary is None else tuple(vocabulary)
        dtype = self._tokens.dtype.name
        self.fields = (FieldSpec(name="tokens", dtype=dtype, shape=(length + 1,)),)

    def __len__(self) -> int:
        return (len(self._tokens) - self._length - 1) // self._stride + 1

    def read(self, rows: Rows) -> Columns:
        places = rows[:, None] * self._stride + np.arange(self._length + 1)
        return {"tokens": torch.from_numpy(np.ascontiguousarray(self._tokens[places]))}


def next_token(field: str = "tokens", argument: str = "_") -> tuple[InputSpec, InputSpec]:
    """The input and the target of a recipe that learns the next token of every one."""
    cast = Named(name="cast", params={"dtype": "int64"})
    seen = Named(name="slice", params={"stop": -1})
    wanted = Named(name="slice", params={"start": 1})
    return (
        InputSpec(field=field, argument=argument, transforms=(seen, cast)),
        InputSpec(field=field, transforms=(wanted, cast)),
    )


def text_windows(
    path: Path | str,
    length: int,
    *,
    tokens: Literal["bytes", "characters"] = "bytes",
    vocabulary: Sequence[str] | None = None,
    stride: int | None = None,
) -> TokenWindows:
    """A .txt file, or all those in a folder, one after another with a line between them.

    Bytes need no vocabulary. Characters are numbered in the order of their code points; give the
    `vocabulary` of the training text for a validation text.
    """
    files = _text_files(Path(path))
    if tokens == "bytes":
        return TokenWindows(_joined(_bytes(files), np.dtype(np.uint8)), length, stride=stride)
    if tokens != "characters":
        raise JobError(f"tokens is {tokens!r}; expected 'bytes' or 'characters'")
    known = tuple(_characters(files)) if vocabulary is None else tuple(vocabulary)
    encoded = _joined(_numbers(files, known), _smallest(len(known)))
    return TokenWindows(encoded, length, stride=stride, vocabulary=known)


def _text_files(path: Path) -> list[Path]:
    check_there(path)
    if path.is_file():
        return [path]
    found = sorted(file for file in path.rglob("*.txt") if file.is_file())
    if not found:
        raise JobError(
            f"{path} is neither a text file nor a folder with .txt files: {held_by(path)}"
        )
    return found


def _bytes(files: Sequence[Path]) -> Iterator[Tokens]:
    for number, path in enumerate(files):
        if number:
            yield np.frombuffer(b"\n", dtype=np.uint8)
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                yield np.frombuffer(piece, dtype=np.uint8)


def _code_points(files: Sequence[Path]) -> Iterator[tuple[Path, npt.NDArray[np.uint32]]]:
    for number, path in enumerate(files):
        if number:
            yield path, np.array([ord("\n")], dtype=np.uint32)
        try:
            with path.open(encoding="utf-8", newline="") as file:
                while piece := file.read(_PIECE):
                    yield path, np.frombuffer(piece.encode("utf-32-le"), dtype="<u4")
        except UnicodeDecodeError as error:
            raise JobError(f"{path} is not UTF-8 text: {error}; use tokens='bytes'") from error


def _characters(files: Sequence[Path]) -> list[str]:
    seen: set[int] = set()
    for _, piece in _code_points(files):
        seen.update(np.unique(piece).tolist())
    return [chr(point) for point in sorted(seen)]


def _numbers(files: Sequence[Path], vocabulary: Sequence[str]) -> Iterator[Tokens]:
    numbers = np.full(_CODE_POINTS, -1, dtype=np.int32)
    for number, character in enumerate(vocabulary):
        if len(character) != 1:
            raise JobError(f"the vocabulary has {character!r}, which is no single character")
        numbers[ord(character)] = number
    for path, piece in _code_points(files):
        found = numbers[piece]
        if found.size and int(found.min()) < 0:
            unknown = chr(int(piece[int(found.argmin())]))
            raise JobError(f"{path} has the character {unknown!r}, which is not in the vocabulary")
        yield found


def _smallest(count: int) -> np.dtype[Any]:
    for dtype in (np.uint8, np.int16, np.int32):
        if count <= np.iinfo(dtype).max + 1:
            return np.dtype(dtype)
    raise JobError(f"a vocabulary of {count} characters is too large")


def _joined(pieces: Iterator[Tokens], dtype: np.dtype[Any]) -> Tokens:
    """All pieces as one array, in a file that goes with it."""
    with tempfile.TemporaryFile() as file:
        for piece in pieces:
            file.write(piece.astype(dtype, copy=False).tobytes())
        if not file.tell():
            raise JobError("the text is empty")
        file.flush()
        return np.memmap(file, dtype=dtype, mode="r")
