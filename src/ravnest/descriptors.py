"""How many files and connections a process may have open."""

import contextlib
import sys

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
