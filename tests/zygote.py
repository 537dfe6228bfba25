"""Python processes that have PyTorch loaded when they start.

Loading it takes seconds of computing, and tests of real processes start hundreds. Here one process
loads it once and forks a child for each program. `python()` is a file to put in the place of
`sys.executable`: a small process that hands its arguments, environment, folder and open files to
the first one, passes signals on to the child, and ends as the child ends. If it is killed, so is
the child. Programs inside a sandbox do not reach the first process and load PyTorch themselves.

    python tests/zygote.py SOCKET              the process that forks
    python tests/zygote.py SOCKET --run ARGS   the small one
"""

import json
import os
import signal
import socket
import sys

_MOST_BYTES = 1 << 20


# ---- the small process, which must start at once -----------------------------------------------


def stand_in(path: str, args: list[str]) -> None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
    line.connect(path)
    is_deaf = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    asked = {"args": args, "env": dict(os.environ), "cwd": os.getcwd(), "is_deaf": is_deaf}
    socket.send_fds(line, [json.dumps(asked).encode()], [0, 1, 2])
    child = int(line.recv(100))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCONT):
        if number != signal.SIGINT or not is_deaf:
            signal.signal(number, lambda number, _: os.kill(child, number))
    for stream in (0, 1, 2):
        os.close(stream)
    said = line.recv(100)
    code = int(said) if said else 1
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__" and sys.argv[2:3] == ["--run"]:
    stand_in(sys.argv[1], sys.argv[3:])


import contextlib  # noqa: E402 - not for the small process
import functools  # noqa: E402
import importlib  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

# ---- the process that forks --------------------------------------------------------------------


def load() -> None:
    """Whatever takes time, and does nothing when it is loaded."""
    for name in ("torch", "ravnest.planning.study", "ravnest.trainer", "ravnest.worker.training"):
        importlib.import_module(name)


def serve(path: str) -> dict[str, Any]:
    """Returns in each child, with what it is to run."""
    import selectors

    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(100)
    print("ready", flush=True)
    waiting = selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ, None)
    waiting.register(0, selectors.EVENT_READ, "parent")  # closed when the tests are over
    while True:
        for key, _ in waiting.select():
            if key.data == "parent":
                shutil.rmtree(os.path.dirname(path))
                sys.exit(0)
            if key.data is None:
                line, _ = listening.accept()
                try:
                    asked, streams, _, _ = socket.recv_fds(line, _MOST_BYTES, 3)
                except OSError:
                    asked = b""
                if not asked:  # killed before it could ask
                    line.close()
                    continue
                child = os.fork()
                if child == 0:
                    waiting.close()
                    listening.close()
                    os.setsid()
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                        os.close(stream)
                    os.closerange(3, 256)
                    found: dict[str, Any] = json.loads(asked)
                    return found
                for stream in streams:
                    os.close(stream)
                with contextlib.suppress(OSError):  # it may have been killed meanwhile
                    line.send(str(child).encode())
                ended = os.pidfd_open(child)
                waiting.register(ended, selectors.EVENT_READ, (child, ended, line))
                waiting.register(line, selectors.EVENT_READ, (child, ended, line))
                continue
            child, ended, line = key.data
            if key.fileobj is line:  # the small process was killed
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            for each in (ended, line):
                waiting.unregister(each)
            os.close(ended)
            with contextlib.suppress(OSError):  # it may have been killed meanwhile
                line.send(str(os.waitstatus_to_exitcode(status)).encode())
            line.close()
            break  # the other event of this child is over as well


def become(asked: "dict[str, Any]") -> None:
    """All that Python does before it runs a program, for these arguments."""
    import io
    import runpy

    if not asked["is_deaf"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    at_once = "PYTHONUNBUFFERED" in os.environ
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)))
    out, err = (io.BufferedWriter(io.FileIO(number, "wb", closefd=False)) for number in (1, 2))
    sys.stdout = io.TextIOWrapper(out, write_through=at_once, line_buffering=at_once)
    sys.stderr = io.TextIOWrapper(err, errors="backslashreplace", line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    args = asked["args"]
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:0] = [place for place in places if place not in sys.path]
    is_safe = False
    while args[0] in ("-P", "-u"):
        is_safe = is_safe or args[0] == "-P"
        args = args[1:]
    kind, rest = args[0], args[1:]
    if kind in ("-m", "-c"):
        sys.path[:0] = [] if is_safe else [os.getcwd() if kind == "-m" else ""]
        sys.argv = [kind, *rest[1:]]
        if kind == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            exec(rest[0], {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        sys.path[:0] = [] if is_safe else [os.path.dirname(os.path.abspath(kind))]
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")


# ---- in the tests ------------------------------------------------------------------------------


@functools.cache
def python() -> str:
    """The file to put in the place of `sys.executable`. The process behind it is started by the
    first call, and ends with this one."""
    folder = Path(tempfile.mkdtemp(prefix="zygote-"))
    path, found = folder / "socket", folder / "python"
    # -I -S: what it needs is in the standard library, and it starts in a hundredth of a second.
    start = f'exec "{sys.executable}" -I -S "{__file__}" "{path}" --run "$@"'
    found.write_text(f"#!/bin/sh\n{start}\n")
    found.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, __file__, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    _RUNNING.append(process)
    return str(found)


_RUNNING: "list[subprocess.Popen[bytes]]" = []


if __name__ == "__main__":
    load()
    sys.path.pop(0)
    become(serve(sys.argv[1]))
