"""Memory for what arrives, used again once nobody looks at it any more.

Fresh memory costs: the kernel hands it out page by page, each filled with zeros first. Messages of
a link are of a few sizes that come again and again, so memory of those sizes is kept for a while.
"""

import sys
from collections import defaultdict

import numpy as np
import numpy.typing as npt

_LEAST_BYTES = 64 << 10
"""Smaller ones come from memory that is not given back to the kernel anyway."""


def _references_to_unused() -> int:
    """To an array that only a list knows, as a loop over the list counts them: what the loop and
    the call add differs between versions of Python."""
    arrays = [np.empty(0, dtype=np.uint8)]
    for array in arrays:
        count = sys.getrefcount(array)
    return count


_UNUSED = _references_to_unused()


class BufferPool:
    """For one stream. Keeps no more than `most_bytes`, in use or not."""

    def __init__(self, most_bytes: int = 64 << 20) -> None:
        self._most_bytes = most_bytes
        self._arrays: defaultdict[int, list[npt.NDArray[np.uint8]]] = defaultdict(list)
        self._held = 0

    def take(self, size: int) -> memoryview:
        """So many bytes, with anything in them; they belong to whoever holds a view of them."""
        for array in self._arrays.get(size, ()):
            if sys.getrefcount(array) == _UNUSED:
                return array.data
        array = np.empty(size, dtype=np.uint8)
        if _LEAST_BYTES <= size <= self._most_bytes:
            self._keep(array)
        return array.data

    def _keep(self, array: npt.NDArray[np.uint8]) -> None:
        size = array.nbytes
        for other in list(self._arrays):
            if self._held + size <= self._most_bytes:
                break
            if other != size:  # sizes that came once, or not any more
                self._held -= other * len(self._arrays.pop(other))
        if self._held + size <= self._most_bytes:
            self._arrays[size].append(array)
            self._held += size
