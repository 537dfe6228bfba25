"""`python -m ravnest.server.planjob FOLDER`: does what the folder says, and writes how it ended."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from ravnest import lifeline
from ravnest.errors import FusionError, PlanError, PoolError, RavnestError
from ravnest.planning.figures import size
from ravnest.sandbox.confine import forbid_programs
from ravnest.sandbox.memory_limit import lacks_memory, limit_files, limit_memory
from ravnest.server.planjob.outcome import (
    MEMORY,
    MOST_LEFT_BYTES,
    ORDER,
    OUTCOME,
    PlanOrder,
    PlanOutcome,
)
from ravnest.server.room import is_for_lack_of_room
from ravnest.whole import write_whole

_LACKS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO})
"""Open files, memory, a disk that can be read. Room is another matter (`server.room`)."""

_NAMES_OF_A_TENSOR = 8


def main(folder: Path) -> None:
    # Nobody needs what it makes once the server is gone.
    lifeline.watch(lambda: os._exit(1))
    limit_memory(int(os.environ.get(MEMORY, "0")))
    order = msgspec.json.decode((folder / ORDER).read_bytes(), type=PlanOrder)
    limit_files(_most_written(order))
    write_whole(folder / OUTCOME, msgspec.json.encode(_done(order, folder, _loaded)))


def _most_written(order: PlanOrder) -> int:
    """In one file. Tied weights are written once for each of their names; a check says how it
    ended, and no more."""
    if order.task == "check":
        return MOST_LEFT_BYTES
    given = sum(path.stat().st_size for path in Path(order.model).rglob("*") if path.is_file())
    return MOST_LEFT_BYTES + _NAMES_OF_A_TENSOR * given


def _loaded() -> None:
    from ravnest.stage.zero_fill import fill_with_zeros

    fill_with_zeros()
    forbid_programs()


def _done(
    order: PlanOrder, folder: Path, loaded: Callable[[], object] = lambda: None
) -> PlanOutcome:
    """`loaded` is called when all that it needs is, before any foreign file is looked at."""
    try:
        from ravnest.server.planjob import tasks

        loaded()
        task = {"check": tasks.check, "plan": tasks.plan, "fuse": tasks.fuse}[order.task]
        return task(order, folder)
    except RavnestError as error:
        # First: no pool, however large, gives this process more.
        if lacks_memory(error):
            return _too_large()
        full = is_for_lack_of_room(error.__cause__)
        lacks = full or lacks_something(error.__cause__)
        return PlanOutcome(
            error=str(error).replace(f"{order.model}: ", "").replace(order.model, ""),
            unfit=isinstance(error, PlanError | PoolError) and not lacks,
            crashed=lacks,
            full=full,
            stage=error.stage if isinstance(error, FusionError) else None,
        )
    except Exception as error:
        full = is_for_lack_of_room(error)
        if full or isinstance(error, OSError):
            why = error.strerror if isinstance(error, OSError) else f"no room on its disk ({error})"
            return PlanOutcome(error=f"the server cannot do this: {why}", crashed=True, full=full)
        if lacks_memory(error):
            return _too_large()
        raise


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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
