"""Weight versions: old ones stay as they were, gradients meet in one place, storage is reused."""

import copy

import pytest
import torch
from torch import nn

from ravnest.provider.compute.versions import WeightVersions


@pytest.fixture
def model():
    torch.manual_seed(0)
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight  # tied inside the stage
    frozen = nn.Linear(4, 4)
    frozen.requires_grad_(False)
    return nn.Sequential(first, nn.Tanh(), frozen, last)


X = torch.linspace(-1, 1, 12).view(3, 4)


def step(versions, number, *, in_place=False, by=1.0):
    versions.prepare_update(in_place=in_place)
    with torch.no_grad():
        for master in versions.masters:
            master -= by
    versions.finish_update(number, in_place=in_place)


def test_a_backward_uses_the_weights_of_its_forward(model):
    reference = copy.deepcopy(model)
    versions = WeightVersions(model)
    loss = model(X).square().sum()
    step(versions, 1)
    assert not torch.equal(model(X), reference(X))
    with versions.collect_gradients(0):
        loss.backward()
    reference(X).square().sum().backward()
    expected = [p.grad for p in reference.parameters() if p.requires_grad]
    for master, gradient in zip(versions.masters, expected, strict=True):
        torch.testing.assert_close(master.grad, gradient)


def test_an_optimizer_may_put_other_tensors_into_the_parameters(model):
    versions = WeightVersions(model)
    before = model(X)
    for in_place, number in ((True, 1), (False, 2), (True, 3)):
        versions.prepare_update(in_place=in_place)
        for master in versions.masters:
            master.data = master.data - 1.0
        versions.finish_update(number, in_place=in_place)
        assert not torch.equal(model(X), before)
        before = model(X)


def test_a_gradient_in_the_memory_of_a_parameters_is_recognised():
    class Added(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return x + self.bias.view(1, 3)

    model, found = Added(), []
    versions = WeightVersions(model)
    x = torch.zeros(1, 3, requires_grad=True) * 1
    x.register_hook(found.append)
    with versions.collect_gradients(0):
        model(x).backward(torch.ones(1, 3))
    (gradient,) = found
    assert gradient.data_ptr() == versions.masters[0].grad.data_ptr()
    assert versions.holds(gradient)
    assert not versions.holds(torch.ones(3))


def test_gradients_of_different_versions_add_up(model):
    versions = WeightVersions(model)
    old = model(X).sum()
    step(versions, 1)
    new = model(X).sum()
    with versions.collect_gradients(0):
        old.backward()
    first = [master.grad.clone() for master in versions.masters]
    for master in versions.masters:
        master.grad = None
    with versions.collect_gradients(1):
        new.backward(retain_graph=True)
    second = [master.grad.clone() for master in versions.masters]
    for master, gradient in zip(versions.masters, first, strict=True):
        master.grad = gradient.clone()
    with versions.collect_gradients(1):
        new.backward()
    for master, one, other in zip(versions.masters, first, second, strict=True):
        torch.testing.assert_close(master.grad, one + other)
    assert all(leaf.grad is None for leaf in model.parameters())


def test_frozen_parameters_have_no_versions(model):
    frozen = model[2].weight
    versions = WeightVersions(model)
    assert len(versions.masters) == 3
    step(versions, 1)
    assert model[2].weight is frozen
    assert model[0].weight is model[3].weight, "tied parameters stay tied in every version"


def test_storage_goes_round(model):
    """Two versions at a time, a thousand updates: two sets of storage."""
    versions = WeightVersions(model)
    seen = set()
    for number in range(1, 1000):
        step(versions, number, by=0.001)
        versions.release(number - 1)
        seen |= {master.data_ptr() for master in versions.masters}
    assert len(seen) == 2 * len(versions.masters)
    assert versions.alive == 1


def test_an_update_in_place_copies_nothing(model):
    versions = WeightVersions(model)
    before = [master.data_ptr() for master in versions.masters]
    value = model[0].bias.detach().clone()
    step(versions, 1, in_place=True)
    assert [master.data_ptr() for master in versions.masters] == before
    assert torch.equal(model[0].bias.detach(), value - 1.0)
    assert versions.alive == 1


def test_an_old_version_can_be_used_again(model):
    versions = WeightVersions(model)
    before = model(X).detach()
    step(versions, 1)
    after = model(X).detach()
    with versions.used(0):
        assert torch.equal(model(X), before)
    assert torch.equal(model(X), after)
