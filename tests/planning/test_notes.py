"""Notes of a plan: wishes that were not granted, and figures that look like slips of the pen."""

import pytest
import torch
from pools import Mlp, run_clusterize, seeded, write_pool
from torch import nn

BATCH = torch.rand(4, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("layers", "pool", "wanted", "note"),
    [
        (8, (1,), 2, "min_cluster_size=2 was lowered to 1: the pool has 1 provider"),
        (8, (3,), 4, "min_cluster_size=4 was lowered to 3: the pool has 3 providers"),
        (2, (4,), 3, "was lowered to 2: this model can be cut into 2 stages at most"),
        (1, (2,), 2, "was lowered to 1: this model can be cut into 1 stage at most"),
        (8, ({}, {"ram": 1e-6}), 2, "cannot hold even the smallest stage"),
    ],
)
def test_a_cluster_size_that_cannot_be_had_is_noted(tmp_path, layers, pool, wanted, note):
    planned = run_clusterize(
        seeded(Mlp, layers), BATCH, write_pool(tmp_path, *pool), min_cluster_size=wanted
    )
    (warning,) = planned.plan.warnings
    assert note in warning
    assert f"Note: {warning}" in planned.printed


class SmallCnn(nn.Sequential):
    """As a first model is: two convolutions and two linear layers for images of 28x28."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip


DOCUMENTED = {"ram": 8, "bandwidth": 20, "gflops": 50}


@pytest.mark.parametrize(("options", "used"), [({}, 3), ({"idle_gain": 1.5}, 2)])
def test_a_pool_that_a_person_wrote_is_used_whole(tmp_path, options, used):
    """Although the links of this one are slow, and two machines would be faster than three."""
    folder = write_pool(tmp_path, *[DOCUMENTED] * 3)
    planned = run_clusterize(seeded(SmallCnn), torch.rand(64, 3, 28, 28), folder, **options)
    assert len(planned.plan.addresses) == used
    advice = [note for note in planned.plan.warnings if "idle_gain=1.0 leaves out" in note]
    assert len(advice) == (used == 3)
    if advice:
        assert "x as fast" in advice[0]
        assert advice[0].startswith("without node_")
        assert f"Note: {advice[0]}" in planned.printed


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_nothing_is_noted_where_the_wish_is_granted(tmp_path, wanted):
    folder = write_pool(tmp_path, 3)
    planned = run_clusterize(seeded(Mlp), BATCH, folder, min_cluster_size=wanted)
    assert planned.plan.warnings == ()


@pytest.mark.parametrize(("ram", "notes"), [(2048, 0), (8192, 1)])
def test_memory_that_looks_like_megabytes_is_questioned(tmp_path, ram, notes):
    planned = run_clusterize(seeded(Mlp), BATCH, write_pool(tmp_path, {}, {"ram": ram}))
    assert len(planned.plan.warnings) == notes
    if notes:
        (warning,) = planned.plan.warnings
        assert warning.startswith("provider 1 has 8,192 GB of memory: is that MB?")


def test_a_plan_that_was_not_checked_says_why(tmp_path, monkeypatch):
    folder = write_pool(tmp_path, 2)
    planned = run_clusterize(seeded(Mlp), BATCH, folder, self_check=False)
    assert planned.plan.warnings[-1].endswith("not compared with the model: self_check=False")
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    planned = run_clusterize(model, BATCH.to("meta"), folder)
    assert planned.plan.warnings[-1].endswith("its weights are not in memory")
    monkeypatch.setattr("ravnest.planning.planned._SELF_CHECK_LIMIT", 1000)
    planned = run_clusterize(seeded(Mlp), BATCH, folder)
    assert "larger than 1 kB (self_check=True" in planned.plan.warnings[-1]


def test_the_steps_are_logged(tmp_path, caplog):
    caplog.set_level("INFO", logger="ravnest.planning")
    run_clusterize(seeded(Mlp), BATCH, write_pool(tmp_path, 2))
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [
        "capturing Mlp …",
        "planning for 2 providers …",
        "writing the stages …",
        "checking the stages of cluster 0 against the model …",
    ]
