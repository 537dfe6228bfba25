"""Whether there is a result in a package that was not there before."""

from pathlib import Path

from ravnest.rundir import TRAINED_MARK


class Saves:
    """Made when the work begins, asked when it has ended."""

    def __init__(self, package: Path) -> None:
        self._mark = package / TRAINED_MARK
        self._before = self._content()

    def is_new(self) -> bool:
        return self._content() not in (None, self._before)

    def _content(self) -> bytes | None:
        try:
            return self._mark.read_bytes()
        except OSError:
            return None
