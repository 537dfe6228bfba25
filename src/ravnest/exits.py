"""What happens to nodes that are still open when the interpreter ends."""

import atexit
import os
import sys
from typing import Protocol


class Exiting(Protocol):
    """A provider, as far as its end is concerned."""

    @property
    def is_root(self) -> bool: ...
    def at_exit(self) -> int: ...


_open: set[Exiting] = set()


def close_at_exit(node: Exiting) -> None:
    if not _open:
        # Registered anew, so that it comes before whatever was registered earlier.
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open.add(node)


def forget(node: Exiting) -> None:
    _open.discard(node)


def _close_all() -> None:
    """Roots first: the others of the same process wait for their goodbye."""
    codes = [node.at_exit() for node in sorted(_open, key=lambda node: not node.is_root)]
    if any(codes):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(max(codes))
