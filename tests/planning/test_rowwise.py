"""Batches are divided only where no row's result depends on another row."""

import json

import pytest
import torch
from torch import nn

from ravnest import clusterize
from ravnest.errors import PlanError
from ravnest.plan import Plan
from ravnest.planning.costing.costs import Division, TrainingMemory
from ravnest.planning.rowwise import why_rows_mix
from ravnest.planning.study import study


class Rows(nn.Module):
    """One result per row, with whatever `inner` does in between."""

    def __init__(self, inner):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 8), inner, nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.inner(torch.relu(self.first(x))))


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class AcrossTheBatch(nn.Module):
    """Attention in which the rows of the batch are the sequence."""

    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(8, 2)

    def forward(self, x):
        return self.mix(x, x, x, need_weights=False)[0]


class CountingCalls(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x / (1 + 0.1 * self.calls)


class WithPenalty(nn.Module):
    """A second output that is one number for the whole batch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        y = self.layers(x)
        return y, y.square().mean()


class Similarities(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        y = self.layers(x)
        return y @ y.T


def reason(model, rows=6):
    torch.manual_seed(0)
    return why_rows_mix(study(model, (torch.randn(rows, 6),)))


@pytest.mark.parametrize(
    "inner",
    [nn.Identity(), nn.LayerNorm(8), nn.Dropout(0.5), nn.GroupNorm(2, 8), nn.BatchNorm1d(8).eval()],
    ids=["plain", "layer norm", "dropout", "group norm", "frozen batch norm"],
)
def test_rows_on_their_own_may_be_parted(inner):
    assert reason(Rows(inner)) == ""


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Rows(nn.BatchNorm1d(8)), "writes to inner.num_batches_tracked"),
        (Rows(nn.BatchNorm1d(8, track_running_stats=False)), "depend on each other"),
        (Rows(Centred()), "depend on each other"),
        (Rows(AcrossTheBatch()), "depend on each other"),
        (Rows(CountingCalls()), "writes to inner.calls"),
        (WithPenalty(), "not one result per row"),
        (Similarities(), "not one result per row"),
    ],
    ids=[
        "batch norm",
        "batch norm without state",
        "mean over rows",
        "attention over rows",
        "counter",
        "penalty",
        "similarities",
    ],
)
def test_rows_that_mix_are_noticed(model, why):
    assert why in reason(model)


def test_the_model_is_left_as_it_was():
    model = Rows(nn.BatchNorm1d(8))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    reason(model)
    assert model.training
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_equal_example_rows_tell_nothing():
    torch.manual_seed(0)
    found = why_rows_mix(study(Rows(nn.Identity()), (torch.ones(4, 6),)))
    assert "all alike" in found
    assert "give real or random rows" in found


def test_tokens_and_a_single_example_row():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layer = nn.Embedding(9, 6), nn.Linear(6, 9)

        def forward(self, words):
            return self.layer(torch.tanh(self.embed(words)))

    assert why_rows_mix(study(Words(), (torch.tensor([[1, 2, 3, 4]]),))) == ""


# ---- what the plan makes of it ----------------------------------------------------------------


def test_deeper_pipelines_have_more_parts():
    division = Division(batch_rows=32, least_rows=1)
    assert [division.parts(stages) for stages in (1, 2, 3, 5, 9)] == [1, 4, 6, 10, 18]
    assert Division(batch_rows=32).parts(5) == 1
    assert Division(batch_rows=3, least_rows=1).parts(9) == 3
    assert Division(batch_rows=32, least_rows=8).parts(9) == 4
    assert Division(batch_rows=32, parts_asked=6).parts(2) == 6
    assert Division(batch_rows=4, parts_asked=6).parts(2) == 4


def test_parts_take_less_memory():
    whole = TrainingMemory(division=Division(batch_rows=32))
    parted = TrainingMemory(division=Division(batch_rows=32, least_rows=1))
    assert whole.batches_in_flight(0, 5) == 5
    assert parted.batches_in_flight(0, 5) == 6 * 4 / 32
    assert parted.batches_in_flight(4, 5) == 4 / 32
    assert parted.batches_in_flight(0, 1) == 1


def planned(tmp_path, model, **options) -> Plan:
    pool = {
        str(n): {"IP": f"127.0.0.1:{9000 + n}", "benchmarks": {"ram": 1, "bandwidth": 100}}
        for n in range(3)
    }
    (tmp_path / "node_configs.json").write_text(json.dumps(pool))
    torch.manual_seed(0)
    return clusterize(
        model,
        (torch.randn(8, 6),),
        node_data=tmp_path,
        min_cluster_size=3,
        quiet=True,
        **options,
    )


def test_providers_are_told_into_how_many_parts(tmp_path):
    plan = planned(tmp_path, Rows(nn.LayerNorm(8)))
    assert plan.clusters[0].micro_batches == 6
    told = json.loads((tmp_path / "nodes" / "node_1.json").read_text())
    assert told["micro_batches"] == 6
    assert told["most_in_flight"] >= plan.clusters[0].stages[0].in_flight
    assert not any("micro-batches" in note for note in plan.warnings)


def test_a_model_that_mixes_rows_is_planned_whole_and_says_so(tmp_path):
    plan = planned(tmp_path, Rows(nn.BatchNorm1d(8)))
    assert plan.clusters[0].micro_batches == 1
    (note,) = (note for note in plan.warnings if "not divided into micro-batches" in note)
    assert "costs steps from about five stages on: optimizer='muon' the fewest" in note
    plan = planned(tmp_path, Rows(nn.BatchNorm1d(8)), micro_batches=2)
    assert plan.clusters[0].micro_batches == 2
    with pytest.raises(PlanError, match="micro_batches is 0"):
        planned(tmp_path, Rows(nn.LayerNorm(8)), micro_batches=0)
