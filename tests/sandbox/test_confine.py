"""What a script is kept from that bubblewrap knows nothing of."""

import ctypes
import errno
import os
import platform
import resource
import socket
import struct
import subprocess
import sys

import pytest

from ravnest.sandbox import confine
from ravnest.sandbox.bubblewrap import Policy, sandboxed
from ravnest.sandbox.confine import LOCAL_SOCKETS, Rights

GET_KEYRING, SESSION, USER = 0, -3, -4


def inside(tmp_path, program, **limits):
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    policy = Policy(home / "work", home, **limits)
    command = sandboxed([sys.executable, "-c", program], policy)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


KEYS = """
import ctypes, errno
system = ctypes.CDLL(None, use_errno=True)
for number, *more in calls:
    print(system.syscall(number, *more), errno.errorcode[ctypes.get_errno()])
for path in ("/proc/keys", "/proc/key-users"):
    try:
        print(open(path).read())
    except OSError:
        print("nothing")
"""


@pytest.mark.needs("bwrap")
def test_a_script_has_no_keys_of_the_owner(tmp_path):
    """It had the session keyring, and could link the others to its own by their numbers."""
    column = list(confine._AUDIT).index(platform.machine())
    names = ("add_key", "request_key", "keyctl")
    add, request, control = (confine._DENIED[name][column] for name in names)
    system = ctypes.CDLL(None, use_errno=True)
    assert system.syscall(control, GET_KEYRING, USER, 0) > 0, "this kernel has keys"
    calls = [
        (control, GET_KEYRING, SESSION, 0),
        (control, GET_KEYRING, USER, 0),
        (add,),
        (request,),
    ]
    found = inside(tmp_path, f"calls = {calls}\n{KEYS}")
    assert found == ["-1 ENOSYS"] * 4 + ["nothing"] * 2


def gone_through(steps, machine, number, argument=0):
    """What the kernel makes of a filter, for one call."""
    steps = list(struct.iter_unpack("HBBI", steps))
    at, value = 0, None
    while True:
        code, yes, no, constant = steps[at]
        at += 1
        if code == confine._LOAD:
            value = {0: number, 4: machine, 16: argument}[constant]
        elif code == confine._EQUAL:
            at += yes if value == constant else no
        elif code == confine._AT_LEAST:
            at += yes if value >= constant else no
        elif code == confine._ANY_BIT:
            at += yes if value & constant else no
        else:
            assert code == confine._RETURN
            return constant


MACHINES = sorted(confine._AUDIT)
THREAD, PROCESS, NEW_USER = 0x3D0F00, 0x1200011, 0x10000011


def numbers(machine):
    """Of the calls that are looked at, by name."""
    column = list(confine._AUDIT).index(machine)
    found = {name: both[column] for name, both in confine._DENIED.items()}
    return found, confine._SOCKET[column], confine._CLONE[column]


@pytest.mark.parametrize("cores", [0, 2])
@pytest.mark.parametrize("machine", MACHINES)
def test_denied_calls_are_refused_by_whichever_way_and_no_others(machine, cores):
    denied, socket_call, clone = numbers(machine)
    calls = {number for number in denied.values() if number is not None}
    calls |= {confine._SET_AFFINITY[MACHINES[::-1].index(machine)]} if cores else set()
    name, steps = confine._AUDIT[machine], confine.call_filter(machine, Rights(cores=cores))
    others = set(range(600)) - {socket_call}
    refused = {n for n in others if gone_through(steps, name, n) == confine._REFUSE}
    assert refused == calls
    assert {gone_through(steps, name, n) for n in others - refused} == {confine._ALLOW}
    other_machine, x32 = 0x40000003, 0x40000000
    for call in (0, 286, 287, 288, *calls):
        assert gone_through(steps, other_machine, call) == confine._REFUSE
        assert gone_through(steps, name, x32 | call) == confine._REFUSE
    for flags, verdict in ((THREAD, confine._ALLOW), (PROCESS, confine._ALLOW)):
        assert gone_through(steps, name, clone, flags) == verdict
    assert gone_through(steps, name, clone, NEW_USER) == confine._FORBID


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("sockets", [confine.NETWORK_SOCKETS, LOCAL_SOCKETS])
def test_sockets_are_of_the_listed_families_only(machine, sockets):
    _, call, _ = numbers(machine)
    steps = confine.call_filter(machine, Rights(sockets=sockets))
    found = {
        family
        for family in range(64)
        if gone_through(steps, confine._AUDIT[machine], call, family) == confine._ALLOW
    }
    assert found == set(sockets)


FORBIDDEN = """
import os, subprocess, sys, threading
from ravnest.sandbox.confine import forbid_programs
go, done = threading.Event(), []
def late():
    go.wait()
    try:
        os.fork()
    except OSError as error:
        done.append(type(error).__name__)
thread = threading.Thread(target=late)
thread.start()
print(forbid_programs())
go.set()
thread.join()
print(*done)
for start in (lambda: subprocess.run(["true"]), lambda: os.execv(sys.executable, ["python"])):
    try:
        start()
    except OSError as error:
        print(type(error).__name__)
more = threading.Thread(target=print, args=("a thread",))
more.start()
more.join()
"""


def test_a_process_that_forbids_programs_has_threads_and_nothing_else():
    """Also one of its threads that was there before, and without a sandbox around it."""
    command = [sys.executable, "-c", FORBIDDEN]
    done = subprocess.run(command, capture_output=True, text=True)
    expected = ["True", "PermissionError", "PermissionError", "OSError", "a thread"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_where_calls_cannot_be_given_up_nothing_is_run(monkeypatch):
    monkeypatch.setattr(confine.platform, "machine", lambda: "abacus")
    with pytest.raises(SystemExit, match="system calls of abacus are not known"):
        confine._give_up_calls(Rights())


CALLS = """
import socket
own = socket.socket(socket.AF_UNIX)
own.bind("\\0" + name + "-own")
own.listen()
for called in ("-own", ""):
    try:
        socket.socket(socket.AF_UNIX).connect("\\0" + name + called)
        print("reached")
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.needs("bwrap")
def test_a_script_reaches_its_own_abstract_sockets_and_not_those_of_the_owner(tmp_path):
    """Where the kernel can tell them apart; elsewhere docs/security.md says that it does reach
    them."""
    ask_version = 1
    abi = ctypes.CDLL(None).syscall(confine._CREATE_RULESET, None, 0, ask_version)
    name = f"ravnest-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(f"\0{name}")
        service.listen()
        found = inside(tmp_path, f"name = {name!r}\n{CALLS}")
    assert found == ["reached", "PermissionError" if abi >= 6 else "reached"]


@pytest.mark.needs("bwrap")
def test_a_script_may_have_some_thousands_of_processes(tmp_path):
    program = "import resource; print(*resource.getrlimit(resource.RLIMIT_NPROC))"
    soft, hard = map(int, *(line.split() for line in inside(tmp_path, program)))
    _, allowed = resource.getrlimit(resource.RLIMIT_NPROC)
    most = max(8192, 64 * os.cpu_count())
    assert soft == hard == (most if allowed == resource.RLIM_INFINITY else min(most, allowed))


LIMITS = """
import os
print(os.getpriority(os.PRIO_PROCESS, 0), len(os.sched_getaffinity(0)))
for wish in (lambda: os.setpriority(os.PRIO_PROCESS, 0, 0), lambda: os.sched_setaffinity(0, all_)):
    try:
        wish()
        print("granted")
    except OSError as error:
        print(type(error).__name__, error.errno)
"""


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("owner_limits", [True, False])
def test_a_script_gives_way_and_keeps_to_its_cores_as_its_owner_wants(tmp_path, owner_limits):
    """Only bubblewrap gave way, which does nothing, and of threads a script was merely told."""
    cores = os.sched_getaffinity(0)
    assert len(cores) > 1, "a machine with one core cannot tell"
    limits = {"nice": 15, "cores": 1} if owner_limits else {}
    found = inside(tmp_path, f"all_ = {cores}\n{LIMITS}", **limits)
    if owner_limits:
        denied = f"OSError {errno.ENOSYS}"
        assert found == ["15 1", f"PermissionError {errno.EACCES}", denied]
    else:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        assert found[0] == f"{nice} {len(cores)}"
        assert found[2] == "granted"


def test_a_command_that_is_not_there_is_named(tmp_path, monkeypatch):
    for step in ("_limit_tasks", "_give_up_abstract_sockets", "_give_up_calls"):
        monkeypatch.setattr(confine, step, lambda *_: None)
    with pytest.raises(SystemExit, match="nowhere cannot be run: No such file"):
        confine.main(Rights(), [str(tmp_path / "nowhere")])


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP, errno.E2BIG, errno.EPERM])
def test_without_landlock_scripts_run_and_with_a_broken_one_they_do_not(monkeypatch, code):
    class System:
        def syscall(self, *arguments):
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(confine, "_system", System())
    if code == errno.EPERM:
        with pytest.raises(SystemExit, match="Landlock cannot be asked"):
            confine._give_up_abstract_sockets()
    else:
        confine._give_up_abstract_sockets()
