"""Foreign scripts, kept from everything on this machine but their own folder.

With bubblewrap, if it is there: the system is read-only, homes and temporary folders are empty, no
process of the machine can be seen. The network stays: providers talk to each other.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_PROGRAM = "bwrap"
_HIDDEN = ("/home", "/root", "/tmp", "/var/tmp", "/run", "/mnt", "/media", "/srv")


def is_available() -> bool:
    return shutil.which(_PROGRAM) is not None


def sandboxed(command: Sequence[str], folder: Path) -> list[str]:
    """The same command, seeing the system without its users' files, and writing to `folder`."""
    around = [_PROGRAM, "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc"]
    around += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for path in _HIDDEN:
        if Path(path).is_dir():
            around += ["--tmpfs", path]
    # Python and its packages may live in somebody's home.
    for path in _python_folders():
        around += ["--ro-bind", path, path]
    around += ["--bind", str(folder), str(folder), "--chdir", str(folder)]
    return [*around, "--", *command]


def _python_folders() -> list[str]:
    found = dict.fromkeys([sys.prefix, sys.base_prefix, *sys.path])
    kept = [Path(path) for path in found if path and Path(path).is_dir()]
    return [str(path) for path in kept if any(path.is_relative_to(hidden) for hidden in _HIDDEN)]
