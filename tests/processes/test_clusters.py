"""Several clusters as real processes: one model at the end, whoever dies on the way."""

import re
import sys
from pathlib import Path

import pytest
import torch

from ravnest import model_fusion
from ravnest.launch import planned_nodes

sys.path.insert(0, str(Path(__file__).parent))
import jobs
from plans import plan
from test_processes import start


def fused(cluster):
    return torch.load(model_fusion(cluster_id=cluster), weights_only=True)


def assert_equal(one, other):
    """But for whole numbers, which each cluster keeps."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]) or not tensor.is_floating_point(), name


@pytest.mark.parametrize(
    ("providers", "clusters", "job"),
    [
        (5, 2, {"model": "transformer", "optimizer": "adamw", "reduce_factor": 3}),
        (3, 3, {"model": "cnn", "optimizer": "sgd", "transport": "tcp"}),
        (5, 2, {"model": "frozen", "optimizer": "adamw", "reduce_factor": 3}),
    ],
    ids=["5 in 2, gRPC", "3 in 3, TCP", "5 in 2, some with nothing to train"],
)
def test_whichever_cluster_is_chosen_the_model_is_the_same(
    tmp_path, monkeypatch, providers, clusters, job
):
    monkeypatch.chdir(tmp_path)
    run = plan(tmp_path, job["model"], providers, clusters)
    assert set(planned_nodes(run).values()) == set(range(clusters))
    outcome, printed = start(tmp_path, run, {**job, "schedule": "async", "epochs": 3})
    assert set(outcome.codes.values()) == {0}, printed
    first = fused(0)
    for cluster in range(1, clusters):
        assert_equal(first, fused(cluster))
    before = jobs.make_model(job["model"]).state_dict()
    assert any(not torch.equal(first[name], before[name]) for name in before)
    # Each has trained on its share only.
    lines = [len(path.read_text().splitlines()) for path in tmp_path.glob("losses*.txt")]
    assert sorted(lines) == sorted(3 * len(range(c, jobs.STEPS, clusters)) for c in range(clusters))


def test_blocking_rounds_after_every_update_are_one_machine_with_larger_batches(
    tmp_path, monkeypatch
):
    """Plain SGD, averaged after every step, is one step with the mean of the gradients."""
    monkeypatch.chdir(tmp_path)
    job = {"model": "unet", "optimizer": "plain", "averaging": "blocking", "reduce_factor": 1}
    run = plan(tmp_path, "unet", 4, 2)
    outcome, printed = start(tmp_path, run, job)
    assert set(outcome.codes.values()) == {0}, printed
    model = jobs.make_model("unet")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = list(jobs.loader("unet"))
    for one, other in zip(batches[::2], batches[1::2], strict=True):
        rows = len(one[1]) + len(other[1])
        optimizer.zero_grad()
        for batch in (one, other):
            (jobs.criterion(model(batch[0]), batch) * len(batch[1]) / rows).backward()
        optimizer.step()
    found = fused(0)
    assert_equal(found, fused(1))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)


def test_a_provider_that_is_killed_ends_its_cluster_and_not_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = {"model": "cnn", "optimizer": "sgd", "schedule": "async", "reduce_factor": 2}
    run = plan(tmp_path, "cnn", 4, 2)
    clusters = planned_nodes(run)
    victim = next(name for name, cluster in clusters.items() if cluster == 1)
    outcome, printed = start(tmp_path, run, {**job, "kill": victim, "epochs": 8, "slow": 0})
    for name, cluster in clusters.items():
        assert (outcome.codes[name] == 0) == (cluster == 0), printed
    assert outcome.codes[victim] == -9
    assert re.search(r"ring \d+ goes on without|no more rounds", printed), printed
    assert fused(0)


@pytest.mark.parametrize("clusters", [2, 3])
def test_a_member_that_overwrites_the_mean_is_named_and_spoils_no_other_model(
    tmp_path, monkeypatch, clusters
):
    """It had everybody's model within a round."""
    monkeypatch.chdir(tmp_path)
    job = {"model": "cnn", "optimizer": "sgd", "schedule": "async", "reduce_factor": 2}
    run = plan(tmp_path, "cnn", clusters, clusters)
    liar = next(name for name, cluster in planned_nodes(run).items() if cluster == 1)
    outcome, printed = start(tmp_path, run, {**job, "lies": liar, "epochs": 4})
    assert set(outcome.codes.values()) == {0}, printed
    assert re.search(
        rf"goes on without {liar}: in round \d+ it has sent a (mean|sum) of length", printed
    )
    found = fused(0)
    others = [name for name in planned_nodes(run) if name != liar]
    assert not any(f"goes on without {name}: in round" in printed for name in others), printed
    before = jobs.make_model("cnn").state_dict()
    for name, value in found.items():
        if name.endswith(("weight", "bias")):
            assert float((value - before[name]).abs().max()) < 2, name
    if clusters == 3:
        assert_equal(found, fused(2))


def test_a_cluster_without_data_ends_with_what_the_others_have_learnt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = {"model": "cnn", "optimizer": "sgd", "schedule": "async", "shard_data": False}
    run = plan(tmp_path, "cnn", 4, 2)
    outcome, printed = start(tmp_path, run, {**job, "idle": 1})
    assert set(outcome.codes.values()) == {0}, printed
    found = fused(0)
    assert_equal(found, fused(1))
    before = jobs.make_model("cnn").state_dict()
    assert any(not torch.equal(found[name], before[name]) for name in before)
