"""One run of one contestant: plain PyTorch, or real stages on a virtual clock."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import chargpt
import digits
import torch
from curves import Curve
from entrants import LEVELS, LOOK_EVERY, MOST_STEPS, ROWS, Run
from torch import nn
from virtual import VirtualPipeline

from ravnest.planning.study import study
from ravnest.provider.assembly import StageSettings
from ravnest.provider.compute.optimizers import grouped, optimizer_named
from ravnest.provider.compute.updating import UpdateSettings
from ravnest.provider.leaf import LeafSettings
from ravnest.stage.matrices import hidden_matrices

LENGTH, WIDTH = 16, 32
"""Of a row of text, and of the model."""
HELD_OUT_ROWS = 256
Batch = tuple[torch.Tensor, torch.Tensor]


class Task(NamedTuple):
    """Something to be learnt."""

    model: nn.Module
    batches: Iterator[Batch]
    held_out: Batch
    loss_of: Any


def text_task(seed: int) -> Task:
    """Rows of letters, and the same one letter later; nobody learns from the last tenth."""
    letters, known = chargpt.text()
    torch.manual_seed(seed)
    model = chargpt.CharGPT(known, WIDTH)
    learnt = len(letters) * 9 // 10

    def rows(many: int, first: int, last: int, generator: torch.Generator) -> Batch:
        starts = torch.randint(first, last - LENGTH - 1, (many,), generator=generator)
        found = letters[starts[:, None] + torch.arange(LENGTH + 1)]
        return found[:, :-1], found[:, 1:]

    drawing = torch.Generator().manual_seed(100 + seed)
    batches = (rows(ROWS["text"], 0, learnt, drawing) for _ in itertools.count())
    judging = torch.Generator().manual_seed(7)
    held_out = rows(HELD_OUT_ROWS, learnt, len(letters), judging)
    return Task(model, batches, held_out, chargpt.loss_of)


def digits_task(seed: int) -> Task:
    _, _, images, labels = digits.rows()
    model = digits.make_model(seed)
    return Task(model, digits.batches(100 + seed), (images, labels), nn.CrossEntropyLoss())


def train(run: Run) -> dict[str, Any]:
    torch.set_num_threads(1)
    task = text_task(run.seed) if run.who.task == "text" else digits_task(run.seed)
    return asdict(_train_stages(run, task) if run.who.stages else _train_plainly(run, task))


def update_settings(run: Run) -> UpdateSettings:
    if run.who.optimizer == "momentum":
        given: dict[str, Any] = {"lr": run.rate, "momentum": 0.9}
        return UpdateSettings(torch.optim.SGD, given, look_ahead=run.who.look_ahead)
    factory = optimizer_named(run.who.optimizer)
    return UpdateSettings(factory, {"lr": run.rate}, look_ahead=run.who.look_ahead)


@torch.no_grad()
def _judged(task: Task, state: dict[str, torch.Tensor]) -> float:
    inputs, labels = task.held_out
    task.model.eval()
    loss = task.loss_of(torch.func.functional_call(task.model, state, (inputs,)), labels)
    task.model.train()
    return float(loss)


def _goes_on(curve: Curve, run: Run, step: int, loss: float) -> bool:
    curve.note(step, float(step), loss)
    return curve.goes_on(MOST_STEPS[run.who.task], LEVELS[run.who.task])


def _train_plainly(run: Run, task: Task) -> Curve:
    model, curve, settings = task.model, Curve(), update_settings(run)
    parameters: Any = list(model.parameters())
    assert settings.optimizer is not None
    if run.who.optimizer == "muon":
        (graph,) = study(model, task.held_out[:1]).stages(())
        named = dict(model.named_parameters())
        parameters = grouped(parameters, {named[n]: k for n, k in hidden_matrices(graph).items()})
    optimizer = settings.optimizer(parameters, **settings.optimizer_params)
    for step in range(MOST_STEPS[run.who.task] + 1):
        if step % LOOK_EVERY[run.who.task] == 0:
            state = dict(model.named_parameters()) | dict(model.named_buffers())
            if not _goes_on(curve, run, step, _judged(task, state)):
                break
        inputs, labels = next(task.batches)
        optimizer.zero_grad()
        task.loss_of(model(inputs), labels).backward()
        optimizer.step()
    return curve


def _train_stages(run: Run, task: Task) -> Curve:
    curve, who = Curve(), run.who
    drawn = MOST_STEPS[who.task] + 40  # the pipeline draws ahead of what it computes
    batches = list(itertools.islice(task.batches, drawn))
    settings = StageSettings(
        update=update_settings(run),
        leaf=LeafSettings(criterion=task.loss_of, labels=[labels for _, labels in batches]),
        micro_batches=who.parts,
        most_in_flight=who.most_in_flight,
    )
    trained = VirtualPipeline(
        task.model, batches[0][0], who.stages, lambda _: settings, parts=who.parts
    )
    trained.feed(inputs for inputs, _ in batches)
    for step in range(0, MOST_STEPS[who.task] + 1, LOOK_EVERY[who.task]):
        trained.run_to(step)
        if not _goes_on(curve, run, step, _judged(task, trained.learnt())):
            break
    curve.staleness, curve.busy = trained.staleness, min(trained.utilisation)
    return curve
