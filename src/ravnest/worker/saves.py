"""Whether there is a result in a package that was not there before.

A script may have put anything in its place: a pipe that nobody writes to, a link to what has no
end. Such a thing is no result, and is not waited for.
"""

import os
import stat
from pathlib import Path

from ravnest.rundir import TRAINED_MARK

_PLAIN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_MOST_BYTES = 64 << 20


class Saves:
    """Made when the work begins, asked when it has ended."""

    def __init__(self, package: Path) -> None:
        self._mark = package / TRAINED_MARK
        self._before = self._content()

    def is_new(self) -> bool:
        return self._content() not in (None, self._before)

    def _content(self) -> bytes | None:
        try:
            with os.fdopen(os.open(self._mark, _PLAIN), "rb") as file:
                is_plain = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                return file.read(_MOST_BYTES) if is_plain else None
        except OSError:
            return None
