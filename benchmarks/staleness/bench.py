"""What do old gradients cost? Steps to a held-out loss, over those of one machine.

    python3 dev.py bench staleness

Real stages, schedules and optimizers on a virtual clock (see virtual.py): the order of events is
that of a pipeline of equal machines whose stages are all busy all the time. "Steps" are batches of
equal size; one machine is plain PyTorch. The text is learnt by a GPT of 8 layers, the digits by a
network with BatchNorm, whose batches stay whole. Weights are judged where their optimizers left
them, on rows that nobody learns from, every 10 steps (digits: 5), three looks taken together. All
try the same three rates with all seeds; rows are at the rate that is best for one machine.

Curves are kept in a folder if one is given, and are not made again; so the work can be done in
several goes, and a part of it at a time:
    --curves FOLDER --within SECONDS --only "adamw, 4 stages" "muon, one machine" …
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
from curves import Curve  # noqa: E402
from entrants import ALL, LEVELS, SEEDS, Contestant, Run, Task  # noqa: E402
from learning import train  # noqa: E402

Curves = dict[Run, Curve]


def best_rate(who: Contestant, curves: Curves, seeds: Sequence[int]) -> float | None:
    """The first at the lowest loss, in the mean of all seeds; if none gets there with all of them,
    at the loss before, and so on. None if not all rates have been tried."""
    if any(Run(who, rate, seed) not in curves for rate in who.rates for seed in seeds):
        return None

    def order(rate: float) -> tuple[float, ...]:
        tried = [curves[Run(who, rate, seed)] for seed in seeds]
        return tuple(mean_steps(tried, level) for level in reversed(LEVELS[who.task]))

    return min(who.rates, key=order)


def mean_steps(curves: Sequence[Curve], level: float) -> float:
    """Infinite if one of them does not get there."""
    found = [curve.reached(level) for curve in curves]
    return sum(float("inf") if one is None else one[0] for one in found) / max(len(found), 1)


def plain(steps: float) -> str:
    return "-" if steps == float("inf") else f"{steps:.0f}"


def ratio(ours: Sequence[Curve], theirs: Sequence[Curve], level: float) -> str:
    """Mean steps over mean steps, and the one of each seed."""
    us, them = mean_steps(ours, level), mean_steps(theirs, level)
    if float("inf") in (us, them):
        return "-"
    each = ", ".join(
        f"{mean_steps([a], level) / mean_steps([b], level):.2f}"
        for a, b in zip(ours, theirs, strict=True)
    )
    return f"**{us / them:.2f}** ({each})"


def print_table(task: Task, curves: Curves, seeds: Sequence[int]) -> None:
    """Of those who have tried the best rate of one machine."""
    levels, found = LEVELS[task], dict.fromkeys(run.who for run in curves)
    print(f"\n{task}: steps to a loss over those of one machine, mean and each of {len(seeds)}")
    titles = ["contestant", "rate", *(f"to {level}" for level in levels), f"steps to {levels[-1]}"]
    titles += ["other rates", "least busy stage", "updates lacking, by stage"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for who in found:
        rate = best_rate(who.alone, curves, seeds) if who.task == task else None
        tried = {
            each: [curves[run] for seed in seeds if (run := Run(who, each, seed)) in curves]
            for each in who.rates
        }
        if rate is None or len(tried[rate]) < len(seeds):
            continue
        ours, alone = tried[rate], [curves[Run(who.alone, rate, seed)] for seed in seeds]
        if who.stages:
            cells = [ratio(ours, alone, level) for level in levels]
        else:
            cells = [f"{plain(mean_steps(ours, level))} steps" for level in levels]
        others = ", ".join(
            f"{each:g}: {plain(mean_steps(some, levels[-1]))}"
            for each, some in tried.items()
            if each != rate and len(some) == len(seeds)
        )
        steps, busy = plain(mean_steps(ours, levels[-1])), f"{ours[0].busy:.2f}" * bool(who.stages)
        old = " ".join(f"{value:.2f}" for value in ours[0].staleness)
        print(f"| {' | '.join([who.name, f'{rate:g}', *cells, steps, others, busy, old])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=Path, help="keep curves here, and use those found here")
    parser.add_argument("--within", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these contestants")
    parser.add_argument("--task", choices=list(LEVELS), help="only this one")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--one-rate", action="store_true", help="pipelines try no other rate")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    seeds = range(options.seeds)
    ends = time.monotonic() + options.within
    wanted = [
        who
        for who in ALL
        if (not options.only or who.name in options.only) and options.task in (None, who.task)
    ]
    with tempfile.TemporaryDirectory() as temporary:

        def make(runs: Sequence[Run]) -> Curves:
            left, folder = ends - time.monotonic(), options.curves or Path(temporary)
            found = kept.results(runs, train, folder, left, options.processes)
            return {run: Curve(**curve) for run, curve in found.items()}

        def runs_of(who: Contestant, rates: Sequence[float]) -> list[Run]:
            return [Run(who, rate, seed) for rate in rates for seed in seeds]

        alone = dict.fromkeys(who.alone for who in wanted)
        curves = make([run for who in alone for run in runs_of(who, who.rates)])
        best = {who: best_rate(who, curves, seeds) for who in alone}
        curves |= make(
            [
                run
                for who in wanted
                if (rate := best[who.alone]) is not None
                for run in runs_of(who, (rate,) if options.one_rate else who.rates)
            ]
        )
    for task in dict.fromkeys(who.task for who in wanted):
        print_table(task, curves, seeds)


if __name__ == "__main__":
    main()
