"""Several providers on this machine: one process each, all running the same script.

What they print appears here line by line with the provider's name in front. When one fails the
others are told by it and end too; whoever has not ended soon after that is ended from here.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ravnest.errors import NodeError
from ravnest.rundir import RunDir

GRACE_S = 20.0
"""How long the others may take to end after one has failed or the user has interrupted."""


@dataclass(frozen=True)
class Outcome:
    """Exit code of every provider, by name."""

    codes: Mapping[str, int]

    @property
    def code(self) -> int:
        """0 if all went well; else that of the first one that failed."""
        return next((code for code in self.codes.values() if code), 0)


def planned_nodes(run: RunDir, count: int | None = None) -> list[str]:
    """Names of the providers that the plan uses; `NodeError` if there are not `count` of them."""
    run.settle()
    files = sorted(
        (run.root / "nodes").glob("node_*.json"), key=lambda path: int(path.stem.split("_")[1])
    )
    names = [path.stem for path in files if '"Idle"' not in path.read_text(encoding="utf-8")]
    if not names:
        raise NodeError(f"there is no plan in {run.root}; run clusterize first")
    if count is not None and count != len(names):
        raise NodeError(
            f"--nodes is {count}, but the plan in {run.root} uses {len(names)} providers: "
            f"{', '.join(names)}. Plan again for another number."
        )
    return names


def launch(
    command: Sequence[str],
    names: Sequence[str],
    *,
    folder: Path | None = None,
    show: Callable[[str, str], None],
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run `command` once for every provider and wait for all; `show` gets name and line."""
    threads = max(1, (os.cpu_count() or 1) // len(names))
    processes: dict[str, subprocess.Popen[str]] = {}
    readers: list[threading.Thread] = []
    try:
        for name in names:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={
                    "OMP_NUM_THREADS": str(threads),
                    **os.environ,
                    **(environment or {}),
                    "RAVNEST_NODE": name,
                    "PYTHONUNBUFFERED": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
            processes[name] = process
            assert process.stdout is not None
            reader = threading.Thread(target=_copy, args=(process.stdout, name, show), daemon=True)
            reader.start()
            readers.append(reader)
        _wait(processes)
    except KeyboardInterrupt:
        _interrupt(processes)
        raise
    finally:
        _end(processes)
        for reader in readers:
            reader.join(2.0)
    return Outcome({name: process.returncode for name, process in processes.items()})


def _copy(stream: IO[str], name: str, show: Callable[[str, str], None]) -> None:
    for line in stream:
        show(name, line.rstrip("\n"))


def _wait(processes: Mapping[str, subprocess.Popen[str]]) -> None:
    """Until all have ended; once one has failed, not longer than the grace."""
    ended = threading.Condition()
    codes: dict[str, int] = {}

    def watch(name: str, process: subprocess.Popen[str]) -> None:
        code = process.wait()
        with ended:
            codes[name] = code
            ended.notify_all()

    for name, process in processes.items():
        threading.Thread(target=watch, args=(name, process), daemon=True).start()
    deadline: float | None = None
    with ended:
        while len(codes) < len(processes):
            if deadline is None and any(codes.values()):
                deadline = time.monotonic() + GRACE_S
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            ended.wait(left)


def _interrupt(processes: Mapping[str, subprocess.Popen[str]]) -> None:
    """A terminal has interrupted them all; if it was only us, pass it on."""
    for process in processes.values():
        if process.poll() is None and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + GRACE_S
    for process in processes.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def _end(processes: Mapping[str, subprocess.Popen[str]]) -> None:
    for process in processes.values():
        if process.poll() is None:
            process.kill()
    for process in processes.values():
        process.wait()
