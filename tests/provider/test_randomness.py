"""Equal seeds everywhere: data in one order, and every stage draws numbers of its own."""

import pytest
import torch
from pipelines import pipeline, settings_for
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ravnest import set_seed
from ravnest.provider.compute.randomness import StageRandomness
from ravnest.provider.compute.updating import UpdateSettings

FIXED = UpdateSettings(torch.optim.SGD, {"lr": 0.0})
UNITS = 4000


class TwoDropouts(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Parameter(torch.ones(UNITS)), nn.Parameter(torch.ones(UNITS))

    def forward(self, x):
        drop = nn.functional.dropout
        return drop(drop(x * self.one, 0.5, self.training) * self.two, 0.5, self.training)


def in_a_process_of_its_own(runtime):
    """As far as random numbers go; one batch at a time."""
    passes, state = runtime.runner._passes, [torch.get_rng_state()]
    forward = passes.forward

    def alone(*given):
        torch.set_rng_state(state[0])
        item = forward(*given)
        state[0] = torch.get_rng_state()
        return item

    passes.forward = alone


def survivors(folder, *, recompute=False, batches=3, draw=lambda: None):
    """Which units are not zero, by batch."""
    data, masks = [torch.ones(2, UNITS)] * batches, []

    def criterion(outputs, batch):
        masks.append(outputs.detach() != 0)
        return outputs.mean()

    settings = settings_for(data, criterion, FIXED, recompute=recompute)
    with pipeline(TwoDropouts(), (data[0],), folder, settings, stages=2) as cluster:
        for runtime in cluster.runtimes:
            in_a_process_of_its_own(runtime)
        for batch in data:
            cluster.train(batch)
            cluster.order("flush")
            draw()
    return masks


def test_two_dropouts_of_two_stages_keep_a_quarter(tmp_path):
    set_seed(42)
    masks = survivors(tmp_path)
    for mask in masks:
        assert float(mask.float().mean()) == pytest.approx(0.25, abs=0.03)
    assert not torch.equal(masks[0], masks[1])


@pytest.mark.parametrize("recompute", [False, True])
def test_equal_seeds_give_equal_runs_whatever_else_is_drawn(tmp_path, recompute):
    set_seed(42)
    before = torch.get_rng_state()
    first = survivors(tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), before), "the data is shuffled with this one"
    set_seed(42)
    again = survivors(tmp_path / "b", recompute=recompute, draw=lambda: torch.rand(7))
    assert all(map(torch.equal, first, again))
    set_seed(43)
    assert not torch.equal(survivors(tmp_path / "c")[0], first[0])


def test_stages_and_clusters_draw_different_numbers():
    set_seed(42)
    drawn = set()
    for of in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        with StageRandomness(torch.device("cpu"), *of).drawn():
            drawn.add(float(torch.rand(())))
    assert len(drawn) == 4


def test_a_loader_without_a_generator_shuffles_alike_beside_dropout(tmp_path):
    """Root and Leaf read epoch after epoch; only one of them has what draws."""
    orders = []
    for draws in (False, True):
        set_seed(42)
        numbers = StageRandomness(torch.device("cpu"), 0, 0)
        loader = DataLoader(TensorDataset(torch.arange(20)), batch_size=5, shuffle=True)
        order = []
        for _ in range(3):
            for (rows,) in loader:
                order += rows.tolist()
                if draws:
                    with numbers.drawn():
                        torch.rand(100)
        orders.append(order)
    assert orders[0] == orders[1]
