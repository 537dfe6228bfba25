"""Do clusters that average learn faster than one machine, and by how much?

    python3 dev.py bench convergence

Real stages, schedules, optimizers and rings on a virtual clock (see virtual_clusters.py) against
plain PyTorch on one machine. A batch of 2 takes one machine one virtual second; in a pipeline of S
equal stages each stage takes 1/S of that. A message takes 2 ms to the next stage and 20 ms to
another cluster, where a link carries the model in a second. Every cluster has its own shard of the
text and averages in the background, every 4 updates unless its name says otherwise. The loss is
that of the mean of all clusters' weights on text that nobody has learnt from.

Curves are kept in a folder if one is given, and are not made again; so the work can be done in
several goes, and a part of it at a time:
    --curves FOLDER --within SECONDS --only "one machine" "4 clusters of 2" …
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import kept  # noqa: E402
import report  # noqa: E402
from contestants import ALL, SEEDS, Contestant, Run  # noqa: E402
from curves import LEVELS, Curve  # noqa: E402
from training import train  # noqa: E402

Curves = dict[Run, Curve]


class UnfinishedError(Exception):
    """Time was up."""


class Maker:
    """Has curves made, or takes those that are there."""

    def __init__(self, folder: Path, within_s: float, processes: int) -> None:
        self._folder, self._processes = folder, processes
        self._ends = time.monotonic() + within_s

    def make(self, runs: Sequence[Run]) -> Curves:
        left = self._ends - time.monotonic()
        found = kept.results(runs, train, self._folder, left, self._processes)
        if len(found) < len(runs):
            raise UnfinishedError(f"{len(found)} of {len(runs)} curves are there")
        return {run: Curve(**curve) for run, curve in found.items()}


def best_rate(who: Contestant, tried: Curves) -> float:
    """The first at the lowest loss; if none gets there, at the one before, and so on."""

    def order(rate: float) -> tuple[float, ...]:
        curve = tried[Run(who, rate, SEEDS[0])]
        reached = [curve.reached(level) for level in reversed(LEVELS)]
        return tuple(float("inf") if found is None else found[0] for found in reached)

    return min(who.rates, key=order)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=Path, help="keep curves here, and use those found here")
    parser.add_argument("--within", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these contestants")
    parser.add_argument("--picture", type=Path, help="draw it here; results/, if all have run")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    wanted = [who for who in ALL if not options.only or who.name in options.only]
    with tempfile.TemporaryDirectory() as temporary:
        maker = Maker(options.curves or Path(temporary), options.within, options.processes)
        try:
            rated = dict.fromkeys(who.rated_as for who in wanted)
            tried = maker.make([Run(who, rate, SEEDS[0]) for who in rated for rate in who.rates])
            rates = {who: best_rate(who.rated_as, tried) for who in wanted}
            chosen = maker.make([Run(who, rates[who], seed) for who in wanted for seed in SEEDS])
        except UnfinishedError as unfinished:
            print(unfinished)
            return
    by_contestant = {who: [c for run, c in chosen.items() if run.who == who] for who in wanted}
    report.print_table(by_contestant, rates)
    report.print_tried(tried)
    everything = HERE.parent / "results" / "convergence.png" if len(wanted) == len(ALL) else None
    if picture := options.picture or everything:
        report.draw(by_contestant, picture)


if __name__ == "__main__":
    main()
