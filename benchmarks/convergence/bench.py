"""Do clusters that average learn faster than one machine, and by how much?

    python3 dev.py bench convergence

Real stages, schedules, optimizers and rings on a virtual clock (see virtual_clusters.py) against
plain PyTorch on one machine. A batch takes one machine one virtual second; in a pipeline of S
equal stages each stage takes 1/S of that. A message takes 2 ms to the next stage and 20 ms to
another cluster, where a link carries the model in a second. Every cluster has its own shard of the
text and batches of the same size; they average in the background, every 8 updates. The loss is that
of the mean of all clusters' weights on text that nobody has learnt from. Every contestant has the
learning rate that is best for it among those tried.

Curves are kept in a folder if one is given, and are not made again; so the work can be done in
several goes: `--curves FOLDER --within SECONDS`.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "staleness")]

import chargpt  # noqa: E402
import kept  # noqa: E402
import text  # noqa: E402
import torch  # noqa: E402
from virtual import BACKWARD, FORWARD  # noqa: E402
from virtual_clusters import Cluster, Links, VirtualClusters  # noqa: E402

from ravnest.planning.costing.costs import Division  # noqa: E402
from ravnest.provider.assembly import StageSettings  # noqa: E402
from ravnest.provider.averaging.outer import Nesterov  # noqa: E402
from ravnest.provider.averaging.settings import Averaging  # noqa: E402
from ravnest.provider.averaging.share import Rules  # noqa: E402
from ravnest.provider.compute.optimizers import optimizer_named  # noqa: E402
from ravnest.provider.compute.updating import UpdateSettings  # noqa: E402
from ravnest.provider.leaf import LeafSettings  # noqa: E402

RESULTS = HERE.parent / "results"
ROWS = 8
EVERY = 8
LEVELS = (2.3, 2.2, 2.1, 2.0)
LOOK_EVERY = 10
"""Steps between two looks at the loss on text that was held out."""
EDGE_S, RING_S, MODEL_S = 0.002, 0.02, 1.0
LRS = (4e-3, 8e-3)
OUTER = {"": None, "Nesterov 0.7/0.9": Nesterov(), "Nesterov 0.9/0.5": Nesterov(0.9, 0.5)}


@dataclass(frozen=True)
class Run:
    """Plain PyTorch where there are no stages."""

    lr: float
    clusters: int = 1
    stages: int = 0
    rows: int = ROWS
    outer: str = ""
    every: int = EVERY
    parts: int = 0
    """Micro-batches of a batch; 0 for what the plan chooses."""

    @property
    def contestant(self) -> str:
        if not self.stages:
            rows = self.rows // ROWS
            return "one machine" + (f", batches {rows}x as large" if rows > 1 else "")
        many = "1 cluster" if self.clusters == 1 else f"{self.clusters} clusters"
        rest = f", {self.parts} micro-batches" if self.parts else ""
        rest += f", every {self.every} updates" if self.every != EVERY else ""
        rest += ", Nesterov" if self.outer else ""
        return f"{many} of {self.stages}{rest}"

    @property
    def most_steps(self) -> int:
        """By then it has got there, or never will."""
        return {1: 700, 2: 500, 4: 400}[max(self.clusters, self.rows // ROWS)]

    @property
    def cost(self) -> float:
        return self.most_steps * self.clusters * (1 + self.stages)

    @property
    def file(self) -> str:
        outer = self.outer.replace(" ", "").replace("/", "-")
        parts = f"_{self.parts}" if self.parts else ""
        name = f"{self.clusters}x{self.stages}_{self.rows}_{self.lr:g}_{outer}_{self.every}"
        return f"{name}{parts}.json"


@dataclass
class Curve:
    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """Virtual seconds: batches of one machine."""
    losses: list[float] = field(default_factory=list)
    rounds: float = 0.0
    busy: float = 0.0
    staleness: list[float] = field(default_factory=list)

    def note(self, step: int, at: float, loss: float) -> bool:
        """Whether there is more to learn."""
        self.steps.append(step)
        self.times.append(at)
        self.losses.append(loss)
        return loss > LEVELS[-1]

    def reached(self, wanted: float) -> tuple[float, float] | None:
        """Steps and time to a loss: between two looks, on a straight line."""
        before = (0.0, 0.0, float("inf"))
        for step, at, loss in zip(self.steps, self.times, self.losses, strict=True):
            if loss <= wanted:
                part = 1.0 if before[2] == loss else (before[2] - wanted) / (before[2] - loss)
                part = part if part == part else 1.0
                return (
                    before[0] + part * (step - before[0]),
                    before[1] + part * (at - before[1]),
                )
            before = (step, at, loss)
        return None


def runs() -> list[Run]:
    plain = [Run(lr, rows=ROWS * many) for many in (1, 2, 4) for lr in LRS]
    # What is best for two stages is for four as well; those take longest to compute.
    two = [Run(lr, c, 2) for c in (1, 2, 4) for lr in LRS]
    four = [Run(4e-3, 1, 4), Run(8e-3, 2, 4), Run(8e-3, 4, 4)]
    usual, milder = list(OUTER)[1:]
    outer = [Run(lr, 4, 2, outer=usual) for lr in (5e-4, 1e-3, 2e-3, 4e-3)]
    outer += [Run(lr, 4, 2, outer=milder) for lr in LRS]
    finer = [Run(4e-3, 1, 2, parts=4), Run(8e-3, 4, 2, parts=4)]
    return [*plain, *two, *four, *finer, Run(8e-3, 4, 2, every=2), *outer]


def train(run: Run) -> dict[str, Any]:
    torch.set_num_threads(1)
    return asdict(train_pipelines(run) if run.stages else train_plainly(run))


def train_plainly(run: Run) -> Curve:
    model, curve = text.make_model(), Curve(busy=1.0)
    optimizer = optimizer_named("adamw")(model.parameters(), lr=run.lr)
    data = text.shard(0, 1, run.rows)
    for step in range(run.most_steps + 1):
        if step % LOOK_EVERY == 0:
            at = step * run.rows / ROWS
            if not curve.note(step, at, text.held_out_loss(model)):
                break
        batch = next(data)
        optimizer.zero_grad()
        chargpt.loss_of(model(batch[:, :-1]), batch[:, 1:]).backward()
        optimizer.step()
    return curve


def train_pipelines(run: Run) -> Curve:
    model, curve = text.make_model(), Curve()
    parts = run.parts or Division(batch_rows=ROWS, least_rows=1).parts(run.stages)
    # The pipeline draws a few batches ahead of what it computes.
    drawn = run.most_steps + 16
    shards = []
    for number in range(run.clusters):
        source = text.shard(number, run.clusters, ROWS)
        shards.append([next(source) for _ in range(drawn)])
    clusters = [
        Cluster(
            run.stages,
            settings_of(run, parts, [batch[:, 1:] for batch in shard]),
            parts=parts,
            unit=1 / ((FORWARD + BACKWARD) * run.stages),
            delay=EDGE_S,
        )
        for shard in shards
    ]
    model_bytes = sum(parameter.nbytes for parameter in model.parameters())
    world = VirtualClusters(
        model,
        shards[0][0][:, :-1],
        clusters,
        averaging=Averaging(outer=OUTER[run.outer]),
        links=Links(RING_S, model_bytes / MODEL_S),
    )
    world.feed([batch[:, :-1] for batch in shard] for shard in shards)
    for step in range(0, run.most_steps + 1, LOOK_EVERY):
        world.run_to(step)
        if not curve.note(step, world.clock.now, text.held_out_loss(model, world.mean_state())):
            break
    first = world.pipelines[0]
    curve.rounds, curve.busy = world.rounds, min(first.utilisation)
    curve.staleness = first.staleness
    return curve


def settings_of(run: Run, parts: int, labels: Sequence[torch.Tensor]) -> StageSettings:
    return StageSettings(
        update=UpdateSettings(optimizer=optimizer_named("adamw"), optimizer_params={"lr": run.lr}),
        leaf=LeafSettings(criterion=chargpt.loss_of, labels=labels),
        micro_batches=parts,
        averaging=Rules(run.every, blocking=False) if run.clusters > 1 else None,
    )


# ---- all of them ----


def made(folder: Path, within_s: float) -> dict[Run, Curve]:
    found = kept.results(runs(), train, folder, within_s)
    return {run: Curve(**curve) for run, curve in found.items()}


def best(curves: dict[Run, Curve]) -> Iterator[tuple[Run, Curve]]:
    """Of each contestant, the run that is first at the lowest loss it gets to."""

    def order(item: tuple[Run, Curve]) -> tuple[float, ...]:
        reached = [item[1].reached(level) for level in reversed(LEVELS)]
        return tuple(float("inf") if found is None else found[0] for found in reached)

    names = dict.fromkeys(run.contestant for run in curves)
    for name in names:
        yield min(((r, c) for r, c in curves.items() if r.contestant == name), key=order)


def report(curves: dict[Run, Curve]) -> None:
    chosen = list(best(curves))
    _, base = chosen[0]
    print(f"steps of one cluster to a held-out loss of {', '.join(map(str, LEVELS))} (and how many")
    print("times fewer than one machine needs, and in how many times less time); updates lacking\n")
    for run, curve in chosen:
        cells = []
        for level in LEVELS:
            ours, theirs = curve.reached(level), base.reached(level)
            if ours is None or theirs is None:
                cells.append(f"{'-':>19}")
            else:
                ratio, faster = theirs[0] / ours[0], theirs[1] / ours[1]
                cells.append(f"{ours[0]:5.0f} ({ratio:4.2f}, {faster:5.2f})")
        old = " ".join(f"{value:.2f}" for value in curve.staleness)
        print(f"{run.contestant:34} lr {run.lr:<6g}{' '.join(cells)}   {old}")
    print("\nall that was tried: steps to each loss, and the loss at the end")
    for run, curve in curves.items():
        steps = [curve.reached(level) for level in LEVELS]
        cells = [f"{'-':>5}" if one is None else f"{one[0]:5.0f}" for one in steps]
        print(
            f"{run.contestant:34} lr {run.lr:<6g} {run.outer:16} {' '.join(cells)}"
            f"   {curve.losses[-1]:.3f}, rounds {curve.rounds:.0f}, busy {curve.busy:.2f}"
        )


def draw(curves: dict[Run, Curve], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_steps, by_time) = pyplot.subplots(1, 2, figsize=(12, 5), sharey=True)
    colours = {1: "tab:blue", 2: "tab:orange", 4: "tab:green"}
    for run, curve in best(curves):
        many = max(run.clusters, run.rows // ROWS)
        colour = "tab:red" if run.outer else colours[many]
        if run.every != EVERY or run.parts:
            colour = "tab:purple" if run.every != EVERY else "tab:brown"
        style = {0: ":", 2: "--", 4: "-"}[run.stages]
        label = f"{run.contestant}, lr {run.lr:g}"
        by_steps.plot(curve.steps, curve.losses, style, color=colour, label=label, linewidth=1.5)
        if run.stages or run.rows == ROWS:
            by_time.plot(curve.times, curve.losses, style, color=colour, linewidth=1.5)
    by_steps.set(xlabel=f"steps of one cluster (batches of {ROWS})", ylabel="held-out loss")
    by_time.set(xlabel="virtual time (batches of one machine)", xscale="log")
    by_time.set_xlim(left=4)
    by_steps.set_ylim(LEVELS[-1] - 0.02, 3.2)
    for axes in (by_steps, by_time):
        axes.grid(alpha=0.3)
    by_steps.legend(fontsize=8)
    figure.suptitle("Character GPT: clusters that average every 8 updates, and one machine")
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=Path, help="keep curves here, and use those found here")
    parser.add_argument("--within", type=float, default=float("inf"), metavar="SECONDS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.curves or Path(temporary)
        curves = made(folder, options.within)
        if len(curves) < len(runs()):
            print(f"{len(curves)} of {len(runs())} curves are there")
            return
        report(curves)
        draw(curves, RESULTS / "convergence.png")


if __name__ == "__main__":
    main()
