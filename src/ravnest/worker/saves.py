"""Whether there is a result in a package that was not there before.

A script may have put anything in its place: a pipe that nobody writes to, a link to what has no
end. Such a thing is no result, and is not waited for.
"""

from pathlib import Path

from ravnest.descriptors import open_plain
from ravnest.rundir import TRAINED_MARK

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
            with open_plain(self._mark) as file:
                return file.read(_MOST_BYTES)
        except OSError:
            return None
