"""One run of one contestant: plain PyTorch, or real stages and rings on a virtual clock."""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "staleness"))

import chargpt
import text
import torch
from contestants import ROWS, Run
from curves import Curve
from torch import nn
from virtual import BACKWARD, FORWARD
from virtual_clusters import Cluster, Links, VirtualClusters

from ravnest.planning.costing.costs import Division
from ravnest.planning.study import study
from ravnest.provider.assembly import StageSettings
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Rules
from ravnest.provider.compute.optimizers import grouped, optimizer_named
from ravnest.provider.compute.updating import UpdateSettings
from ravnest.provider.leaf import LeafSettings
from ravnest.stage.matrices import hidden_matrices

LAYERS, LENGTH = 2, 8
LOOK_EVERY = 10
"""Steps between two looks at the loss on text that was held out."""
HELD_OUT_ROWS = 512
BATCH_S, EDGE_S, RING_S, MODEL_S = 1.0, 0.002, 0.02, 1.0
"""Virtual seconds: a batch of ROWS on one machine, the delays of messages within a cluster and
between clusters, and how long a link between clusters takes for the model."""


def train(run: Run) -> dict[str, Any]:
    torch.set_num_threads(1)
    return asdict(_train_clusters(run) if run.who.stages else _train_plainly(run))


def _shard(run: Run, number: int) -> Any:
    return text.shard(number, run.who.clusters, run.who.rows, 1 + run.seed, LENGTH)


def _batch_s(run: Run) -> float:
    return BATCH_S * run.who.rows / ROWS


def _train_plainly(run: Run) -> Curve:
    model, curve, data = text.make_model(run.seed, LAYERS), Curve(busy=1.0), _shard(run, 0)
    optimizer = _alone(run, model)
    for step in range(run.who.most_steps + 1):
        if step % LOOK_EVERY == 0:
            loss = text.held_out_loss(model, rows=HELD_OUT_ROWS, length=LENGTH)
            curve.note(step, step * _batch_s(run), loss)
            if not curve.goes_on(run.who.most_steps):
                break
        batch = next(data)
        optimizer.zero_grad()
        chargpt.loss_of(model(batch[:, :-1]), batch[:, 1:]).backward()
        optimizer.step()
    return curve


def _alone(run: Run, model: nn.Module) -> torch.optim.Optimizer:
    factory = optimizer_named(run.who.optimizer)
    assert factory is not None
    parameters: Any = list(model.parameters())
    if run.who.optimizer == "muon":
        (graph,) = study(model, (next(_shard(run, 0))[:, :-1],)).stages(())
        named = dict(model.named_parameters())
        parameters = grouped(parameters, {named[n]: k for n, k in hidden_matrices(graph).items()})
    return factory(parameters, lr=run.rate)


def _train_clusters(run: Run) -> Curve:
    model, curve = text.make_model(run.seed, LAYERS), Curve()
    # The pipeline draws a few batches ahead of what it computes.
    drawn = run.who.most_steps + 16
    shards = [list(itertools.islice(_shard(run, k), drawn)) for k in range(run.who.clusters)]
    world = VirtualClusters(
        model,
        shards[0][0][:, :-1],
        [_cluster(run, [batch[:, 1:] for batch in shard]) for shard in shards],
        averaging=Averaging(),
        codec=run.who.codec or None,
        links=Links(RING_S, sum(p.nbytes for p in model.parameters()) / MODEL_S),
    )
    world.feed([batch[:, :-1] for batch in shard] for shard in shards)
    for step in range(0, run.who.most_steps + 1, LOOK_EVERY):
        world.run_to(step)
        loss = text.held_out_loss(model, world.mean_state(), rows=HELD_OUT_ROWS, length=LENGTH)
        curve.note(step, world.clock.now, loss)
        if not curve.goes_on(run.who.most_steps):
            break
    first = world.pipelines[0]
    curve.rounds, curve.busy = world.rounds, min(first.utilisation)
    curve.staleness = first.staleness
    return curve


def _cluster(run: Run, labels: Sequence[torch.Tensor]) -> Cluster:
    who = run.who
    parts = Division(batch_rows=who.rows, least_rows=1).parts(who.stages)
    settings = StageSettings(
        update=UpdateSettings(
            optimizer=optimizer_named(run.who.optimizer), optimizer_params={"lr": run.rate}
        ),
        leaf=LeafSettings(criterion=chargpt.loss_of, labels=labels),
        micro_batches=parts,
        averaging=Rules(who.every, blocking=False) if who.clusters > 1 else None,
    )
    unit = _batch_s(run) / ((FORWARD + BACKWARD) * who.stages)
    return Cluster(who.stages, settings, parts=parts, unit=unit, delay=EDGE_S)
