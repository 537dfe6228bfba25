"""The first program in a sandbox: gives up what bubblewrap leaves to it, and becomes the command.

`python -I -S confine.py RIGHTS COMMAND…`; RIGHTS is JSON (see `Rights`). Standard library only:
nothing else is loaded before a command that has less to spare. What is given up cannot be had back,
neither by the command nor by what it starts.

System calls: a deny-list for processes that compute (seccomp). Out of reach are the memory of other
processes, namespaces and mounts, kernel modules, BPF, performance counters, io_uring, userfaultfd,
the keys that the kernel keeps for the owner (a session keyring of its own does not help: the number
of the owner may link the owner's other keyrings to it, in any namespace), and all kinds of sockets
but those listed. A machine whose calls are not known runs no sandbox.

Services of the owner on abstract Unix sockets go by the network, which a worker shares. Landlock
keeps it from them since Linux 6.12; before that it is not kept from them.

`forbid_programs` is a second stage, for a process that has loaded all it needs: from then on it
starts neither a program nor a process. It needs no sandbox around it.
"""

import ctypes
import errno
import json
import os
import platform
import random
import struct
import sys
from typing import Any, NamedTuple

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""How the kernel names a machine."""
_DENIED = {
    # name: number on x86_64, number on aarch64 (None: there is no such call)
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    # Its flags lie in memory, where a filter cannot look: libc then uses clone, which is looked at.
    "clone3": (435, 435),
}
_SOCKET, _CLONE = (41, 198), (56, 220)
_SET_AFFINITY = (203, 122)
_STARTS_PROGRAM = ((59, 221), (322, 281), (57, None), (58, None), (435, 435))
"""execve, execveat, fork, vfork, clone3."""
_NEW_NAMESPACE = 0x7E020000
_THREAD = 0x00010000
_OTHER_ABI = 0x40000000
"""Calls of x32, another way to the same ones, are numbered from here."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT, _ARGUMENT_AT = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_REFUSE, _FORBID = _ERROR | errno.ENOSYS, _ERROR | errno.EPERM
_SET_NO_NEW_PRIVILEGES = 38
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_ABSTRACT_SOCKETS = 1
_TOO_OLD = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.E2BIG, errno.EINVAL})
_MOST_TASKS, _TASKS_PER_CORE = 8192, 64
LOCAL_SOCKETS, NETWORK_SOCKETS = (1,), (1, 2, 10, 16)
"""Families: AF_UNIX; and AF_INET, AF_INET6, and AF_NETLINK, which libc asks for addresses."""

_system: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

Steps = list[tuple[int, int, int, int]]


class Rights(NamedTuple):
    """What is left to the command."""

    nice: int = 0
    cores: int = 0
    """0 are all there are."""
    sockets: tuple[int, ...] = NETWORK_SOCKETS


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def _begin(machine: str) -> Steps:
    """Of a filter: other machines and other ABIs, where calls have other numbers, are refused."""
    return [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _OTHER_ABI),
        (_RETURN, 0, 0, _REFUSE),
    ]


def _never(call: int) -> Steps:
    return [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, _REFUSE)]


def _where(call: int, test: Steps) -> Steps:
    """`test` of the first argument, which says how the call ends; other calls go past it."""
    return [(_EQUAL, 0, 1 + len(test), call), (_LOAD, 0, 0, _ARGUMENT_AT), *test]


def _packed(steps: Steps) -> bytes:
    return b"".join(struct.pack("HBBI", *step) for step in [*steps, (_RETURN, 0, 0, _ALLOW)])


def call_filter(machine: str, rights: Rights) -> bytes:
    """For the kernel, to be gone through at every call of a process in a sandbox."""
    column = list(_AUDIT).index(machine)
    denied = [numbers[column] for numbers in _DENIED.values()]
    denied += [_SET_AFFINITY[column]] if rights.cores else []
    steps = _begin(machine)
    for number in denied:
        steps += _never(number) if number is not None else []
    families = [
        step
        for family in rights.sockets
        for step in ((_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW))
    ]
    refused = (_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT)
    steps += _where(_SOCKET[column], [*families, refused])
    namespaces = [(_ANY_BIT, 0, 1, _NEW_NAMESPACE), (_RETURN, 0, 0, _FORBID)]
    steps += _where(_CLONE[column], [*namespaces, (_RETURN, 0, 0, _ALLOW)])
    return _packed(steps)


def program_filter(machine: str) -> bytes:
    """Another one on top of it: threads can be made, processes cannot, and no program begins."""
    column = list(_AUDIT).index(machine)
    steps = _begin(machine)
    for numbers in _STARTS_PROGRAM:
        number = numbers[column]
        steps += _never(number) if number is not None else []
    threads = [(_ANY_BIT, 1, 0, _THREAD), (_RETURN, 0, 0, _FORBID), (_RETURN, 0, 0, _ALLOW)]
    return _packed(steps + _where(_CLONE[column], threads))


def _install(steps: bytes) -> str | None:
    """For all threads of this process; why not, if not."""
    _system.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    program = _Program(len(steps) // 8, steps)
    call = _SECCOMP[platform.machine()]
    if _system.syscall(call, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program)) == 0:
        return None
    return os.strerror(ctypes.get_errno() or errno.EBUSY)


def forbid_programs() -> bool:
    """From now on this process starts no program and no process; whether the system can say so."""
    if sys.platform != "linux" or platform.machine() not in _AUDIT:
        return False
    return _install(program_filter(platform.machine())) is None


def _give_up_calls(rights: Rights) -> None:
    machine = platform.machine()
    if machine not in _AUDIT:
        raise SystemExit(f"the system calls of {machine} are not known")
    why = _install(call_filter(machine, rights))
    if why is not None:
        raise SystemExit(f"system calls cannot be given up: seccomp says {why}")


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
    import resource  # not on Windows

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


def main(rights: Rights, command: list[str]) -> None:
    _give_way(rights.nice)
    if rights.cores:
        _keep_to(rights.cores)
    _limit_tasks()
    _give_up_abstract_sockets()
    _give_up_calls(rights)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise SystemExit(f"{command[0]} cannot be run: {error.strerror}") from None


if __name__ == "__main__":
    main(Rights(*json.loads(sys.argv[1])), sys.argv[2:])
