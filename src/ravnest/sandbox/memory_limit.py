"""How much memory a process that computes may take, and how large files it may write, said to the
system: limits, not looking now and then.

`limit_memory` is for the process itself, before it reads anything foreign. RLIMIT_DATA counts the
memory that this process alone can write to: what Python and torch allocate. It counts addresses,
which are a few more than are in use. It does not count files that are mapped, memory of a GPU, and
shared memory; and each process that is started has the same limit again. A process that may start
none (`confine.forbid_programs`) is therefore limited as a whole.
"""

import contextlib
import sys
from pathlib import Path

_STACK_BYTES = 8 << 20
_THREADS_PER_CORE = 2
"""Those that compute, forward and backward."""
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_FIRST = "1000"


def limit_memory(most: int, threads: int = 0) -> None:
    """Of this process and of each that it starts; 0 is no limit. If the machine runs out of memory,
    it ends before the other processes of its owner. Stacks of `threads` are hardly ever used, and
    count from the beginning: they come on top."""
    if sys.platform == "win32":
        return
    import resource

    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text(_FIRST)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if most > 0:
        wanted = most + threads * _THREADS_PER_CORE * _STACK_BYTES
        _, allowed = resource.getrlimit(resource.RLIMIT_DATA)
        if allowed == resource.RLIM_INFINITY or wanted < allowed:
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))


def limit_files(most: int) -> None:
    """Of each file that this process writes; a longer one is an `OSError` (Python ignores the
    signal). How many there are is not limited."""
    if sys.platform == "win32":
        return
    import resource

    _, allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    if allowed == resource.RLIM_INFINITY or most < allowed:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def is_limited_by_system() -> bool:
    """Whether RLIMIT_DATA counts what programs allocate: on Linux since 4.7."""
    return sys.platform == "linux"


def lacks_memory(error: BaseException | None) -> bool:
    """Whether there was none left, at the beginning of it all. Torch says so in words; the system
    says the same of a lack that is not this process's own."""
    while error is not None:
        of_torch = isinstance(error, RuntimeError) and "allocate memory" in str(error)
        if isinstance(error, MemoryError) or of_torch:
            return True
        error = error.__cause__ or error.__context__
    return False
