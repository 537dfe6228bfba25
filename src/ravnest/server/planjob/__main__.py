"""`python -m ravnest.server.planjob FOLDER`: does what the folder says, and writes how it ended."""

import contextlib
import errno
import os
import sys
from pathlib import Path

import msgspec

from ravnest import lifeline
from ravnest.errors import PlanError, PoolError, RavnestError
from ravnest.planning.figures import size
from ravnest.server.planjob.outcome import MEMORY, ORDER, OUTCOME, PlanOrder, PlanOutcome
from ravnest.server.room import is_for_lack_of_room
from ravnest.whole import write_whole

_LACKS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO})
"""Open files, memory, a disk that can be read. Room is another matter (`server.room`)."""


def main(folder: Path) -> None:
    # Nobody needs what it makes once the server is gone.
    lifeline.watch(lambda: os._exit(1))
    _die_first()
    limit_memory(int(os.environ.get(MEMORY, "0")))
    order = msgspec.json.decode((folder / ORDER).read_bytes(), type=PlanOrder)
    write_whole(folder / OUTCOME, msgspec.json.encode(_done(order, folder)))


def _done(order: PlanOrder, folder: Path) -> PlanOutcome:
    try:
        from ravnest.server.planjob import tasks

        task = {"check": tasks.check, "plan": tasks.plan, "fuse": tasks.fuse}[order.task]
        return task(order, folder)
    except RavnestError as error:
        # First: no pool, however large, gives this process more.
        if _is_of_memory(error):
            return _too_large()
        full = is_for_lack_of_room(error.__cause__)
        lacks = full or lacks_something(error.__cause__)
        return PlanOutcome(
            error=str(error).replace(f"{order.model}: ", "").replace(order.model, ""),
            unfit=isinstance(error, PlanError | PoolError) and not lacks,
            crashed=lacks,
            full=full,
        )
    except Exception as error:
        full = is_for_lack_of_room(error)
        if full or isinstance(error, OSError):
            why = error.strerror if isinstance(error, OSError) else f"no room on its disk ({error})"
            return PlanOutcome(error=f"the server cannot do this: {why}", crashed=True, full=full)
        if _is_of_memory(error):
            return _too_large()
        raise


def _is_of_memory(error: BaseException | None) -> bool:
    """Whether there was none left, at the beginning of it all. Torch says so in words; the system
    says the same of a lack that is not this process's own."""
    while error is not None:
        of_torch = isinstance(error, RuntimeError) and "allocate memory" in str(error)
        if isinstance(error, MemoryError) or of_torch:
            return True
        error = error.__cause__ or error.__context__
    return False


def _too_large() -> PlanOutcome:
    """Of the machine's own lack it may be said that it passes; of the limit it may not."""
    limit = int(os.environ.get(MEMORY, "0"))
    if not limit:
        return PlanOutcome(error="there is not enough memory for this on the server", crashed=True)
    return PlanOutcome(
        error=f"this takes more than the {size(limit)} of memory that the server allows "
        "(ravnest server --plan-memory)"
    )


def lacks_something(error: BaseException | None) -> bool:
    """Whether an error is about the machine, whatever the files are like."""
    return isinstance(error, OSError) and error.errno in _LACKS


def _die_first() -> None:
    """If the machine runs out of memory, this process is to end, and not the server."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_memory(most: int) -> None:
    """Of what this process may write to, as far as the system can limit that."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if most > 0:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
