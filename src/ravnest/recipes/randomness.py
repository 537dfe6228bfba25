"""Random numbers that depend on nothing but their keys, on any machine and with any library.

Root and Leaf of a cluster shuffle apart from each other and must come to the same order, so neither
a library's generator nor its state will do. Every number is a hash of what it is for: a seed, an
epoch, a cluster, a row.
"""

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_WORD = (1 << 64) - 1


def hashes(numbers: npt.NDArray[np.integer], *of: int) -> Hashes:
    """One for each number, different for different numbers: the mapping is one to one."""
    state = np.uint64(key(*of))
    with np.errstate(over="ignore"):
        return _mixed(numbers.astype(np.uint64) * np.uint64(_STEP) + state)


def order(rows: int, *of: int) -> Rows:
    """The numbers from 0 to rows - 1 in an order that follows from the key."""
    found = np.argsort(hashes(np.arange(rows, dtype=np.int64), *of), kind="stable")
    return found.astype(np.int64, copy=False)


def fractions(numbers: npt.NDArray[np.integer], *of: int) -> npt.NDArray[np.float64]:
    """From 0 up to, not including, 1."""
    return (hashes(numbers, *of) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(state: Hashes) -> Hashes:
    """The finalizer of splitmix64."""
    with np.errstate(over="ignore"):
        state = (state ^ (state >> np.uint64(30))) * _FIRST
        state = (state ^ (state >> np.uint64(27))) * _SECOND
        return state ^ (state >> np.uint64(31))


def key(*of: int) -> int:
    """Several numbers as one, below 2**64."""
    state = len(of)
    for number in of:
        word = np.array([(state * _STEP + number) & _WORD], dtype=np.uint64)
        state = int(_mixed(word)[0])
    return state
