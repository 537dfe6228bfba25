"""What a process in a sandbox sees of the machine it runs on."""

import subprocess
import sys

import pytest

from ravnest.agent.machine import Load
from ravnest.sandbox import bubblewrap as sandbox
from ravnest.sandbox.bubblewrap import Policy, sandboxed, temporary_bytes, why_not

LOOK = """
import os, pathlib, ravnest.api
print(sorted(os.listdir(secret)) if os.path.isdir(secret) else "nothing there")
print(sorted(os.listdir(python)))
pathlib.Path("mine").write_text("1")
for path in ("/etc/ravnest-was-here", python + "/was-here"):
    try:
        pathlib.Path(path).write_text("1")
    except OSError as error:
        print("OSError")
print(os.listdir("/tmp") if not python.startswith("/tmp") else [])
"""


@pytest.fixture
def no_memory():
    found = (why_not, sandbox._user_namespace)
    for known in found:
        known.cache_clear()
    yield
    for known in found:
        known.cache_clear()


def test_without_the_program_the_reason_names_it(monkeypatch, no_memory):
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: None)
    assert why_not() == "bubblewrap (bwrap) is not installed"


def test_a_sandbox_that_does_not_work_is_none(monkeypatch, no_memory):
    monkeypatch.setattr(sandbox, "_PROGRAM", "false")
    assert "does not work" in why_not()


@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
def test_a_trial_that_takes_too_long_is_made_again(monkeypatch, no_memory, always):
    """An agent that was started on a busy machine had no sandbox until it was started again."""
    late = set()

    def run(command, *, timeout, **_):
        if "--help" not in command and (always or tuple(command) not in late):
            late.add(tuple(command))
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 0, b"--assert-userns-disabled", b"")

    monkeypatch.setattr(sandbox.shutil, "which", lambda _: "/usr/bin/bwrap")
    monkeypatch.setattr(sandbox.subprocess, "run", run)
    assert why_not() == ("bwrap does not come back within 120 s" if always else None)
    assert sandbox._user_namespace()[0] == (
        "--assert-userns-disabled" if always else "--unshare-user"
    )


def test_the_reason_is_one_line_whatever_was_printed(monkeypatch, no_memory):
    """A server takes it as a label, and refused to enrol a machine whose reason had several."""
    monkeypatch.setattr(sandbox, "_is_too_old", lambda: False)
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: "/usr/bin/bwrap")
    command = [sys.executable, "-c", "import sys; sys.exit('first\\nlast')"]
    monkeypatch.setattr(sandbox, "sandboxed", lambda *_: command)
    assert why_not() == "bwrap does not work: last"


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("place", ["elsewhere", "beside Python", "around Python"])
def test_a_script_sees_its_own_folder_and_no_others(tmp_path, monkeypatch, place):
    """Above all not the credential, wherever the agent's home is."""
    home, python = tmp_path / "home", tmp_path / "python"
    if place == "beside Python":
        home = python / "share" / "provider"
    elif place == "around Python":
        python = home / "environment"
    folder, secret = home / "work" / "a1", home / "identity"
    for path in (folder, secret, python / "lib"):
        path.mkdir(parents=True)
    (secret / "credential").write_text("")
    folders = sandbox._python_folders()
    monkeypatch.setattr(sandbox, "_python_folders", lambda: [*folders, python])
    # The folder that the agent was started from is not among those that are shown.
    monkeypatch.syspath_prepend(str(secret))
    names = f"secret, python = {str(secret)!r}, {str(python)!r}\n"
    command = sandboxed([sys.executable, "-c", names + LOOK], Policy(folder, home))
    assert "--die-with-parent" in command
    done = subprocess.run(command, capture_output=True, text=True)
    shown = ["nothing there", "['lib']", "OSError", "OSError", "[]"]
    if place == "beside Python":
        shown[1] = "['lib', 'share']"
    assert done.stdout.splitlines() == shown, done.stderr
    assert (folder / "mine").read_text() == "1"


@pytest.mark.needs("bwrap")
def test_a_script_does_not_see_most_of_the_machine(tmp_path):
    unseen = ["/etc/shadow", "/etc/passwd", "/etc/ssl/private", "/srv", "/mnt", "/boot", "/var/log"]
    program = f"import os; print([path for path in {unseen} if os.path.exists(path)])"
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    command = sandboxed([sys.executable, "-c", program], Policy(home / "work", home))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


POWERS = """
import ctypes, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["CapPrm"], 16), int(status["CapEff"], 16), int(status["NoNewPrivs"]))
system = ctypes.CDLL(None, use_errno=True)
remount, bind, new_user, new_mounts = 32, 4096, 0x10000000, 0x20000
print(system.mount(None, bytes(shown, "utf-8"), None, remount | bind, None))
try:
    open(shown + "/written", "w")
except OSError as error:
    print("read-only")
print(os.access("/proc/sys/kernel/core_pattern", os.W_OK), os.access("/sys", os.W_OK))
# In a namespace of its own it could do more.
print(system.unshare(new_user | new_mounts), system.unshare(new_user))
print(system.mount(None, bytes(shown, "utf-8"), None, remount | bind, None))
print(system.mount(None, b"/proc/sys", None, remount | bind, None))
"""


NO_MORE_NAMESPACES = (
    *("unshare", "--user", "--map-root-user", "sh", "-c"),
    *('echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh"),
)


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("place", ["usual", "without user namespaces"])
def test_a_script_has_no_capabilities_whoever_started_the_agent(tmp_path, monkeypatch, place):
    """As root it kept all of them: it made a folder of the machine writable, and wrote to it. And
    in a user namespace of its own it froze the control group that it shared with its agent."""
    home, shown = tmp_path / "home", tmp_path / "shown"
    for path in (home / "work", shown):
        path.mkdir(parents=True)
    before = ()
    if place == "without user namespaces":
        before = NO_MORE_NAMESPACES
        monkeypatch.setattr(sandbox, "_user_namespace", lambda: ("--assert-userns-disabled",))
    folders = sandbox._python_folders()
    monkeypatch.setattr(sandbox, "_python_folders", lambda: [*folders, shown])
    program = f"shown = {str(shown)!r}\n{POWERS}"
    command = sandboxed([sys.executable, "-c", program], Policy(home / "work", home))
    assert "--new-session" in command
    done = subprocess.run([*before, *command], capture_output=True, text=True)
    expected = ["0 0 1", "-1", "read-only", "False False", "-1 -1", "-1", "-1"]
    assert done.stdout.splitlines() == expected, done.stderr
    assert list(shown.iterdir()) == []


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    ("code", "asked"),
    [
        (0, ("--unshare-user", "--disable-userns", "--assert-userns-disabled")),
        (1, ("--assert-userns-disabled",)),
    ],
)
def test_a_sandbox_is_asked_for_without_user_namespaces(
    tmp_path, monkeypatch, no_memory, code, asked
):
    """By itself: for root, whatever else is given up keeps a script from them too."""
    (tmp_path / "work").mkdir()
    tried = subprocess.CompletedProcess([], code)
    monkeypatch.setattr(sandbox.subprocess, "run", lambda *command, **options: tried)
    assert sandbox._user_namespace() == asked
    command = sandboxed(["true"], Policy(tmp_path / "work", tmp_path))
    assert [word for word in command if word.startswith("--") and "user" in word] == list(asked)
    assert command[command.index("--cap-drop") + 1] == "ALL"


@pytest.mark.needs("bwrap")
def test_where_there_can_be_no_user_namespace_it_is_made_sure_that_there_is_none():
    asked = "from ravnest.sandbox import bubblewrap as s; print(s.why_not(), *s._user_namespace())"
    command = [*NO_MORE_NAMESPACES, sys.executable, "-c", asked]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.stdout == "None --assert-userns-disabled\n", found.stderr


@pytest.mark.needs("bwrap")
def test_where_a_script_could_make_a_user_namespace_there_is_no_sandbox(monkeypatch, no_memory):
    monkeypatch.setattr(sandbox, "_user_namespace", lambda: ("--assert-userns-disabled",))
    assert "new user namespaces was not disabled" in why_not()


def test_a_bubblewrap_that_cannot_forbid_user_namespaces_is_too_old(
    tmp_path, monkeypatch, no_memory
):
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho '--unshare-user  Create new user namespace'\n")
    old.chmod(0o755)
    monkeypatch.setattr(sandbox, "_PROGRAM", str(old))
    assert "is older than version 0.8" in why_not()


FILLS = """
import os, pathlib, sys
places = {"/dev/shm", "/tmp", "/var/tmp", "/run"}
told = {place: os.statvfs(place) for place in places}
print(sum(each.f_blocks * each.f_frsize for each in told.values()))
written = []
for place in [*places, "/", "/dev", "/var", "/etc", home]:
    try:
        pathlib.Path(place, "x").write_bytes(b"")
        written.append(place)
    except OSError:
        pass
print(set(written) == places, flush=True)
sys.stdin.read(1)
for place in places:
    with open(place + "/x", "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 20)):
                pass
        except OSError as error:
            print(error.strerror, flush=True)
sys.stdin.read(1)
"""


@pytest.mark.needs("bwrap")
def test_temporary_folders_take_a_part_of_the_memory_and_are_counted(tmp_path):
    """They were as large as half of the machine's memory each, and belonged to no process."""
    home, most = tmp_path / "home", 128 << 20
    (home / "work").mkdir(parents=True)
    program = [sys.executable, "-c", f"home = {str(home)!r}\n{FILLS}"]
    with subprocess.Popen(
        sandboxed(program, Policy(home / "work", home, memory_bytes=most)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == f"{most // 2}\n"
        assert process.stdout.readline() == "True\n", "elsewhere it cannot write"
        before = Load.process_memory(process.pid)
        process.stdin.write("1")
        process.stdin.flush()
        for _ in range(4):
            assert process.stdout.readline() == "No space left on device\n"
        grown = Load.process_memory(process.pid) - before
        process.communicate("1")
    assert most // 2 - (8 << 20) < grown < most // 2 + (8 << 20)


def test_what_is_in_no_sandbox_has_no_temporary_folders_of_its_own():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert temporary_bytes(process.pid) is None
        process.communicate()


@pytest.mark.needs("bwrap")
def test_torch_can_be_used_in_a_sandbox(tmp_path):
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    program = "import torch; print(int((torch.ones(2, 2) @ torch.ones(2, 2)).sum()))"
    command = sandboxed([sys.executable, "-c", program], Policy(home / "work", home))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "8\n", done.stderr
