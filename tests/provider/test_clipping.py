"""Clipping and tied gradients of stages that do not wait for each other."""

import copy
import math

import pytest
import torch
from pipelines import TiedModel, pipeline, settings_for
from torch import nn

from ravnest.provider.compute.updating import UpdateSettings


def words(batches, seed=3):
    torch.manual_seed(seed)
    return [torch.randint(0, 11, (6, 5)) for _ in range(batches)]


def loss_of(outputs, batch):
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch.roll(1, 1).flatten())


def sgd(**more):
    return UpdateSettings(optimizer=torch.optim.SGD, optimizer_params={"lr": 0.0}, **more)


def watched(cluster):
    """The total norm that each stage goes by, by update."""
    found = [{} for _ in cluster.runtimes]

    def watch(runner, seen):
        ask = runner._total_norm

        def answered(instruction):
            seen[instruction.update] = total = math.sqrt(ask(instruction))
            return total**2

        runner._total_norm = answered

    for runtime, seen in zip(cluster.runtimes, found, strict=True):
        watch(runtime.runner, seen)
    return found


def gradient_of(model, batches):
    model.zero_grad()
    for batch in batches:
        (loss_of(model(batch), batch) / len(batches)).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def norm_of(gradients):
    return math.sqrt(sum(float(value.square().sum()) for value in gradients.values()))


@pytest.mark.parametrize(("stages", "parts"), [(2, 1), (4, 1), (4, 3)])
def test_the_first_updates_are_clipped_by_the_norm_of_the_whole_gradient(tmp_path, stages, parts):
    torch.manual_seed(0)
    model = TiedModel()
    batches = words(24)
    expected = [norm_of(gradient_of(copy.deepcopy(model), [batch])) for batch in batches]
    settings = settings_for(batches, loss_of, sgd(clip_norm=0.1))
    with pipeline(model, (batches[0],), tmp_path, settings, stages=stages, parts=parts) as cluster:
        totals = watched(cluster)
        for batch in batches:
            cluster.train(batch)
        cluster.order("epoch")
    for seen in totals:
        assert seen[0] == pytest.approx(expected[0], rel=1e-4)
        assert len(seen) > 3
        # The mean over the batches of several updates is shorter than each of them.
        # Later ones are of weights that have moved on from those of which norms are expected.
        alone = [update for update in seen if update - 1 in seen and update < 12]
        assert all(seen[update] > 0.85 * expected[update] for update in alone)


@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_are_divided_by_the_batches_they_are_of(tmp_path, parts):
    """Equal rows give equal gradients, however many batches, or parts of them, one update takes in;
    those of copies included. So does their norm."""
    torch.manual_seed(0)
    model = TiedModel()
    batches = [words(1)[0][:1].expand(6, 5)] * 40
    expected = gradient_of(copy.deepcopy(model), batches[:1])
    settings = settings_for(batches, loss_of, sgd(clip_norm=1e9))
    found, weights = [], []
    with pipeline(model, (batches[0],), tmp_path, settings, stages=4, parts=parts) as cluster:
        totals = watched(cluster)
        runner = cluster.root.runner
        apply = runner._updater.apply

        def looked_at(version, **given):
            weights.append(given["batches"])
            found.append(runner._tied._masters["embed.weight"].grad / given["batches"])
            apply(version, **given)

        runner._updater.apply = looked_at
        for batch in batches:
            cluster.train(batch)
        cluster.order("epoch")
    assert len(set(weights)) > 1  # otherwise this shows nothing
    for gradient in found:
        torch.testing.assert_close(gradient, expected["embed.weight"], rtol=1e-4, atol=1e-6)
    for seen in totals:
        assert list(seen.values()) == pytest.approx([norm_of(expected)] * len(seen), rel=1e-4)


class Poisoned(nn.Module):
    """The gradient of its middle is no number where the input is zero."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.middle = nn.Parameter(torch.ones(4))

    def forward(self, x):
        root = torch.sqrt(x.abs().sum() * self.middle)
        return self.last(torch.tanh(self.first(x)) + root)


@pytest.mark.parametrize("schedule", ["sync", "async"])
def test_a_norm_that_is_no_number_leaves_the_update_out(tmp_path, caplog, schedule):
    """It does not let everything through: the gradient cannot be clipped."""
    torch.manual_seed(0)
    batches = [torch.randn(4, 3) for _ in range(9)]
    batches[4] = torch.zeros(4, 3)
    update = UpdateSettings(torch.optim.SGD, {"lr": 0.1}, clip_norm=1.0)
    settings = settings_for(batches, lambda o, b: o.square().mean(), update, schedule=schedule)
    with pipeline(Poisoned(), (batches[0],), tmp_path, settings, stages=3) as cluster:
        steps = [[] for _ in cluster.runtimes]
        for runtime, made in zip(cluster.runtimes, steps, strict=True):
            optimizer = runtime.runner._updater.optimizer
            if optimizer is not None:
                optimizer.register_step_post_hook(lambda *_, made=made: made.append(1))
        for batch in batches:
            cluster.train(batch)
            cluster.order("validation")
        cluster.order("epoch")
        state = cluster.state()
    assert all(value.isfinite().all() for value in state.values())
    assert "left out" in caplog.text
    if schedule == "sync":
        assert {len(made) for made in steps if made} == {8}
