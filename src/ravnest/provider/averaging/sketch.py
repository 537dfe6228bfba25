"""Long vectors as short ones that tell how long they are, and whether they were changed.

A sketch is linear: of a sum it is the sum of the sketches, whatever pieces the vector came in. Each
row of 128 elements is multiplied by a random number of its own and added up, in four tables with
numbers of their own (AMS sketch). The numbers follow from a key. They are real numbers and no
signs: changes in two rows cancel each other out where their numbers are equal, which for signs is
every other pair, and for these, in all four tables, no pair that a member without the key can name.
"""

import hashlib

import numpy as np
import torch
from cryptography.hazmat.primitives.poly1305 import Poly1305

from ravnest.wire.codecs import Packed, unpack

BUCKETS, TABLES = 128, 4
"""Norms are right to about 6 % in each table."""
_BLOCK = 4096 * BUCKETS
"""Elements that are added up in single precision; blocks are added up in double precision."""
Payload = torch.Tensor | Packed


def empty_sketch() -> torch.Tensor:
    return torch.zeros(TABLES, BUCKETS, dtype=torch.float64)


def length_of(sketch: torch.Tensor) -> float:
    """Of the vector. The longest that a table tells: one in which something cancels out does not
    hide it."""
    return float(sketch.norm(dim=1).max())


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
        position, left = start, values.detach()
        while left.numel():
            row, column = divmod(position, BUCKETS)
            if column or left.numel() < BUCKETS:
                piece = left[: BUCKETS - column]
                numbers = self._numbers_of(name, row + 1)[:, row].double()
                part = torch.outer(numbers, piece.double())
                into[:, column : column + piece.numel()].add_(part, alpha=scale)
            else:
                rows = min(left.numel(), _BLOCK) // BUCKETS
                piece = left[: rows * BUCKETS]
                numbers = self._numbers_of(name, row + rows)[:, row : row + rows]
                into.add_(numbers.to(piece.dtype) @ piece.view(rows, BUCKETS), alpha=scale)
            position, left = position + piece.numel(), left[piece.numel() :]

    def of(self, name: str, values: torch.Tensor) -> torch.Tensor:
        sketch = empty_sketch()
        self.add(sketch, name, 0, values)
        return sketch

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

    def _numbers_of(self, name: str, rows: int) -> torch.Tensor:
        """From 0.5 to 1.5 with either sign, their squares 1 on average: one of TABLES for each."""
        known = self._numbers.get(name)
        if known is None or known.shape[1] < rows:
            # A longer stream begins with the shorter one, and is the same with every torch.
            size = max(1024, 1 << (rows - 1).bit_length())
            drawn = np.stack([self._drawn(f"{name}/{table}", size) for table in range(TABLES)])
            known = self._numbers[name] = torch.from_numpy(drawn)
        return known

    def _drawn(self, about: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        key = hashlib.blake2b(about.encode(), key=self.key, digest_size=16).digest()
        stream = np.random.Philox(key=int.from_bytes(key))
        drawn = stream.random_raw((count + 1) // 2).view(np.uint32)[:count]
        sizes = (0.5 + (drawn >> 1) / float(1 << 31)) / np.sqrt(13 / 12)
        found: np.ndarray[tuple[int], np.dtype[np.float32]]
        found = np.where(drawn & 1, sizes, -sizes).astype(np.float32)
        return found


def values_of(payload: Payload) -> torch.Tensor:
    return unpack(payload) if isinstance(payload, Packed) else payload
