"""Files that have the old content or the new one, whatever happens meanwhile, and are on disk.

And what processes that are not trusted have left behind: read up to a limit, and no way to other
folders.
"""

import contextlib
import errno
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


def read_at_most(path: Path, most: int) -> bytes:
    """All of a file, or an `OSError` if it is larger than anything that belongs there."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"more than {most} bytes", path.name)
        return file.read(most)


def must_be_plain(path: Path, root: Path) -> None:
    """An `OSError` if a link is on the way from the root to this path. The folders in the root
    itself are its owner's, who may link them to another disk."""
    below = path.relative_to(root).parts
    for count in range(2, len(below) + 1):
        if root.joinpath(*below[:count]).is_symlink():
            raise OSError(errno.ELOOP, "there is a link on the way to it", below[count - 1])
