"""Room on the server's disk: what is left for the records, and whether something failed for lack of
it. Used by the server, and by the processes that plan and fuse."""

import errno
import shutil
from pathlib import Path

SPARE_BYTES = 256 << 20
"""Of the disk, for the records and the system: whoever writes anything else leaves so much."""
_LACKS = (errno.ENOSPC, errno.EDQUOT)
# What libraries make of it that were not written in Python: safetensors, and torch.
_SAID = (*(f"(os error {code})" for code in _LACKS), "iostream error")


def leave_room(folder: Path, size: int, spare: int = SPARE_BYTES) -> None:
    """An `OSError` of the kind that writing would have ended with, if so many bytes would take the
    last of the disk."""
    free = shutil.disk_usage(folder).free
    if size + spare > free:
        raise OSError(
            errno.ENOSPC,
            f"the disk of the server is full: {free >> 20} MB are free, {size >> 20} MB are needed "
            f"and {spare >> 20} MB have to stay",
        )


def is_for_lack_of_room(error: BaseException | None) -> bool:
    """Also if something else came of it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _LACKS:
            return True
        if any(words in str(error) for words in _SAID):
            return True
        error = error.__cause__ or error.__context__
    return False


def tells_of_lack_of_room(words: str) -> bool:
    """Of the last words of a process that could not even write how it ended."""
    return any(f"[Errno {code}]" in words for code in _LACKS) or any(
        said in words for said in _SAID
    )
