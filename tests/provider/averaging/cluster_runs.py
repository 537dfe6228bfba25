"""What clusters that average are trained with, and what they are compared with."""

import copy

import torch
from pipelines import settings_for
from torch import nn

from ravnest.provider.averaging.share import Rules


class Normed(nn.Module):
    """With statistics that training changes, and a table that it does not."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(5))
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _ in range(5))
        self.register_buffer("table", torch.linspace(0, 1, 6))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + torch.tanh(norm(layer(x)) + self.table)
        return x


def rows(cluster, batches=6, size=8):
    torch.manual_seed(100 + cluster)
    return [torch.randn(size, 6) for _ in range(batches)]


def words(cluster, batches=6, size=6):
    torch.manual_seed(100 + cluster)
    return [torch.randint(0, 11, (size, 5)) for _ in range(batches)]


def square(outputs, batch):
    return (outputs - batch.flip(1)).square().mean()


def cross(outputs, batch):
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch.roll(1, 1).flatten())


def settings(data, criterion, update, every, *, blocking=False, schedule="sync", **more):
    def of(cluster):
        rules = Rules(every, blocking)
        return settings_for(
            data[cluster], criterion, update, schedule=schedule, averaging=rules,
            average_optim=more.get("average_optim", False),
        )  # fmt: skip

    return of


def feed(data, epochs=1, orders=("epoch",)):
    def work(cluster, c):
        for _ in range(epochs):
            for batch in data[c]:
                cluster.train(batch)
            for order in orders:
                cluster.order(order)
        cluster.order("average")

    return work


def unplug(cluster):
    for runtime in cluster.runtimes:
        runtime.abort("pulled the plug")
        runtime.close(0.0)


def alone(model, data, criterion, update):
    """One cluster by itself, in plain PyTorch."""
    model = copy.deepcopy(model).train()
    optimizer = update.optimizer(model.parameters(), **update.optimizer_params)
    for batch in data:
        optimizer.zero_grad()
        criterion(model(batch), batch).backward()
        optimizer.step()
    return model.state_dict()


def mean_of(states, weights):
    total = sum(weights)
    found = {}
    for name, like in states[0].items():
        if like.is_floating_point():
            mean = sum(w / total * s[name].double() for w, s in zip(weights, states, strict=True))
            found[name] = mean.to(like.dtype)
    return found


def assert_same_bytes(states):
    """But for whole numbers, which each cluster keeps."""
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        for name, tensor in state.items():
            same = torch.equal(tensor, states[0][name])
            assert same or not tensor.is_floating_point(), name
