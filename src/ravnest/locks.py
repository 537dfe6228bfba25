"""What only one process at a time may do, said by a lock file that the system gives back when the
process ends, however it ends."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import filelock

from ravnest.errors import RavnestError


@contextlib.contextmanager
def only_one(lock: Path, otherwise: RavnestError, *, wait_s: float = 0.0) -> Iterator[None]:
    """Nobody else holds this lock meanwhile; if somebody does already, and does not give it back
    within `wait_s`, `otherwise` is raised."""
    held = filelock.FileLock(lock)
    try:
        held.acquire(timeout=wait_s)
    except filelock.Timeout:
        raise otherwise from None
    try:
        yield
    finally:
        held.release()
