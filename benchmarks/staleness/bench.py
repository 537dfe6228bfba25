"""What do old gradients cost? Steps to a held-out loss, over those of one machine.

    python3 dev.py bench staleness

Real stages, schedules and optimizers on a virtual clock (see virtual.py): the order of events is
that of a pipeline of equal machines whose stages are all busy all the time. "Steps" are batches of
equal size; one machine is plain PyTorch. The text is learnt by a GPT of 8 layers, the digits by a
network with BatchNorm, whose batches stay whole. Weights are judged where their optimizers left
them, on rows that nobody learns from, every 10 steps, three looks taken together.

Curves are kept in a folder if one is given, and are not made again; so the work can be done in
several goes, and a part of it at a time:
    --curves FOLDER --within SECONDS --only "adamw, 4 stages" "muon, one machine" …
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import kept  # noqa: E402
from curves import Curve  # noqa: E402
from entrants import ALL, LEVELS, SEEDS, Contestant, Run  # noqa: E402
from learning import train  # noqa: E402

Curves = dict[Run, Curve]


def best_rate(who: Contestant, tried: Curves) -> float | None:
    """The first at the lowest loss; if none gets there, at the one before, and so on."""

    def order(rate: float) -> tuple[float, ...]:
        curve = tried[Run(who.alone, rate, SEEDS[0])]
        reached = [curve.reached(level) for level in reversed(LEVELS[who.task])]
        return tuple(float("inf") if found is None else found[0] for found in reached)

    there = [rate for rate in who.rates if Run(who.alone, rate, SEEDS[0]) in tried]
    return min(there, key=order) if len(there) == len(who.rates) else None


def ratio(ours: Sequence[Curve], theirs: Sequence[Curve], level: float) -> str:
    """Mean steps over mean steps, and the one of each seed."""
    steps = [[curve.reached(level) for curve in side] for side in (ours, theirs)]
    if any(one is None for side in steps for one in side):
        return "-"
    us, them = ([one[0] for one in side if one is not None] for side in steps)
    each = ", ".join(f"{a / b:.2f}" for a, b in zip(us, them, strict=False))
    return f"**{sum(us) / len(us) / (sum(them) / len(them)):.2f}** ({each})"


def print_table(curves: Mapping[Contestant, Sequence[Curve]], rates: Mapping[Contestant, float]):
    for task, levels in LEVELS.items():
        print(f"\n{task}: steps to a loss over those of one machine, mean and each seed")
        print(f"| contestant | rate | steps to {levels[-1]} | {' | '.join(map(str, levels))} | |")
        for who, ours in curves.items():
            theirs = curves.get(who.alone, ())
            if who.task != task or not theirs:
                continue
            ends = [curve.reached(levels[-1]) for curve in ours]
            there = [one[0] for one in ends if one is not None]
            steps = f"{sum(there) / len(there):.0f}" if len(there) == len(ends) else "-"
            cells = [ratio(ours, theirs, level) for level in levels]
            old = " ".join(f"{value:.2f}" for value in ours[0].staleness)
            print(f"| {who.name} | {rates[who]:g} | {steps} | {' | '.join(cells)} | {old} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=Path, help="keep curves here, and use those found here")
    parser.add_argument("--within", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these contestants")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    seeds = SEEDS[: options.seeds]
    ends = time.monotonic() + options.within
    wanted = [who for who in ALL if not options.only or who.name in options.only]
    with tempfile.TemporaryDirectory() as temporary:

        def make(runs: Sequence[Run]) -> Curves:
            left, folder = ends - time.monotonic(), options.curves or Path(temporary)
            found = kept.results(runs, train, folder, left, options.processes)
            return {run: Curve(**curve) for run, curve in found.items()}

        rated = dict.fromkeys(who.alone for who in wanted)
        tried = make([Run(who, rate, SEEDS[0]) for who in rated for rate in who.rates])
        found = {who: best_rate(who, tried) for who in wanted}
        rates = {who: rate for who, rate in found.items() if rate is not None}
        chosen = make([Run(who, rate, seed) for who, rate in rates.items() for seed in seeds])
    by_contestant = {who: [c for run, c in chosen.items() if run.who == who] for who in rates}
    print_table(by_contestant, rates)
    for run, curve in tried.items():
        reached = (curve.reached(level) for level in LEVELS[run.who.task])
        steps = " ".join("    -" if one is None else f"{one[0]:5.0f}" for one in reached)
        print(f"{run.who.task} {run.who.name:40} {run.rate:<7g} {steps}  {curve.losses[-1]:.3f}")


if __name__ == "__main__":
    main()
