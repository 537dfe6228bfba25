"""Foreign scripts, kept from everything on this machine but their own folder.

With bubblewrap, if it is there: the system is read-only, homes and temporary folders are empty, no
process of the machine can be seen. The network stays: providers talk to each other.
"""

import functools
import shutil
import site
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ravnest.api.machine import Caps
from ravnest.api.work import Assignment

_PROGRAM = "bwrap"
_HIDDEN = ("/home", "/root", "/tmp", "/var/tmp", "/run", "/mnt", "/media", "/srv")
_TRIAL_S = 10.0


@functools.cache
def why_not() -> str | None:
    """Why there can be no sandbox here, found out by trying; None if there can."""
    if shutil.which(_PROGRAM) is None:
        return f"bubblewrap ({_PROGRAM}) is not installed"
    command = [_PROGRAM, "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--", "true"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{_PROGRAM} cannot be run: {error}"
    return None if tried.returncode == 0 else f"{_PROGRAM} does not work: {tried.stderr.strip()}"


def reason_against(assignment: Assignment, caps: Caps) -> str | None:
    """Why an assignment cannot be taken, if the owner wants a sandbox and there is none."""
    if assignment.script is None or caps.scripts != "sandboxed":
        return None
    reason = why_not()
    return None if reason is None else f"scripts are allowed in a sandbox only, and {reason}"


def sandboxed(command: Sequence[str], folder: Path) -> list[str]:
    """The same command, seeing the system without its users' files, and writing to `folder`."""
    around = [_PROGRAM, "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc"]
    around += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for path in _HIDDEN:
        if Path(path).is_dir():
            around += ["--tmpfs", path]
    for shown in _python_folders():
        around += ["--ro-bind", str(shown), str(shown)]
    around += ["--bind", str(folder), str(folder), "--chdir", str(folder)]
    return [*around, "--", *command]


def _python_folders() -> list[Path]:
    """Python and its packages, which may live in somebody's home. Not `sys.path`: the folder that
    the agent was started from may be in it, with whatever lies there."""
    ours = Path(__file__).parents[2]
    found = dict.fromkeys(
        Path(path)
        for path in (sys.prefix, sys.base_prefix, site.getusersitepackages(), ours)
        if Path(path).is_dir()
    )
    return [path for path in found if any(path.is_relative_to(hidden) for hidden in _HIDDEN)]
