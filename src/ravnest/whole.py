"""Files that have the old content or the new one, whatever happens meanwhile, and are on disk."""

import contextlib
import os
import re
import secrets
import time
from pathlib import Path

PRIVATE = 0o600
"""For this user alone."""
_LEFT_S = 600.0
"""So old, a draft has nobody any more who writes it."""


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """With this mode from the first moment; also where two processes write at once."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)
    _sweep(path)


def _sweep(path: Path) -> None:
    """What was being written there when a process was killed: it may be a key."""
    drafts = re.compile(r"\." + re.escape(path.name) + r"\.[0-9a-f]{8}")
    with contextlib.suppress(OSError):
        for found in [each for each in path.parent.iterdir() if drafts.fullmatch(each.name)]:
            if time.time() - found.lstat().st_mtime > _LEFT_S:
                found.unlink()


def sync_folder(folder: Path) -> None:
    """A renamed file is found again after a power cut only if its folder is on disk too."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_files(folder: Path) -> None:
    """Everything in it that others have written, before somebody relies on it."""
    for path in folder.iterdir():
        if path.is_dir():
            sync_files(path)
        else:
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    sync_folder(folder)


def make_folder(folder: Path) -> None:
    """With those above it that are missing; all of them are found again after a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
