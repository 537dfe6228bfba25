"""What clusters average: everything that training changes, and nothing else."""

import torch
from pools import Mixed, run_clusterize, seeded, word_batches, write_pool
from torch import Tensor, nn

from ravnest.planning.study import study


class Buffered(nn.Module):
    """A mask nobody writes to, statistics of training, a counter of evaluation, a frozen layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.register_buffer("mask", (torch.arange(width) % 2).float())
        self.register_buffer("evaluated", torch.zeros(()))
        self.last = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.evaluated.add_(1)
        return self.last(self.frozen(self.norm(self.first(x)).relu()) * self.mask) + self.evaluated


CHANGING = {
    *("first.weight", "first.bias", "last.weight", "last.bias", "evaluated"),
    *("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"),
    "norm.num_batches_tracked",
}


def test_constant_buffers_and_frozen_parameters_are_not_averaged(tmp_path):
    """Written in either mode counts: statistics of training, and what evaluation keeps."""
    planned = run_clusterize(seeded(Buffered), (torch.rand(8, 32),), write_pool(tmp_path, 4))
    assert len(planned.plan.clusters) > 1
    names = [name for ring in planned.plan.rings for name in ring.names]
    assert len(names) == len(set(names))
    assert set(names) == CHANGING
    nodes = [planned.node(stage.provider.id) for _, stage in planned.stages]
    assert {name for node in nodes for ring in node["rings"] for name in ring["names"]} == CHANGING


def test_a_ring_counts_the_bytes_of_what_it_averages(tmp_path):
    planned = run_clusterize(seeded(Buffered), (torch.rand(8, 32),), write_pool(tmp_path, 4))
    state = seeded(Buffered).state_dict()
    for ring in planned.plan.rings:
        assert ring.bytes == sum(state[name].nbytes for name in ring.names)


def test_a_tied_tensor_is_averaged_once_under_one_name():
    changing = study(seeded(Mixed), (word_batches(1)[0],)).changing
    assert len({"embed.weight", "head.weight"} & set(changing)) == 1
    assert len(changing) == len(set(changing))
    assert not [name for name in changing if name.startswith("frozen")]
