"""How much of two cores does a pipeline of two stages use?

    python3 dev.py bench pipeline

Two stages with one thread each train a GPT of 11 M parameters; the result is their speed as a
fraction of twice the speed of one process with one thread, which is all that two cores could do.
Beside it, in the same run: torch.distributed.pipelining (GPipe, 1F1B, zero-bubble) on gloo, one
process with two threads, and two processes that have nothing to do with each other, which share
nothing but the machine's memory and clock. Every contestant runs several times in turn; medians are
compared.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import job  # noqa: E402
from local import equal_pool, free_addresses, printed_by  # noqa: E402

from ravnest import clusterize  # noqa: E402
from ravnest.rundir import RunDir  # noqa: E402

PARTS = (1, 2, 4, 8, 16)
PEER_PARTS = (4, 8, 16)


def alone(threads: int) -> float:
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import job; print('PACE', job.train_alone({threads}))"  # noqa: E501
    return pace(run([sys.executable, "-c", code], threads))


def strangers() -> float:
    """Two processes that have nothing to do with each other: what the machine gives to two."""
    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(alone, (1, 1)))


def peer(name: str, parts: int) -> float:
    return pace(run([sys.executable, str(HERE / "peers.py"), name, str(parts)], 1))


def run(command: Sequence[str], threads: int) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def pace(printed: str) -> float:
    (found,) = re.findall(r"PACE ([\d.]+)", printed)
    return float(found)


def plan(folder: Path) -> RunDir:
    machine = {"ram": 8, "bandwidth": 10_000, "gflops": 50}
    node_data = equal_pool(folder, free_addresses(2), machine)
    clusterize(
        job.make_model(),
        (job.batches(1)[0],),
        node_data=node_data.root,
        max_clusters=1,
        micro_batches=2,
        self_check=False,
        quiet=True,
    )
    return node_data


def ours(parts: int, schedule: str, *, verbose: bool = False) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, str(HERE / "provider.py"), str(parts), schedule]
        printed = printed_by(command, plan(folder), folder, {"OMP_NUM_THREADS": "1"})
    if verbose:
        print("\n".join(line for line in printed.splitlines() if "STAGES" in line))
    return pace(printed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round, without the peers")
    parser.add_argument("--verbose", action="store_true", help="also how busy the stages were")
    options = parser.parse_args()
    contestants = {
        "one process, one thread": lambda: alone(1),
        "one process, two threads": lambda: alone(2),
        "two processes apart": strangers,
        **{
            f"Ravnest async, {parts} micro-batches": (
                lambda parts=parts: ours(parts, "async", verbose=options.verbose)
            )
            for parts in PARTS
        },
    }
    if not options.quick:
        contestants |= {
            f"{name}, {parts} micro-batches": (lambda name=name, parts=parts: peer(name, parts))
            for name in ("gpipe", "1f1b", "zbv")
            for parts in PEER_PARTS
        }
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(1 if options.quick else options.rounds):
        for name, contest in contestants.items():
            found[name].append(contest())
    limit = 2 * statistics.median(found["one process, one thread"])
    tokens = job.ROWS * job.LENGTH
    for name, paces in found.items():
        middle = statistics.median(paces)
        print(f"{name:32} {middle * tokens:8.0f} tokens/s   {middle / limit:.2f} of two cores")


if __name__ == "__main__":
    main()
