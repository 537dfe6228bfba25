"""Files of jobs, kept by their hash: the next run of a job wants mostly the same as the last.

    files/<job>/<sha256>     also in the folder of the assignment, as a hard link

A job that this machine has finished leaves nothing here; others leave what their newest run refers
to, until a day has passed, other jobs have come, or the disk is needed. Whatever is taken from here
is checked first: a worker may have written to it.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ravnest.api.limits import FileRef
from ravnest.client.http import hash_file
from ravnest.removing import remove

_MOST_JOBS = 4
_LONGEST_S = 24 * 3600.0


@dataclass(frozen=True)
class KeptFiles:
    """All of them, under the agent's home."""

    home: Path

    @property
    def root(self) -> Path:
        return self.home / "files"

    def expect(self, job: str, files: Iterable[FileRef]) -> None:
        """A run of that job begins with these; what cannot be of use any more goes."""
        folder = self.root / job
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.utime(folder)
            self._keep_only(files, folder)
        self.prune(but=job)

    def _keep_only(self, files: Iterable[FileRef], folder: Path) -> None:
        """A script may have made them larger, as far as the disk went."""
        sizes = {file.sha256: file.size for file in files}
        for path in folder.iterdir():
            if path.lstat().st_size != sizes.get(path.name):
                path.unlink()

    def prune(self, but: str | None = None) -> None:
        """Too old, or too many, not counting the job that is at work."""
        room = _MOST_JOBS - (but is not None)
        too_old = time.time() - _LONGEST_S
        for place, (at, other) in enumerate(self._others(but)):
            if place >= room or at < too_old:
                self._remove(other)

    def leave(self, job: str, files: Iterable[FileRef]) -> None:
        """A run of that job with these has ended, and there may be another: the day begins now."""
        folder = self.root / job
        with contextlib.suppress(OSError):
            self._keep_only(files, folder)
            os.utime(folder)

    def has(self, job: str, file: FileRef) -> bool:
        """As far as its size tells."""
        with contextlib.suppress(OSError):
            return (self.root / job / file.sha256).stat().st_size == file.size
        return False

    def put(self, job: str, file: FileRef, target: Path) -> bool:
        """The file in its place, if it is here and is what it should be."""
        kept = self.root / job / file.sha256
        try:
            # Its size first: it may have been made endless.
            if not self.has(job, file) or hash_file(kept) != (file.sha256, file.size):
                kept.unlink(missing_ok=True)
                return False
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.hardlink_to(kept)
        except OSError:
            return False
        return True

    def keep(self, job: str, file: FileRef, source: Path) -> None:
        """Where links cannot be made, nothing is kept: a copy would need the disk twice."""
        kept = self.root / job / file.sha256
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            kept.hardlink_to(source)

    def drop(self, job: str) -> None:
        self._remove(self.root / job)

    def make_room(self, job: str) -> None:
        """The disk is needed for that job."""
        for _, other in self._others(job):
            self._remove(other)

    def _remove(self, folder: Path) -> None:
        """What is left of it counts as old, and is tried again."""
        with contextlib.suppress(OSError):
            remove(folder)

    def _others(self, job: str | None) -> list[tuple[float, Path]]:
        """Of other jobs, the newest first."""
        found: list[tuple[float, Path]] = []
        for path in self.root.glob("*/"):
            # Another thread may remove it meanwhile.
            with contextlib.suppress(OSError):
                if path.name != job:
                    found.append((path.stat().st_mtime, path))
        return sorted(found, reverse=True)
