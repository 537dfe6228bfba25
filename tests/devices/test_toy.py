"""The device that tests run on refuses what real devices refuse."""

import pytest
import torch
from torch import nn

from devices import requires_toy

requires_toy()
from devices import toy  # noqa: E402


def test_tensors_of_different_devices_do_not_meet():
    here, there = torch.ones(3, device="toy"), torch.ones(3, device="toy:1")
    for other in (torch.ones(3), there):
        with pytest.raises(RuntimeError):
            here + other
        with pytest.raises(RuntimeError):
            torch.cat((here, other))
    assert (here * 2 + torch.tensor(1.0)).tolist() == [3.0] * 3
    assert here[torch.tensor([0, 2])].device == here.device
    assert here.to("toy:1").add(there).cpu().tolist() == [2.0] * 3


def test_a_device_without_doubles_makes_none():
    counter = torch.ones((), dtype=torch.int64, device="toy")
    with toy.without_doubles():
        for make in (
            lambda: torch.zeros(2, dtype=torch.float64, device="toy"),
            lambda: torch.zeros(2, dtype=torch.float64).to("toy"),
            lambda: counter.double(),
            lambda: torch.empty((), dtype=torch.float64).copy_(counter),
        ):
            with pytest.raises(toy.DeviceError, match="float64"):
                make()
        assert torch.empty((), dtype=torch.float64).copy_(counter.cpu()) == 1


def test_training_on_it_is_training_on_the_cpu():
    def trained(device):
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
        model = nn.Sequential(*layers)
        torch.manual_seed(1)
        x, y = torch.randn(2, 3, 8, 8).to(device), torch.tensor([1, 2]).to(device)
        model, drop = model.to(device), nn.Dropout(0.3)
        optimizer = torch.optim.AdamW(model.parameters())
        torch.manual_seed(2)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(drop(model(x)), y).backward()
            optimizer.step()
        return [tensor.cpu() for tensor in model.state_dict().values()]

    for here, there in zip(trained("toy"), trained("cpu"), strict=True):
        torch.testing.assert_close(here, there, rtol=0, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", [nn.MSELoss, nn.SmoothL1Loss, nn.L1Loss, nn.HuberLoss, nn.BCELoss])
def test_losses_are_those_of_the_cpu(kind, reduction):
    outputs, labels = torch.rand(4, 3), torch.rand(4, 3)

    def found(device):
        given = outputs.to(device).detach().requires_grad_()
        loss = kind(reduction=reduction)(given, labels.to(device))
        loss.sum().backward()
        return loss.detach().cpu(), given.grad.cpu()

    torch.testing.assert_close(found("toy"), found("cpu"), rtol=0, atol=0)
