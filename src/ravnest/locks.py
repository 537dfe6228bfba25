"""What only one process at a time may do, said by a lock file that the system gives back when the
process ends, however it ends."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import filelock

from ravnest.errors import RavnestError, RunDirError

_MISSING = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
"""What a file system says that has no locks. A full disk or a missing right say it themselves."""


class NoLocksError(RunDirError):
    """There are no locks in this folder."""


@contextlib.contextmanager
def only_one(lock: Path, otherwise: RavnestError, *, wait_s: float = 0.0) -> Iterator[None]:
    """Nobody else holds this lock meanwhile; if somebody does already, and does not give it back
    within `wait_s`, `otherwise` is raised; `NoLocksError` where that cannot be said."""
    held = filelock.FileLock(lock)
    try:
        held.acquire(timeout=wait_s)
    except filelock.Timeout:
        raise otherwise from None
    except NotImplementedError as error:
        raise _no_locks(lock, error) from error
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        raise _no_locks(lock, error) from error
    try:
        yield
    finally:
        held.release()


def _no_locks(lock: Path, error: Exception) -> NoLocksError:
    return NoLocksError(
        f"{lock} cannot be locked ({error}), so that nothing keeps two processes from using "
        f"{lock.parent} at once: choose a folder on a disk of this machine"
    )
