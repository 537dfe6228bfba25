"""Long vectors as short ones that tell how long they are, and whether they were changed.

A sketch is linear: of a sum it is the sum of the sketches, whatever pieces the vector came in. Each
row of 512 elements is multiplied by a random number of its own and added up, in four tables with
numbers of their own (AMS sketch). The numbers follow from a key. They are real numbers and no
signs: changes in two rows cancel each other out where their numbers are equal, which for signs is
every other pair, and for these, in all four tables, no pair that a member without the key can name.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from cryptography.hazmat.primitives.poly1305 import Poly1305

from ravnest.wire.codecs import Packed, unpack

BUCKETS, TABLES = 512, 4
"""Norms are right to about 3 % in each table, where rows are not alike."""
_BLOCK = 1024 * BUCKETS
"""Elements that are added up in single precision; blocks are added up in double precision."""
Payload = torch.Tensor | Packed


def empty_sketch() -> torch.Tensor:
    return torch.zeros(TABLES, BUCKETS, dtype=torch.float64)


def length_of(sketch: torch.Tensor) -> float:
    """Of the vector, as all tables together tell it."""
    return math.sqrt(float(sketch.square().sum()) / len(sketch))


def longest_of(sketches: torch.Tensor) -> float:
    """Of the vector, as the table tells it that makes it longest. Where rows are alike (a gradient
    of one sample, a shift) a table may tell far too little, but hardly all of several keys."""
    return float(sketches.norm(dim=-1).max()) if sketches.numel() else 0.0


class Sketcher:
    """Sketches under one key."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._numbers: dict[str, torch.Tensor] = {}

    def add(
        self,
        into: torch.Tensor,
        name: str,
        start: int,
        values: torch.Tensor,
        scale: float = 1.0,
    ) -> None:
        """The elements from `start` on of the vector of this name, times `scale`."""
        add_all([self], into[None], name, start, values, scale)

    def of(self, name: str, values: torch.Tensor) -> torch.Tensor:
        return sketches_of([self], name, values)[0]

    def digest(self, payload: Payload, place: tuple[int, ...]) -> int:
        """Of the bytes as they travel, and of where they belong. Sums of digests tell whether any
        of them was changed, or has changed places with another."""
        parts = payload.parts if isinstance(payload, Packed) else (payload,)
        total = 0
        for number, part in enumerate(parts):
            codec = payload.codec if isinstance(payload, Packed) else ""
            about = repr((place, number, codec, str(part.dtype), tuple(part.shape)))
            key = hashlib.blake2b(about.encode(), key=self.key, digest_size=32).digest()
            # As bytes: numpy knows fewer kinds of numbers than torch.
            content = part.detach().reshape(-1).contiguous().view(torch.uint8).numpy().data
            total += int.from_bytes(Poly1305.generate_tag(key, content)[:7])
        return total

    def numbers_of(self, name: str, rows: int) -> torch.Tensor:
        """From 0.5 to 1.5 with either sign, their squares 1 on average: TABLES for each row."""
        known = self._numbers.get(name)
        if known is None or len(known) < rows:
            # A longer stream begins with the shorter one, and is the same with every torch.
            size = max(rows, 0 if known is None else 2 * len(known))
            drawn = self._drawn(name, size * TABLES)
            known = self._numbers[name] = torch.from_numpy(drawn).view(size, TABLES)
        return known

    def _drawn(self, about: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        key = hashlib.blake2b(about.encode(), key=self.key, digest_size=16).digest()
        stream = np.random.Philox(key=int.from_bytes(key))
        drawn = stream.random_raw((count + 1) // 2).view(np.uint32)[:count]
        # By their bits, which takes a tenth of the time: the upper ones are a fraction of the
        # numbers from 1 to 2, the lowest one is the sign.
        bits = (drawn >> 9) | np.uint32(0x3F800000)
        sizes = bits.view(np.float32)
        sizes -= np.float32(0.5)
        sizes *= np.float32(1 / math.sqrt(13 / 12))
        bits |= drawn << 31
        return sizes


def add_all(
    keys: Sequence[Sketcher],
    into: torch.Tensor,
    name: str,
    start: int,
    values: torch.Tensor,
    scale: float = 1.0,
) -> None:
    """To the sketches under all these keys: the values are read once."""
    tables = into.view(-1, BUCKETS)
    position, left = start, values.detach()
    while left.numel() and keys:
        row, column = divmod(position, BUCKETS)
        is_part = bool(column) or left.numel() < BUCKETS
        rows = 1 if is_part else min(left.numel(), _BLOCK) // BUCKETS
        piece = left[: BUCKETS - column] if is_part else left[: rows * BUCKETS]
        drawn = [key.numbers_of(name, row + rows)[row : row + rows] for key in keys]
        numbers = torch.cat(drawn, dim=1).T
        if is_part:
            part = torch.outer(numbers[:, 0].double(), piece.double())
            tables[:, column : column + piece.numel()].add_(part, alpha=scale)
        else:
            tables.add_(numbers.to(piece.dtype) @ piece.view(rows, BUCKETS), alpha=scale)
        position, left = position + piece.numel(), left[piece.numel() :]


def sketches_of(keys: Sequence[Sketcher], name: str, values: torch.Tensor) -> torch.Tensor:
    """One for each key."""
    sketches = empty_sketches(len(keys))
    add_all(keys, sketches, name, 0, values)
    return sketches


def empty_sketches(count: int) -> torch.Tensor:
    return torch.zeros(count, TABLES, BUCKETS, dtype=torch.float64)


def values_of(payload: Payload) -> torch.Tensor:
    return unpack(payload) if isinstance(payload, Packed) else payload
