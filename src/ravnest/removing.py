"""Folders that a stranger has had in its hands, a script on a provider's machine or a process that
plans on the server: moved out of the way, and removed.

They may be thousands of levels deep, locked, full of links and pipes. So nothing here recurses,
nothing opens a path of more than one name, and no link is followed. What is inside a folder is
moved up to the top, level after level, until the top has nothing but files and empty folders.
Knows nothing of what the folders are for.
"""

import contextlib
import errno
import itertools
import logging
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

logger = logging.getLogger("ravnest")
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.scandir in os.supports_fd
"""Else it is Windows, where there are no sandboxes."""
_OURS = 0o700
_AT_ONCE = 1000
_MOST_STUCK = 100


def remove(path: Path) -> None:
    """All of it, whatever it is; nothing if it is not there. OSError if something is left: as much
    as possible has been removed then."""
    if not _BY_DESCRIPTOR:
        _remove_by_path(path)
        return
    with contextlib.suppress(FileNotFoundError), _opened(path.parent) as parent:
        if not _is_folder(path.name, parent):
            os.unlink(path.name, dir_fd=parent)
            return
        with _folder(path.name, parent) as top:
            _empty(top)
        os.rmdir(path.name, dir_fd=parent)


def remove_whole(path: Path) -> None:
    """The same for whoever can do nothing about what stays: the log says so."""
    try:
        remove(path)
    except OSError as error:
        logger.warning("%s cannot be removed, something of it stays: %s", path, error)


def move(path: Path, target: Path) -> None:
    """Within one disk. A folder can be moved only by somebody who may write to it."""
    if not _BY_DESCRIPTOR:
        path.replace(target)
        return
    with _opened(path.parent) as parent:
        if _is_folder(path.name, parent):
            with _folder(path.name, parent):
                pass
        os.replace(path.name, target, src_dir_fd=parent)


def _empty(top: int) -> None:
    stuck: dict[str, OSError] = {}
    while names := _some(top, but=stuck):
        for name in names:
            try:
                _take_apart(name, top)
            except OSError as error:
                stuck[name] = error
                if len(stuck) > _MOST_STUCK:
                    raise
    for first in stuck.values():
        raise first


def _take_apart(name: str, top: int) -> None:
    if not _is_folder(name, top):
        os.unlink(name, dir_fd=top)
        return
    with _folder(name, top) as inner:
        while names := _some(inner):
            for each in names:
                if _is_folder(each, inner):
                    with _folder(each, inner):
                        os.replace(each, uuid.uuid4().hex, src_dir_fd=inner, dst_dir_fd=top)
                else:
                    os.unlink(each, dir_fd=inner)
    os.rmdir(name, dir_fd=top)


def _some(folder: int, but: dict[str, Any] | None = None) -> list[str]:
    """Names of what is in it; not all at once, there may be millions."""
    with os.scandir(folder) as found:
        names = (entry.name for entry in found if not but or entry.name not in but)
        return list(itertools.islice(names, _AT_ONCE))


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


@contextlib.contextmanager
def _folder(name: str, parent: int) -> Iterator[int]:
    """Opened, and ours to read and write."""
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        _unlock(name, parent)
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & _OURS != _OURS:
            os.fchmod(descriptor, _OURS)
        yield descriptor
    finally:
        os.close(descriptor)


def _unlock(name: str, parent: int) -> None:
    """One that cannot be opened, and is no link."""
    if os.chmod in os.supports_follow_symlinks:
        os.chmod(name, _OURS, dir_fd=parent, follow_symlinks=False)
        return
    # Linux: a descriptor that is good for nothing but to say which folder is meant.
    descriptor = os.open(name, _FOLDER | getattr(os, "O_PATH", 0), dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", _OURS)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """One of the agent's own."""
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_by_path(path: Path) -> None:
    def unlock(act: Callable[..., Any], name: str, _: Any) -> None:
        os.chmod(name, stat.S_IWRITE)
        act(name)

    try:
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
        elif sys.version_info >= (3, 12):
            shutil.rmtree(path, onexc=unlock)
        else:
            shutil.rmtree(path, onerror=unlock)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "too many folders in each other", str(path)) from None
