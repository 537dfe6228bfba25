"""How many files and connections a process may have open."""

import contextlib
import sys


def allow_many_files() -> None:
    """As many descriptors as the system lets this process have."""
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems refuse what they call the limit; then it stays as it was.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
