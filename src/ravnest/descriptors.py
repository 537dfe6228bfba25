"""Open files: how many of them and of connections a process may have, and how one is opened that
a stranger may have made."""

import contextlib
import os
import stat
import sys
from io import BufferedReader
from pathlib import Path

_AS_IT_IS = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
"""As far as the system has them. Opening a pipe must not wait for somebody who writes to it, and
Windows reads a text unless it is told not to."""

_UNKNOWN = 1024
"""Where the system does not say."""


def allow_many_files() -> None:
    """As many descriptors as the system lets this process have."""
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems refuse what they call the limit; then it stays as it was.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_callers() -> int:
    """How many connections may be taken from outside: the other half is for what we do ourselves,
    so that nobody who only calls can make files and neighbours out of reach."""
    if sys.platform == "win32":
        return _UNKNOWN // 2
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (_UNKNOWN if soft == resource.RLIM_INFINITY else soft) // 2


def open_plain(path: Path | str, *, within: int | None = None) -> BufferedReader:
    """To read it; OSError if it is a link, a pipe or anything else but a file. `within` is the
    descriptor of the folder that the path begins in."""
    if within is None and Path(path).is_symlink():  # where there is no O_NOFOLLOW
        raise OSError(f"{path} is a link")
    flags = os.O_RDONLY
    for name in _AS_IT_IS:
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags, dir_fd=within)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a file")
    return os.fdopen(descriptor, "rb")
