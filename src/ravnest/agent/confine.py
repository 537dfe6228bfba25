"""The first program in a sandbox: gives up what bubblewrap leaves to it, and becomes the command.

`python -I -S confine.py NICE CORES COMMAND…`; 0 cores are all there are. Standard library only:
nothing else is loaded before a command that has less to spare. What is given up cannot be had back,
neither by the command nor by what it starts.

Keys that the kernel keeps for the owner are out of reach only if the calls for keys are: a session
keyring of its own does not help, for whoever has the owner's number may link the owner's other
keyrings to it, in any namespace. Who cannot be kept from them does not run.

Services of the owner on abstract Unix sockets go by the network, which a script shares. Landlock
keeps it from them since Linux 6.12; before that it is not kept from them.
"""

import ctypes
import errno
import os
import platform
import random
import resource
import struct
import sys

_KEY_CALLS = {
    "x86_64": (0xC000003E, (248, 249, 250)),
    "aarch64": (0xC00000B7, (217, 218, 219)),
}
"""By machine: how the kernel names it, and the numbers of add_key, request_key and keyctl."""
_SET_AFFINITY = {"x86_64": 203, "aarch64": 122}
_OTHER_ABI = 0x40000000
"""Calls of x32, another way to the same ones, are numbered from here."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT = 0, 4
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOSYS
_SET_SECCOMP, _BY_FILTER = 22, 2
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_ABSTRACT_SOCKETS = 1
_TOO_OLD = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.E2BIG, errno.EINVAL})
_MOST_TASKS, _TASKS_PER_CORE = 8192, 64

_system = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def call_filter(machine: str, *, pinned: bool = False) -> bytes:
    """For the kernel, to be gone through at every call: those for keys do not exist, nor the one
    for other cores if it is `pinned`, nor any of another ABI, where they have other numbers."""
    name, keys = _KEY_CALLS[machine]
    calls = (*keys, _SET_AFFINITY[machine]) if pinned else keys
    refuse = 4 + len(calls)
    steps = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 0, refuse - 1, name),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, refuse - 3, 0, _OTHER_ABI),
        *((_EQUAL, refuse - at, 0, call) for at, call in enumerate(calls, start=4)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _give_up_calls(*, pinned: bool) -> None:
    machine = platform.machine()
    if machine not in _KEY_CALLS:
        raise SystemExit(f"scripts cannot be kept from the owner's keys on {machine}")
    steps = call_filter(machine, pinned=pinned)
    program = _Program(len(steps) // 8, steps)
    if _system.prctl(_SET_SECCOMP, _BY_FILTER, ctypes.byref(program), 0, 0) != 0:
        why = os.strerror(ctypes.get_errno())
        raise SystemExit(f"scripts cannot be kept from the owner's keys: seccomp says {why}")


def _give_up_abstract_sockets() -> None:
    """Those that are made in the sandbox stay."""
    rules = struct.pack("QQQ", 0, 0, _ABSTRACT_SOCKETS)
    ruleset = _system.syscall(_CREATE_RULESET, rules, len(rules), 0)
    if ruleset < 0:
        if ctypes.get_errno() in _TOO_OLD:
            return
        raise SystemExit(f"Landlock cannot be asked: {os.strerror(ctypes.get_errno())}")
    if _system.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
        raise SystemExit(f"Landlock does not hold: {os.strerror(ctypes.get_errno())}")
    os.close(ruleset)


def _limit_tasks() -> None:
    """A program that starts itself again and again must not take all numbers of processes. Linux
    does not count for root, whose number it has if root has started the agent."""
    most = max(_MOST_TASKS, _TASKS_PER_CORE * (os.cpu_count() or 1))
    _, allowed = resource.getrlimit(resource.RLIMIT_NPROC)
    if allowed == resource.RLIM_INFINITY or allowed > most:
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _give_way(nice: int) -> None:
    """Bubblewrap, which the agent has asked for it, is not what computes."""
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))


def _keep_to(cores: int) -> None:
    """Which ones does not matter, but not the same for everybody."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, random.sample(allowed, min(cores, len(allowed))))


def main(nice: int, cores: int, command: list[str]) -> None:
    _give_way(nice)
    if cores:
        _keep_to(cores)
    _limit_tasks()
    _give_up_abstract_sockets()
    _give_up_calls(pinned=cores > 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise SystemExit(f"{command[0]} cannot be run: {error.strerror}") from None


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
