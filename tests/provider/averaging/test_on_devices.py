"""Clusters whose providers compute on devices, some of which have no double precision."""

import pytest
import torch
from cluster_runs import Normed, alone, assert_same_bytes, feed, mean_of, rows, settings, square
from clusters import clusters
from devices import requires_toy

from ravnest.provider.averaging.vectors import Layout
from ravnest.provider.compute.updating import UpdateSettings

requires_toy()
from devices import toy  # noqa: E402

SGD = UpdateSettings(optimizer=torch.optim.SGD, optimizer_params={"lr": 0.05, "momentum": 0.9})
ADAM = UpdateSettings(optimizer=torch.optim.Adam, optimizer_params={"lr": 0.01})
AT_THE_END = 10**9


def test_a_mean_over_devices_is_the_mean(tmp_path):
    """Statistics of BatchNorm; their counters stay where they are."""
    torch.manual_seed(0)
    model, data = Normed(), [rows(0), rows(1, batches=9)]
    expected = mean_of([alone(model, some, square, SGD) for some in data], [6, 9])
    given = settings(data, square, SGD, AT_THE_END)
    places = [("toy", "cpu"), ("cpu", "toy", "toy")]
    with (
        toy.without_doubles(),
        clusters(model, (data[0][0],), tmp_path, given, stages=[2, 3], devices=places) as both,
    ):
        both.all(feed(data))
        states = both.states()
    assert_same_bytes(states)
    for name, tensor in expected.items():
        if name in states[0]:
            torch.testing.assert_close(states[0][name], tensor, rtol=1e-4, atol=1e-5)


def test_rounds_in_the_background_average_moments_on_devices(tmp_path):
    torch.manual_seed(0)
    model, data = Normed(), [rows(c, batches=12) for c in range(2)]
    given = settings(data, square, ADAM, 3, average_optim=True)
    places = [("toy",), ("toy", "cpu")]
    with (
        toy.without_doubles(),
        clusters(model, (data[0][0],), tmp_path, given, stages=[1, 2], devices=places) as both,
    ):
        both.all(feed(data))
        states = both.states()
    assert_same_bytes(states)


def tensors(device):
    torch.manual_seed(1)
    found = {
        "weight": torch.randn(3, 2),
        "half": torch.randn(4).bfloat16(),
        "variance": torch.rand(5),
        "counter": torch.tensor(70_000_001),
        "small": torch.tensor([3, -2], dtype=torch.int8),
        "mask": torch.tensor([True, False]),
        "wave": torch.randn(2, dtype=torch.complex64),
    }
    return {name: tensor.to(device) for name, tensor in found.items()}


@pytest.mark.parametrize("change", ["write", "shift", "apply"])
def test_vectors_are_those_of_the_cpu(change):
    found = []
    for device in ("cpu", "toy"):
        held = tensors(device)
        layout = Layout.of(held, {"weight", "half"})
        with toy.without_doubles():
            vectors = layout.gather(held)
            assert all(vector.device.type == "cpu" for vector in vectors)
            for vector in vectors:
                vector.mul_(1.25).add_(0.5)
            if change == "apply":
                layout.apply(vectors, layout.rest_of(layout.gather(held)), held)
            else:
                getattr(layout, change)(vectors, held)
        found.append({name: tensor.cpu() for name, tensor in held.items()})
    on_cpu, on_toy = found
    for name, tensor in on_cpu.items():
        assert torch.equal(tensor, on_toy[name]), name
