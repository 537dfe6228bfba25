"""Stands in for a worker: says what the name of its job asks for, and trains nothing."""

import contextlib
import ctypes
import errno
import json
import os
import socket
import sys
import threading
from pathlib import Path

from ravnest.sandbox.memory_limit import limit_memory

NONSENSE = {
    "nonsense": "not json",
    "deep line": '{"report":' + "[" * 100_000,
    "endless line": "x" * (2 << 20),
}


def say(**line):
    print(json.dumps(line), flush=True)


def end(outcome="done", **more):
    say(type="end", end={"outcome": outcome, **more})


def save():
    Path("package").mkdir(exist_ok=True)
    Path("package/trained-0123456789abcdef.safetensors").write_bytes(b"weights")
    Path("package/trained.json").write_text("{}")


def host_port(text):
    host, _, port = text.rpartition(":")
    return host, int(port)


def echo(order):
    """Sends back what one caller says, in capitals."""
    with socket.create_server(host_port(order["listen"])) as server:
        say(type="report", report={"at": 1.0, "notes": ["listening"]})
        caller, _ = server.accept()
        with caller:
            while piece := caller.recv(1 << 16):
                caller.sendall(piece.upper())
    end()


def call(order):
    """Says a lot to its only neighbour and checks what comes back."""
    (address,) = order["routes"].values()
    said = b"abc" * 500_000
    with socket.create_connection(host_port(address)) as line:
        threading.Thread(target=line.sendall, args=(said,)).start()
        got = bytearray()
        while len(got) < len(said):
            piece = line.recv(1 << 16)
            if not piece:
                break
            got += piece
    end(reason="heard all" if bytes(got) == said.upper() else f"heard {len(got)} bytes")


def meddle(how):
    """What a hostile script may do in its folder."""
    log = Path("worker.log")
    log.unlink(missing_ok=True)
    if how == "link":
        log.symlink_to("../../secret")
    elif how == "pipe":
        os.mkfifo(log)
    elif how == "stretched":
        os.truncate(sys.stderr.fileno(), 1 << 40)
        log.touch()
        os.truncate(log, 1 << 40)
    elif how == "marked":
        os.chmod(sys.stderr.fileno(), 0o4755)


def spoil(how):
    """What it may make of its folder, so that nobody can remove it or writes somewhere else."""
    if how == "deep":
        top = os.open(".", os.O_RDONLY)
        for _ in range(3 * sys.getrecursionlimit()):
            os.mkdir("d")
            os.chdir("d")
        os.fchdir(top)
    elif how == "links":
        for name in ("tls", "node_data"):
            Path(name).rename(f"old-{name}")
        Path("tls").symlink_to("../../../outside")
        Path("node_data").mkdir()
        Path("node_data/nodes").symlink_to("../../../../outside")


def look_around():
    """What a hostile graph would try, once it has the process: what it got."""
    home = Path.cwd().parents[1]
    owner = home.parent / "owner"
    got = []
    for secret in (*home.glob("identity/*/*"), owner / "secret", Path("/etc/shadow")):
        with contextlib.suppress(OSError):
            secret.read_bytes()
            got.append(f"reads {secret.name}")
    for place in (home, home / "work", owner, Path("/usr"), Path("/etc"), Path("/")):
        with contextlib.suppress(OSError):
            (place / "written").write_text("1")
            got.append(f"writes to {place.name}")
    got += [f"has {name}" for name in os.environ if "SECRET" in os.environ[name]]
    if len([name for name in os.listdir("/proc") if name.isdigit()]) > 2:
        got.append("sees processes")
    system = ctypes.CDLL(None, use_errno=True)
    if system.ptrace(16, os.getpid(), 0, 0) == 0 or ctypes.get_errno() != errno.ENOSYS:
        got.append("may trace")
    for family in (socket.AF_PACKET, socket.AF_VSOCK, socket.AF_ALG):
        with contextlib.suppress(OSError):
            socket.socket(family, socket.SOCK_RAW).close()
            got.append(f"has a socket {family}")
    socket.create_server(("127.0.0.1", 0)).close()  # its neighbours reach it
    Path("mine").write_text("1")
    return got


def main():
    order = json.loads(Path("order.json").read_text())
    job = order["assignment"]["job_name"]
    limit_memory(order["memory_bytes"])  # as workers do
    print("hello from the log", file=sys.stderr, flush=True)
    say(type="started")
    if job == "crash":
        print("out of luck", file=sys.stderr, flush=True)
        return 3
    if job.startswith("log "):
        meddle(job.removeprefix("log "))
        return 3
    if job.startswith("spoil "):
        spoil(job.removeprefix("spoil "))
        return 3
    if job.startswith("result "):
        save()
        package, other = Path("package"), Path("../../undelivered/other")
        if job == "result link":
            Path("package/trained-0123456789abcdef.safetensors").unlink()
            Path("package/trained-0123456789abcdef.safetensors").symlink_to(
                ".." / other / "trained-0123456789abcdef.safetensors"
            )
        elif job == "result folder":
            package.rename("p")
            package.symlink_to(other)
        elif job == "result pipe":
            Path("package/trained.json").unlink()
            os.mkfifo("package/trained.json")
        elif job == "result many":
            for number in range(100):
                Path(f"package/trained-{number:016x}.safetensors").touch()
        elif job == "result junk":
            Path("package/junk").write_bytes(bytes(1000))
            os.chmod("package", 0o500)
        elif job == "result endless":
            os.truncate("package/trained-0123456789abcdef.safetensors", 1 << 40)
        end(saved=True)
        return 0
    if job in NONSENSE:
        print(NONSENSE[job], flush=True)
        return sys.stdin.readline() and 0
    if job in ("echo", "call"):
        {"echo": echo, "call": call}[job](order)
        return 0
    if job == "crash by a signal":
        ctypes.string_at(0)
    if job == "large":
        try:
            bytearray(os.urandom(1)) * (200 << 20)
        except MemoryError:
            end("failed", out_of_memory=True)
        return 1
    if job == "large together":
        is_child = os.fork() == 0
        ballast = bytearray(os.urandom(1)) * (100 << 20)
        if is_child:  # lines of two processes would get into each other
            sys.stdin.read()
            return 0
        say(type="report", report={"at": 1.0, "memory_bytes": len(ballast)})
    if job == "look around":
        say(type="report", report={"at": 1.0, "notes": look_around()})
    if job == "on a device":
        say(type="report", report={"at": 1.0, "memory_bytes": 77_000_000_000})
    if job == "flood":
        for step in range(1000):
            say(type="report", report={"at": 1.0, "step": step})
        end()
        return 0
    if job == "forger":
        for name in ("order.json", "ended.json"):
            Path(name).unlink(missing_ok=True)
            os.mkfifo(name)
    notes = [os.environ.get("OMP_NUM_THREADS", "none"), str("RAVNEST_TOKEN" in os.environ)]
    say(type="report", report={"at": 1.0, "epoch": 1, "notes": notes})
    if job != "digits":
        for line in sys.stdin:
            action = json.loads(line)["action"]
            say(type="report", report={"at": 2.0, "notes": [action]})
            if action == "stop":
                save()
                end("stopped", saved=True, epochs_done=1)
                return 0
        return 1
    save()
    end(saved=True, epochs_done=3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
