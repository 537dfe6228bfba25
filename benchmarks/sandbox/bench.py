"""What does the sandbox of a worker cost?

    python3 dev.py bench sandbox

A stage is trained in two processes, one started as an agent starts a worker (bubblewrap, denied
system calls, no programs, a memory limit) and one as a plain program. The two take turns in short
rounds, so that noise disturbs both alike. Where a process happens to have its memory makes one of
two equal processes up to a quarter faster than the other, so there are many pairs; the result is
the median of their ratios, by the clock and by processor time. Start-up is from the command to the
first word of a process that has loaded all that a worker loads.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ravnest.sandbox.bubblewrap import Policy, sandboxed, why_not
from ravnest.sandbox.environment import compute_environment

STEPS = Path(__file__).with_name("steps.py")
FIRST = 50
"""Steps that are not counted: caches, allocators."""


class Worker:
    def __init__(self, folder: Path, *, confined: bool) -> None:
        program = shutil.copy(STEPS, folder)
        command = [sys.executable, "-P", str(program), *(["confined"] if confined else [])]
        if confined:
            command = sandboxed(command, Policy(folder, hidden=folder.parent))
        began = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=compute_environment(1, home=folder),
        )
        assert self._read() == "ready"
        self.started_s = time.perf_counter() - began

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def round(self, steps: int) -> tuple[float, float]:
        """Seconds by the clock, seconds of processors."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        clock, processor = map(float, self._read().split())
        return clock, processor

    def end(self) -> None:
        self._process.communicate()


def ratios(folder: Path, rounds: int, steps: int) -> tuple[float, float, dict[bool, float]]:
    """Of a pair of processes: by the clock, by processor time; and how long each took to begin."""
    both = {confined: Worker(folder, confined=confined) for confined in (False, True)}
    for worker in both.values():
        worker.round(FIRST)
    clocks, processors = [], []
    for number in range(rounds):
        order = (False, True) if number % 2 else (True, False)
        found = {confined: both[confined].round(steps) for confined in order}
        clocks.append(found[True][0] / found[False][0])
        processors.append(found[True][1] / found[False][1])
    for worker in both.values():
        worker.end()
    started = {confined: worker.started_s for confined, worker in both.items()}
    return statistics.median(clocks), statistics.median(processors), started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    if (reason := why_not()) is not None:
        raise SystemExit(f"there is no sandbox to measure: {reason}")
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home).resolve() / "work"
        folder.mkdir()
        found = [ratios(folder, given.rounds, given.steps) for _ in range(given.pairs)]
    clocks, processors, starts = zip(*found, strict=True)
    plain, boxed = (
        statistics.median(start[confined] for start in starts) for confined in (False, True)
    )
    result = {
        "start-up, plain [s]": round(plain, 2),
        "start-up, sandboxed [s]": round(boxed, 2),
        "start-up, ratio": round(boxed / plain, 3),
        "seconds of a step, ratio": round(statistics.median(clocks), 4),
        "processor time of a step, ratio": round(statistics.median(processors), 4),
        "of each pair": sorted(round(ratio, 3) for ratio in processors),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
