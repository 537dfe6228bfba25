"""Paths that people give as data: whether something is there, and what it is instead."""

from collections import Counter
from pathlib import Path

from ravnest.errors import JobError

_MOST_ENDINGS = 4
_MOST_FILES = 10_000
"""Looked at, to say what a folder holds."""


def check_there(path: Path) -> None:
    """A file, or a folder with something in it."""
    if not path.exists():
        place = "" if path.is_absolute() else f" (looked for in {Path.cwd()})"
        raise JobError(f"{path} does not exist{place}")
    if path.is_dir() and not any(path.iterdir()):
        raise JobError(f"{path} is empty")


def held_by(folder: Path) -> str:
    """What kinds of files there are, for an error: "it holds 3 .md, 1 .csv in sub-folders"."""
    endings: Counter[str] = Counter()
    nested = 0
    for number, file in enumerate(folder.rglob("*")):
        if number == _MOST_FILES:
            break
        if file.is_file():
            endings[file.suffix or "without an ending"] += 1
            nested += file.parent != folder
    if not endings:
        return "it holds no files, only sub-folders"
    shown = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(_MOST_ENDINGS))
    more = ", …" if len(endings) > _MOST_ENDINGS else ""
    where = " in sub-folders" if nested == endings.total() else ""
    return f"it holds {shown}{more}{where}"
