"""Stages of an unusual make train as one machine does."""

import copy

import pytest
import torch
from pipelines import pipeline, settings_for
from torch import nn
from zoo_models.stateful import OwnBackward

from ravnest.provider.compute.updating import UpdateSettings


def frozen_first():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    return model


def loss_of(outputs, batch):
    return (outputs - batch[:, :3]).square().mean()


@pytest.mark.parametrize("clip", [{}, {"clip_value": 0.01}, {"clip_norm": 0.1}], ids=str)
@pytest.mark.parametrize("make", [OwnBackward, frozen_first])
def test_a_pipeline_of_them_learns_what_one_machine_does(make, clip, tmp_path):
    """Hand-written functions were captured and could not be trained; stages without trainable
    parameters have no gradients to clip."""
    torch.manual_seed(0)
    model = make()
    width = next(model.parameters()).shape[1]
    batches = [torch.randn(6, width) for _ in range(5)]
    alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05)
    expected = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(alone(batch), batch)
        loss.backward()
        if "clip_value" in clip:
            nn.utils.clip_grad_value_(alone.parameters(), clip["clip_value"])
        if "clip_norm" in clip:
            nn.utils.clip_grad_norm_(alone.parameters(), clip["clip_norm"])
        optimizer.step()
        expected.append(float(loss))
    update = UpdateSettings(torch.optim.SGD, {"lr": 0.05}, **clip)
    settings = settings_for(batches, loss_of, update, schedule="sync")
    with pipeline(model, (batches[0],), tmp_path, settings, stages=3) as pipe:
        for batch in batches:
            pipe.train(batch)
        pipe.order("epoch")
        found = list(pipe.losses)
    assert found == pytest.approx(expected, rel=1e-4)
