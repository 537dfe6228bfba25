"""How a process notices that the one which started it is gone, however that one ended.

The launcher holds the writing end of a pipe and never writes; its children get the reading end and
the number of it in an environment variable. When the launcher dies, be it by SIGKILL, the system
closes the writing end, and whoever reads comes to the end of the pipe. Windows hands no descriptors
down to children; there is no such line there.
"""

import contextlib
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator

VARIABLE = "RAVNEST_LIFELINE"

_descriptor: int | None = None
"""The reading end, once the variable has been taken out of the environment."""


@contextlib.contextmanager
def hold() -> Iterator[int | None]:
    """The descriptor to hand to children; it ends with this block or with this process."""
    if sys.platform == "win32":
        yield None
        return
    theirs, ours = os.pipe()
    try:
        yield theirs
    finally:
        os.close(ours)
        os.close(theirs)


def watch(on_gone: Callable[[], None]) -> None:
    """Call `on_gone` in a thread of its own once the launcher is gone; nothing without a launcher.

    What this process prints usually goes through the launcher, so `on_gone` cannot count on print.
    """
    global _descriptor
    value = os.environ.pop(VARIABLE, None)
    if value is not None:
        _descriptor = _our_pipe(value)
    if _descriptor is not None:
        # More than one may watch: at the end of the pipe every read returns.
        thread = threading.Thread(
            target=_read_to_end, args=(_descriptor, on_gone), name="lifeline", daemon=True
        )
        thread.start()


def _our_pipe(value: str) -> int | None:
    """The descriptor of that number, from now on kept from children; None if it is no pipe.

    A child that was started before anybody watched has the variable but not the descriptor; under
    its number there is nothing, or something else that must not be read from.
    """
    try:
        descriptor = int(value)
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return None
        os.set_inheritable(descriptor, False)
    except (ValueError, OverflowError, OSError):
        return None
    return descriptor


def _read_to_end(descriptor: int, on_gone: Callable[[], None]) -> None:
    while os.read(descriptor, 1):
        pass
    on_gone()
