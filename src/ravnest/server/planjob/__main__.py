"""`python -m ravnest.server.planjob FOLDER`: does what the folder says, and writes how it ended."""

import errno
import os
import sys
from pathlib import Path

import msgspec

from ravnest import lifeline
from ravnest.errors import PlanError, PoolError, RavnestError
from ravnest.server.folders import write_whole
from ravnest.server.planjob.outcome import ORDER, OUTCOME, PlanOrder, PlanOutcome

_LACKS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO}
)
"""Space, open files, memory, a disk that can be read."""


def main(folder: Path) -> None:
    # Nobody needs what it makes once the server is gone.
    lifeline.watch(lambda: os._exit(1))
    limit_memory(int(os.environ.get("RAVNEST_PLANJOB_MEMORY", "0")))
    order = msgspec.json.decode((folder / ORDER).read_bytes(), type=PlanOrder)
    write_whole(folder / OUTCOME, msgspec.json.encode(_done(order, folder)))


def _done(order: PlanOrder, folder: Path) -> PlanOutcome:
    try:
        from ravnest.server.planjob import tasks

        task = {"check": tasks.check, "plan": tasks.plan, "fuse": tasks.fuse}[order.task]
        return task(order, folder)
    except (PlanError, PoolError) as error:
        return PlanOutcome(error=str(error), unfit=True)
    except RavnestError as error:
        return PlanOutcome(
            error=str(error).replace(f"{order.model}: ", "").replace(order.model, ""),
            crashed=lacks_something(error.__cause__),
        )
    except OSError as error:
        return PlanOutcome(error=f"the server cannot do this: {error.strerror}", crashed=True)
    except MemoryError:
        return PlanOutcome(error="there is not enough memory for this on the server", crashed=True)


def lacks_something(error: BaseException | None) -> bool:
    """Whether an error is about the machine, whatever the files are like."""
    return isinstance(error, OSError) and error.errno in _LACKS


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
