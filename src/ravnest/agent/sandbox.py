"""Foreign scripts, kept from the files of this machine but for their own folder.

With bubblewrap, if it is there. What a script sees is listed here, and nothing else is there for
it: programs and libraries, the few files of /etc that they read, Python with its packages, all of
it read-only; empty folders for what is temporary; no process of the machine but its own. What it
does see: whatever lies among these programs and packages, the kernel's view of the hardware (/sys),
the GPUs. And its own folder holds the key and the certificate that this provider shows to others:
its Node needs them. The network stays: providers talk to each other.

An agent that root has started is no different: what is read-only stays read-only, for a script has
no capabilities, and of the kernel's settings, which belong to root without any, it sees a read-only
copy.

Nor can it get capabilities by a user namespace of its own, in which it could mount what reaches the
processes beside it (the control group of its agent, to freeze it). Bubblewrap sees to that since
version 0.8; with an older one there are no scripts. What bubblewrap knows nothing of is given up in
the sandbox, by `confine.py`, before the command begins.
"""

import functools
import importlib.util
import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from ravnest.api.machine import Caps
from ravnest.api.work import Assignment

_PROGRAM = "bwrap"
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/sys"),
    *("/nix/store", "/gnu/store", "/opt/cuda", "/opt/rocm"),
)
_ETC = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("hosts", "host.conf", "gai.conf", "nsswitch.conf", "resolv.conf"),
    *("localtime", "timezone", "locale.conf", "os-release"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "crypto-policies"),
    *("pki/ca-trust", "pki/tls/certs", "pki/tls/openssl.cnf"),
    *("OpenCL", "glvnd", "vulkan"),
)
"""Not all of it: there are passwords of networks, keys of hosts, settings of other services."""
_DEVICES = ("nvidia*", "kfd", "dri")
_TEMPORARY = {"/dev/shm": 4, "/tmp": 8, "/var/tmp": 16, "/run": 16}
"""Empty folders, kept in memory: each takes at most this part of what a script may use."""
_NODE_BYTES = 1024
"""About as much does a file take there that has nothing in it."""
_HIDDEN = ("/proc/keys", "/proc/key-users")
_KERNEL = ("sys", "sysrq-trigger", "fs", "driver", "scsi", "acpi", "dynamic_debug", "mtrr")
"""Of /proc, what is about the machine and not about processes. Bubblewrap protects some of it, and
not /proc/sys: the folder itself cannot be written to, so it looks protected."""
_TRIAL_S = 20.0
_OLDEST = "--assert-userns-disabled"
"""Known since version 0.8."""
_CONFINE = Path(__file__).with_name("confine.py")


@functools.cache
def why_not() -> str | None:
    """Why there can be no sandbox here, found out by trying; None if there can."""
    if shutil.which(_PROGRAM) is None:
        return f"bubblewrap ({_PROGRAM}) is not installed"
    if _is_too_old():
        return f"bubblewrap ({_PROGRAM}) is older than version 0.8"
    program = [sys.executable, "-c", "import ravnest.api"]
    with tempfile.TemporaryDirectory(prefix="ravnest-") as home:
        folder = Path(home).resolve() / "work"
        folder.mkdir()
        command = sandboxed(program, folder, folder.parent)
        try:
            tried = subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_S)
        except subprocess.TimeoutExpired:
            return f"{_PROGRAM} does not come back within {_TRIAL_S:.0f} s"
        except OSError as error:
            return f"{_PROGRAM} cannot be run: {error}"
    if tried.returncode == 0:
        return None
    return f"{_PROGRAM} does not work: {tried.stderr.strip() or f'exit code {tried.returncode}'}"


def reason_against(assignment: Assignment, caps: Caps) -> str | None:
    """Why an assignment cannot be taken, if the owner wants a sandbox and there is none."""
    if assignment.script is None or caps.scripts != "sandboxed":
        return None
    reason = why_not()
    return None if reason is None else f"scripts are allowed in a sandbox only, and {reason}"


def _is_too_old() -> bool:
    try:
        asked = subprocess.run([_PROGRAM, "--help"], capture_output=True, timeout=_TRIAL_S)
    except (OSError, subprocess.TimeoutExpired):
        return False  # what is wrong with it, the trial says
    return asked.returncode == 0 and _OLDEST.encode() not in asked.stdout + asked.stderr


def sandboxed(
    command: Sequence[str],
    folder: Path,
    home: Path,
    memory_bytes: int | None = None,
    *,
    nice: int = 0,
    cores: int | None = None,
) -> list[str]:
    """The same command, seeing programs and libraries, and of the agent's `home`, wherever that is,
    nothing but `folder`, which alone it may write to. Its temporary folders take a part of
    `memory_bytes`, or of what the machine has. It computes on so many `cores` at once."""
    around = [_PROGRAM, "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc"]
    around += ["--unshare-cgroup-try"]
    # The first process there is the command itself: that of bubblewrap would hold open, for all to
    # see, the pipe that a worker speaks through.
    around += [*_user_namespace(), "--cap-drop", "ALL", "--as-pid-1"]
    for path in map(Path, (*_SYSTEM, *(f"/etc/{name}" for name in _ETC))):
        if path.is_symlink() and path.parent == Path("/"):
            around += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            around += ["--ro-bind", str(path), str(path)]
    memory = psutil.virtual_memory().total if memory_bytes is None else memory_bytes
    around += ["--dev", "/dev", "--proc", "/proc"]
    for name in _HIDDEN:
        around += ["--ro-bind", "/dev/null", name] if Path(name).exists() else []
    around += _shown(path for name in _KERNEL if (path := Path("/proc") / name).exists())
    for device in sorted(device for name in _DEVICES for device in Path("/dev").glob(name)):
        around += ["--dev-bind", str(device), str(device)]
    for name, part in _TEMPORARY.items():
        around += ["--size", str(max(1, memory // part)), "--tmpfs", name]
    python = _python_folders()
    around += _shown(path for path in python if not path.is_relative_to(home))
    # Over whatever else is shown there; Python itself may have been put into it.
    around += ["--tmpfs", str(home), *_shown(path for path in python if path.is_relative_to(home))]
    around += ["--bind", str(folder), str(folder), "--chdir", str(folder)]
    # Around the folders that it may write to there is memory as well, without a limit.
    for place in (str(home), "/dev", "/"):
        around += ["--remount-ro", place]
    confined = [sys.executable, "-I", "-S", str(_CONFINE), str(nice), str(cores or 0), *command]
    return [*around, "--", *confined]


def temporary_bytes(pid: int) -> int | None:
    """What lies in the temporary folders of the sandbox that a process is in: memory that belongs
    to no process. None if it is in no sandbox."""
    inside = f"/proc/{pid}/root"
    try:
        if os.stat(inside).st_dev == os.stat("/").st_dev:
            return None
        told = [os.statvfs(inside + name) for name in _TEMPORARY]
    except OSError:
        return None
    blocks = sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in told)
    return blocks + _NODE_BYTES * sum(each.f_files - each.f_ffree for each in told)


@functools.cache
def _user_namespace() -> tuple[str, ...]:
    """One in which there can be no other. Where there can be none at all, as in some containers
    for root, it is made sure that this holds for a script too."""
    asked = ("--unshare-user", "--disable-userns")
    command = [_PROGRAM, *asked, "--cap-drop", "ALL", "--ro-bind", "/", "/", "--", "true"]
    try:
        tried = subprocess.run(command, capture_output=True, timeout=_TRIAL_S)
    except (OSError, subprocess.TimeoutExpired):
        return (_OLDEST,)
    return (*asked, _OLDEST) if tried.returncode == 0 else (_OLDEST,)


def _shown(paths: Iterable[Path]) -> list[str]:
    return [word for path in paths for word in ("--ro-bind", str(path), str(path))]


def _python_folders() -> list[Path]:
    """Python and its packages, which may live in somebody's home. Not `sys.path`: the folder that
    the agent was started from may be in it, with whatever lies there."""
    ours = Path(__file__).parents[2]
    torch = importlib.util.find_spec("torch")
    torch_folders = (torch.submodule_search_locations if torch is not None else None) or ()
    places = [sys.prefix, sys.base_prefix, site.getusersitepackages(), str(ours)]
    places += [str(Path(folder).parent) for folder in torch_folders]
    found = dict.fromkeys(Path(place) for place in places if Path(place).is_dir())
    return [path for path in found if not any(path.is_relative_to(shown) for shown in _SYSTEM)]
