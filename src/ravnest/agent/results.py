"""What a worker has saved, read as what a stranger's script may have made of it.

The package has to be a folder and results have to be files: not links, which may lead to files of
the owner or to results of other jobs, nor pipes, and not larger than weights of that stage can be.
They are opened within the folder that was looked at, whatever is put in its place meanwhile.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from ravnest.api.work import Assignment
from ravnest.descriptors import open_plain
from ravnest.errors import JobError

MANIFEST = "trained.json"
_RESULT = re.compile(r"trained\.json|trained-[0-9a-f]{16}\.safetensors")
_MOST_RESULTS = 16
"""A server takes no more of one assignment."""
_SPARE = 64 << 20
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def most_bytes(assignment: Assignment) -> int:
    """Of all results together: the new one and the one before it."""
    package = sum(file.size for file in assignment.files if file.path.startswith("package/"))
    return 2 * max(package, assignment.memory_bytes) + _SPARE


class Results:
    """Of one package; made by `results_in`."""

    def __init__(self, package: Path, folder: int | None) -> None:
        self._package, self._folder = package, folder

    def names(self) -> list[str]:
        """The one that speaks of the others comes last. Looks at all that is in the package: not
        for the thread of the event loop."""
        with os.scandir(self._package if self._folder is None else self._folder) as entries:
            found = (each.name for each in entries if _RESULT.fullmatch(each.name))
            files = (name for name in found if self.size(name) >= 0)
            names = sorted(itertools.islice(files, _MOST_RESULTS + 1))
        if len(names) > _MOST_RESULTS:
            raise JobError(f"the worker has saved more than {_MOST_RESULTS} files")
        return sorted(names, key=lambda name: name == MANIFEST)

    def fitting(self, most: int) -> list[str]:
        """Of these, as many as have no more than so many bytes together."""
        names = []
        for name in reversed(self.names()):
            most -= self.size(name)
            if most < 0:
                break
            names.append(name)
        return names

    def move(self, name: str, target: Path) -> None:
        """Into another folder of the same disk."""
        if self._folder is None:
            (self._package / name).replace(target / name)
            return
        os.fchmod(self._folder, 0o700)  # it may have been locked
        os.replace(name, target / name, src_dir_fd=self._folder)

    def size(self, name: str) -> int:
        """-1 if there is no such file."""
        with contextlib.suppress(OSError), self.open(name) as file:
            return os.fstat(file.fileno()).st_size
        return -1

    def open(self, name: str) -> BufferedReader:
        if self._folder is None:
            return open_plain(self._package / name)
        return open_plain(name, within=self._folder)


@contextlib.contextmanager
def results_in(package: Path) -> Iterator[Results]:
    if package.is_symlink():
        raise OSError("the package is a link")
    if os.open not in os.supports_dir_fd:  # Windows, where there are no sandboxes
        yield Results(package, None)
        return
    folder = os.open(package, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK)
    try:
        yield Results(package, folder)
    finally:
        os.close(folder)


def has_saved(package: Path) -> bool:
    with contextlib.suppress(OSError), results_in(package) as results:
        return results.size(MANIFEST) >= 0
    return False
