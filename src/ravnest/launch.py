"""Several providers on this machine: one process each, all running the same script.

What they print appears here line by line with the provider's name in front. When one fails the
others of its cluster are told by it and end too; whoever has not ended soon after that is ended
from here. Other clusters go on.
Whatever ends the launcher ends them: signals are passed on, and if it is killed, the providers find
out by themselves (`ravnest.lifeline`).
"""

import contextlib
import json
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from ravnest import lifeline
from ravnest.errors import NodeError
from ravnest.outcome import Ending, Outcome
from ravnest.rundir import RunDir

GRACE_S = 20.0
"""How long the others may take to end after one has failed or the user has interrupted."""

SIGNAL_CHECK_S = 0.25
"""How long a signal may go unseen. Python handles signals between two steps of the main thread; one
that strikes just before a wait, or two at once, do not end that wait."""

_DOCUMENT = re.compile(r"node_([0-9]+)\.json")
_ENDING = (signal.SIGTERM,) if sys.platform == "win32" else (signal.SIGTERM, signal.SIGHUP)

Events = queue.SimpleQueue[tuple[str, int] | SystemExit]
"""What the launcher waits for: exit codes of providers, and signals that end itself."""


def planned_nodes(run: RunDir, count: int | None = None) -> dict[str, int]:
    """Names of the providers that the plan uses, and their clusters. `count` may be their number,
    or that of the whole pool; `NodeError` if it is neither."""
    run.settle()
    documents = {
        int(match[1]): path
        for path in (run.root / "nodes").glob("node_*.json")
        if (match := _DOCUMENT.fullmatch(path.name))
    }
    contents = {path.stem: json.loads(path.read_bytes()) for _, path in sorted(documents.items())}
    clusters = {name: int(content.get("rank", 0)) for name, content in contents.items()}
    idle = [name for name, content in contents.items() if content.get("node_type") == "Idle"]
    used = [name for name in clusters if name not in idle]
    if not used:
        raise NodeError(f"there is no plan in {run.root}; run clusterize first")
    if count is None or count == len(used):
        return {name: clusters[name] for name in used}
    if count == len(clusters):  # those that are left out say so and end
        return clusters
    raise NodeError(
        f"--nodes is {count}, but the plan in {run.root} uses {len(used)} providers: "
        f"{', '.join(used)}" + (f"; it leaves out {', '.join(idle)}" if idle else "")
    )


def launch(
    command: Sequence[str],
    names: Mapping[str, int],
    *,
    folder: Path | None = None,
    show: Callable[[str, str], None],
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run `command` once for every provider and wait for all; `show` gets name and line. `names`
    says which cluster each belongs to.

    A signal that asks this process to end interrupts them and comes out as `SystemExit`.
    """
    threads = max(1, (os.cpu_count() or 1) // len(names))
    variables = {"OMP_NUM_THREADS": str(threads), **os.environ, **(environment or {})}
    processes: dict[str, subprocess.Popen[str]] = {}
    readers: list[threading.Thread] = []
    said: dict[str, str] = {}

    def hear(name: str, line: str) -> None:
        if line.strip():
            said[name] = line.strip()
        show(name, line)

    events: Events = queue.SimpleQueue()
    with _signals_into(events), lifeline.hold() as line:
        try:
            for name in names:
                process = _start(command, name, folder, variables, line)
                processes[name] = process
                reader = threading.Thread(
                    target=_copy, args=(process.stdout, name, hear), daemon=True
                )
                reader.start()
                readers.append(reader)
            order, stopped = _wait(processes, names, events)
        except (KeyboardInterrupt, SystemExit):
            _interrupt(processes)
            raise
        finally:
            _end(processes)
            for reader in readers:
                reader.join(2.0)
    return Outcome(
        [
            Ending(name, processes[name].returncode, said.get(name, ""), name in stopped)
            for name in order
        ]
    )


@contextlib.contextmanager
def _signals_into(events: Events) -> Iterator[None]:
    """While this is in force, a signal that would end this process is an event instead.

    Nothing is raised where the signal happens to strike, which may be between the start of a
    provider and the note of it. Signals that are ignored (nohup) or handled already stay so.
    """
    taken = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        taken = []  # Python lets no other thread handle signals.
    for number in taken:
        signal.signal(number, lambda received, _: events.put(SystemExit(128 + received)))
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _start(
    command: Sequence[str],
    name: str,
    folder: Path | None,
    variables: Mapping[str, str],
    line: int | None,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env={
            **variables,
            **({} if line is None else {lifeline.VARIABLE: str(line)}),
            "RAVNEST_NODE": name,
            "PYTHONUNBUFFERED": "1",
        },
        pass_fds=() if line is None else (line,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )


def _copy(stream: IO[str], name: str, show: Callable[[str, str], None]) -> None:
    for line in stream:
        # Whoever prints into a pipe that nobody reads must not be stopped by it.
        with contextlib.suppress(OSError, ValueError):
            show(name, line.rstrip("\n"))


def _wait(
    processes: Mapping[str, subprocess.Popen[str]], clusters: Mapping[str, int], events: Events
) -> tuple[list[str], set[str]]:
    """Until all have ended; once one of a cluster has failed, not longer than the grace for it.
    Who ended, in order, and who of them had to be stopped."""
    for name, process in processes.items():
        threading.Thread(target=_report_end, args=(name, process, events), daemon=True).start()
    running = set(processes)
    order: list[str] = []
    stopped: set[str] = set()
    deadlines: dict[int, float] = {}
    while running:
        for name in running:
            if time.monotonic() >= deadlines.get(clusters[name], math.inf):
                stopped.add(name)
                processes[name].kill()
        try:
            event = events.get(timeout=SIGNAL_CHECK_S)
        except queue.Empty:
            continue
        if isinstance(event, SystemExit):
            raise event
        name, code = event
        running.discard(name)
        order.append(name)
        if code:
            deadlines.setdefault(clusters[name], time.monotonic() + GRACE_S)
    return order, stopped


def _report_end(name: str, process: subprocess.Popen[str], events: Events) -> None:
    events.put((name, process.wait()))


def _interrupt(processes: Mapping[str, subprocess.Popen[str]]) -> None:
    """A terminal has interrupted them all; if it was only us, pass it on."""
    # What a shell starts in the background ignores interruption, and so do its children.
    deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    for process in processes.values():
        if process.poll() is None and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM if deaf else signal.SIGINT)
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
