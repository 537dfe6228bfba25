"""A forward is repeated as it was, whatever the forwards around it have written."""

import pytest
import torch
from torch import nn

from ravnest.planning.study import study
from ravnest.provider.compute.passes import StagePasses
from ravnest.provider.compute.versions import WeightVersions
from ravnest.stage.module import StageModule


class Peak(nn.Module):
    """Uses the largest input so far, which small ones leave as it was."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("peak", torch.ones(()))

    def forward(self, x):
        hidden = torch.tanh(self.first(x)) * self.peak.clone()
        if self.training:
            with torch.no_grad():
                self.peak.copy_(torch.maximum(self.peak, x.abs().max()))
        return self.last(torch.tanh(hidden))


class Drift(Peak):
    """BatchNorm whose statistics agree with the first batch, and are used before they change."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, momentum=1.0)

    def forward(self, x):
        hidden = torch.tanh(self.first(x)) * (1 + self.norm.running_mean.clone())
        return self.last(torch.tanh(hidden + 0 * self.norm(x)))


class Watched(nn.Module):
    """A module that cannot be captured, so that its stage runs the user's own code."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("peak", torch.ones(()))

    def forward(self, x):
        hidden = torch.tanh(self.layer(x)) * self.peak.clone()
        if self.training and x.abs().max().item() > self.peak.item():
            with torch.no_grad():
                self.peak.copy_(x.abs().max())
        return hidden


def chain():
    return nn.Sequential(Watched(), nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize("kind", [Peak, Drift, chain])
@pytest.mark.parametrize("how", [{"recompute": True}, {"recompute": True, "recovers": True}])
def test_a_buffer_that_the_first_forward_left_as_it_was_is_kept_all_the_same(kind, how):
    small = torch.tensor([[0.5, -0.5, 0.5, -0.5], [-0.5, 0.5, -0.5, 0.5]])
    batches = [small, 3 * small + 1, 5 * small + 2]
    torch.manual_seed(0)
    studied = study(kind(), (small,))
    cut = [p for p, place in enumerate(studied.places) if place is not None][-2]
    graph = studied.stages([cut])[0]

    def gradients(**how):
        weights = {name: held.tensor.clone() for name, held in studied.held.items()}
        stage = StageModule(graph, weights, model=studied.model)
        passes = StagePasses(stage, WeightVersions(stage), **how)
        (number,) = stage.receives("train")
        items = []
        for batch in batches:
            item = passes.forward({number: batch.clone()}, 0)
            made = {n: torch.ones_like(v) for n, v in item.outputs.items()}
            passes.forget_values(item)
            items.append((item, made))
        for item, made in items:
            passes.backward(item, made)
        return [master.grad for master in passes.versions.masters]

    torch.testing.assert_close(gradients(**how), gradients(), rtol=0, atol=0)
