"""What do old gradients cost? Steps to a loss, and accuracy, against one machine.

    python3 dev.py bench staleness

Real stages, schedules and optimizers on a virtual clock (see virtual.py): the order of events is
that of a pipeline of equal machines whose stages are all busy all the time. "Steps" are batches of
equal size; `sync` computes what one machine computes. Curves go to benchmarks/results/.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import chargpt  # noqa: E402
import digits  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from virtual import VirtualPipeline  # noqa: E402

from ravnest.planning.costing.costs import Division  # noqa: E402
from ravnest.provider.assembly import StageSettings  # noqa: E402
from ravnest.provider.compute.optimizers import optimizer_named  # noqa: E402
from ravnest.provider.compute.updating import UpdateSettings  # noqa: E402
from ravnest.provider.leaf import LeafSettings  # noqa: E402

RESULTS = HERE.parent / "results"
LOSSES = (2.2, 2.1, 2.0, 1.9, 1.8)
SMOOTHED = 40
"""Steps over which losses are averaged before they are compared."""


@dataclass(frozen=True)
class Run:
    name: str
    stages: int
    schedule: str = "async"
    parts: int = 1
    optimizer: str = "adamw"
    lr: float = 3e-3


@dataclass
class Found:
    run: Run
    losses: list[float] = field(default_factory=list)
    staleness: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    accuracy: float = 0.0


def default_parts(stages: int, rows: int) -> int:
    return Division(batch_rows=rows, least_rows=1).parts(stages)


def pipeline(
    run: Run, model: nn.Module, example: torch.Tensor, labels: Any, criterion: Callable[..., Any]
) -> VirtualPipeline:
    settings = StageSettings(
        update=UpdateSettings(
            optimizer=optimizer_named(run.optimizer), optimizer_params={"lr": run.lr}
        ),
        leaf=LeafSettings(criterion=criterion, labels=labels),
        schedule=run.schedule,  # type: ignore[arg-type]
        micro_batches=run.parts,
    )
    return VirtualPipeline(model, example, run.stages, lambda _: settings, parts=run.parts)


def train_chargpt(run: Run, steps: int) -> Found:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = chargpt.CharGPT(chargpt.text()[1])
    data = chargpt.batches(steps)
    trained = pipeline(
        run, model, data[0][:, :-1], [batch[:, 1:] for batch in data], chargpt.loss_of
    )
    losses = trained.train(batch[:, :-1] for batch in data)
    return Found(run, losses, trained.staleness, trained.utilisation)


def train_digits(run: Run, epochs: int, seed: int) -> Found:
    torch.set_num_threads(1)
    model = digits.make_model(seed)
    data = digits.batches(epochs)
    trained = pipeline(
        run, model, data[0][0], [labels for _, labels in data], nn.CrossEntropyLoss()
    )
    losses = trained.train(images for images, _ in data)
    model.load_state_dict(trained.state())
    model.eval()
    _, _, images, labels = digits.rows()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean()
    return Found(run, losses, trained.staleness, trained.utilisation, float(right))


def smoothed(losses: Sequence[float]) -> list[float]:
    return [
        statistics.fmean(losses[max(0, end - SMOOTHED) : end]) for end in range(1, len(losses) + 1)
    ]


def steps_to(losses: Sequence[float], wanted: float) -> int | None:
    return next((step for step, loss in enumerate(losses) if loss <= wanted), None)


def compare(found: Sequence[Found]) -> None:
    """Each against the synchronous run with the same optimizer."""
    reference = {f.run.optimizer: smoothed(f.losses) for f in found if f.run.schedule == "sync"}
    print("steps over those of sync, to losses of", ", ".join(map(str, LOSSES)))
    for one in found:
        mine, theirs = smoothed(one.losses), reference[one.run.optimizer]
        ratios = []
        for wanted in LOSSES:
            ours, base = steps_to(mine, wanted), steps_to(theirs, wanted)
            ratios.append("   -" if ours is None or base is None else f"{ours / base:4.2f}")
        old = " ".join(f"{value:.2f}" for value in one.staleness)
        print(f"{one.run.name:36} {' '.join(ratios)}   updates lacking, by stage: {old}")


def draw(found: Sequence[Found], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for one in found:
        style = "--" if one.run.schedule == "sync" else "-"
        axes.plot(smoothed(one.losses), style, label=one.run.name, linewidth=1.4)
    axes.set(xlabel="batches", ylabel="training loss", title="Character GPT, 8 layers")
    axes.set_ylim(top=3.0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows = chargpt.ROWS
    text = [
        Run("AdamW, sync", 4, "sync"),
        Run("AdamW, async, default, 4 stages", 4, parts=default_parts(4, rows)),
        Run("AdamW, async, default, 8 stages", 8, parts=default_parts(8, rows)),
        Run("AdamW, async, whole batches, 4 stages", 4),
        Run("Muon, sync", 4, "sync", optimizer="muon"),
        Run("Muon, async, default, 4 stages", 4, parts=default_parts(4, rows), optimizer="muon"),
        Run("Muon, async, whole batches, 4 stages", 4, optimizer="muon"),
    ]
    images = [
        Run(f"digits, {stages} stages, {schedule}", stages, schedule, lr=1e-3)
        for stages in (3, 5)
        for schedule in ("sync", "async")
    ]
    with ProcessPoolExecutor(2) as pool:
        curves = [pool.submit(train_chargpt, run, options.steps) for run in text]
        scores = {
            run.name: [
                pool.submit(train_digits, run, options.epochs, s) for s in range(options.seeds)
            ]
            for run in images
        }
        found = [curve.result() for curve in curves]
        compare(found)
        for name, futures in scores.items():
            accuracies = [future.result().accuracy for future in futures]
            print(f"{name:36} accuracy {statistics.fmean(accuracies):.4f}  {accuracies}")
    draw(found, RESULTS / "staleness.png")


if __name__ == "__main__":
    main()
