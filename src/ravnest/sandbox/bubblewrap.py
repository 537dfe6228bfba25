"""Foreign graphs and scripts, kept from the files of this machine but for their own folder.

With bubblewrap, if it is there. What a process sees is a `Policy`, and nothing else is there for
it: programs and libraries, the few files of /etc that they read, Python with its packages, all of
it read-only; empty folders for what is temporary; no process of the machine but its own. A worker
also sees the kernel's view of the hardware (/sys) and the GPUs, and has the network: providers talk
to each other. Its own folder holds the key and the certificate that this provider shows to others:
its Node needs them. Planning has neither network nor devices.

Started by root it is no different: what is read-only stays read-only, for the process has no
capabilities, and of the kernel's settings, which belong to root without any, it sees a read-only
copy.

Nor can it get capabilities by a user namespace of its own, in which it could mount what reaches the
processes beside it (the control group of its agent, to freeze it). Bubblewrap sees to that since
version 0.8; an older one makes no sandbox. What bubblewrap knows nothing of is given up in the
sandbox, by `confine.py`, before the command begins.
"""

import functools
import importlib.util
import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ravnest.sandbox.confine import LOCAL_SOCKETS, NETWORK_SOCKETS, Rights
from ravnest.whole import must_be_plain

_PROGRAM = "bwrap"
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
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
_HARDWARE = ("/sys",)
_DEVICES = ("nvidia*", "kfd", "dri")
_TEMPORARY = {"/dev/shm": 4, "/tmp": 8, "/var/tmp": 16, "/run": 16}
"""Empty folders, kept in memory: each takes at most this part of what a process may use."""
_NODE_BYTES = 1024
"""About as much does a file take there that has nothing in it."""
_HIDDEN = ("/proc/keys", "/proc/key-users")
_KERNEL = ("sys", "sysrq-trigger", "fs", "driver", "scsi", "acpi", "dynamic_debug", "mtrr")
"""Of /proc, what is about the machine and not about processes. Bubblewrap protects some of it, and
not /proc/sys: the folder itself cannot be written to, so it looks protected."""
_TRIAL_S = 20.0
_LAST_TRIAL_S = 120.0
"""What a trial finds is remembered, so that a busy machine is given a second and longer one."""
_SIGNALLED = 128
_OLDEST = "--assert-userns-disabled"
"""Known since version 0.8."""
_CONFINE = Path(__file__).with_name("confine.py")


@dataclass(frozen=True)
class Policy:
    """What a process sees, may change, and may use."""

    folder: Path
    """Where it works: its own, and writable."""
    hidden: Path | None = None
    """The home of an agent or the folder of a server: empty but for what is named here, also if it
    lies among programs."""
    readable: tuple[Path, ...] = ()
    """Also within its own folder."""
    network: bool = True
    devices: bool = True
    memory_bytes: int | None = None
    """Its temporary folders take a part of this, or of what the machine has."""
    nice: int = 0
    cores: int | None = None
    """It computes on so many at once."""

    def __post_init__(self) -> None:
        """A link on the way to one of these would give it what the link leads to."""
        for path in (self.folder, *self.readable):
            if self.hidden is not None and path.is_relative_to(self.hidden):
                must_be_plain(path, self.hidden)

    @property
    def rights(self) -> Rights:
        sockets = NETWORK_SOCKETS if self.network else LOCAL_SOCKETS
        return Rights(self.nice, self.cores or 0, sockets)


@functools.cache
def why_not(*, network: bool = True) -> str | None:
    """Why there can be no sandbox here, found out by trying; None if there can."""
    if shutil.which(_PROGRAM) is None:
        return f"bubblewrap ({_PROGRAM}) is not installed"
    if _is_too_old():
        return f"bubblewrap ({_PROGRAM}) is older than version 0.8"
    program = [sys.executable, "-c", "import ravnest.api"]
    with tempfile.TemporaryDirectory(prefix="ravnest-") as home:
        folder = Path(home).resolve() / "work"
        folder.mkdir()
        command = sandboxed(program, Policy(folder, folder.parent, network=network))
        try:
            tried = _tried(command)
        except subprocess.TimeoutExpired:
            return f"{_PROGRAM} does not come back within {_LAST_TRIAL_S:.0f} s"
        except OSError as error:
            return f"{_PROGRAM} cannot be run: {error}"
    if tried.returncode == 0:
        return None
    # The reason travels as a label, and the last line of a traceback is what it comes down to.
    said = tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"]
    return f"{_PROGRAM} does not work: {said[-1]}"


def _tried(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_S)
    except subprocess.TimeoutExpired:
        return subprocess.run(command, capture_output=True, text=True, timeout=_LAST_TRIAL_S)


def remedy() -> str:
    """What the owner of a machine without a sandbox can do about it."""
    if sys.platform == "linux" and shutil.which(_PROGRAM) is None:
        return "install bubblewrap (Debian: apt install bubblewrap)"
    return (
        "it takes Linux on x86_64 or aarch64, bubblewrap 0.8 or newer, and a system that does not "
        "forbid namespaces to users (sysctl kernel.unprivileged_userns_clone)"
    )


def ended_by(code: int, *, in_sandbox: bool) -> int | None:
    """The signal that ended a process, by the exit code that its parent sees: bubblewrap passes it
    on as shells do."""
    if code < 0:
        return -code
    return code - _SIGNALLED if in_sandbox and code > _SIGNALLED else None


def _is_too_old() -> bool:
    try:
        asked = subprocess.run([_PROGRAM, "--help"], capture_output=True, timeout=_TRIAL_S)
    except (OSError, subprocess.TimeoutExpired):
        return False  # what is wrong with it, the trial says
    return asked.returncode == 0 and _OLDEST.encode() not in asked.stdout + asked.stderr


def sandboxed(command: Sequence[str], policy: Policy) -> list[str]:
    """The same command, seeing what the policy says and nothing else."""
    around = [_PROGRAM, "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc"]
    around += ["--unshare-cgroup-try", *([] if policy.network else ["--unshare-net"])]
    # The first process there is the command itself: that of bubblewrap would hold open, for all to
    # see, the pipe that a worker speaks through.
    around += [*_user_namespace(), "--cap-drop", "ALL", "--as-pid-1"]
    system = (*_SYSTEM, *(_HARDWARE if policy.devices else ()))
    for path in map(Path, (*system, *(f"/etc/{name}" for name in _ETC))):
        if path.is_symlink() and path.parent == Path("/"):
            around += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            around += ["--ro-bind", str(path), str(path)]
    around += ["--dev", "/dev", "--proc", "/proc"]
    for name in _HIDDEN:
        around += ["--ro-bind", "/dev/null", name] if Path(name).exists() else []
    around += _shown(path for name in _KERNEL if (path := Path("/proc") / name).exists())
    for name in _DEVICES if policy.devices else ():
        for device in sorted(Path("/dev").glob(name)):
            around += ["--dev-bind", str(device), str(device)]
    total = policy.memory_bytes
    memory = psutil.virtual_memory().total if total is None else total
    for name, part in _TEMPORARY.items():
        around += ["--size", str(max(1, memory // part)), "--tmpfs", name]
    hidden, python = policy.hidden, _python_folders()
    around += _shown(python)
    if hidden is not None:
        # Over whatever else is shown there; Python itself may have been put into it.
        within = [path for path in python if path.is_relative_to(hidden)]
        around += ["--tmpfs", str(hidden), *_shown(within)]
    around += ["--bind", str(policy.folder), str(policy.folder)]
    around += [*_shown(policy.readable), "--chdir", str(policy.folder)]
    # Around the folders that it may write to there is memory as well, without a limit.
    for place in (*(() if hidden is None else (hidden,)), "/dev", "/"):
        around += ["--remount-ro", str(place)]
    rights = json.dumps(policy.rights)
    return [*around, "--", sys.executable, "-I", "-S", str(_CONFINE), rights, *command]


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
    for root, it is made sure that this holds inside too."""
    asked = ("--unshare-user", "--disable-userns")
    command = [_PROGRAM, *asked, "--cap-drop", "ALL", "--ro-bind", "/", "/", "--", "true"]
    try:
        tried = _tried(command)
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
