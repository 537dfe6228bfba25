"""When `clusterize` fails, it says why with figures and names, and the disk is as it was before.

Every kind of failure is tried over an older plan whose providers have already saved trained
weights: the worst thing planning could do is to lose those.
"""

import dataclasses
import errno
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from pools import Mlp, run_clusterize, seeded, snapshot, write_pool
from torch import nn

from ravnest.errors import CaptureError, PlanError, PoolError, RavnestError
from ravnest.planning import writing
from ravnest.stage.package import save_trained

BATCH = torch.rand(4, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    """A plan with results in every package, to copy from."""
    folder = write_pool(tmp_path_factory.mktemp("older"), 2)
    planned = run_clusterize(seeded(Mlp), (BATCH,), folder)
    save_results(planned)
    return planned


def save_results(planned):
    for package, stage in zip(planned.packages(), planned.pipeline().stages, strict=True):
        save_trained(package, stage.tensors())


@pytest.fixture
def trained(older, tmp_path):
    folder = tmp_path / "node_data"
    shutil.copytree(older.folder, folder)
    return dataclasses.replace(older, folder=folder)


def fails(trained, error, match=None, **options):
    """The call fails like this, and nothing below the run's folder has changed."""
    before = snapshot(trained.folder)
    model = options.pop("model", seeded(Mlp))
    with pytest.raises(error, match=match) as caught:
        run_clusterize(model, options.pop("args", (BATCH,)), trained.folder, **options)
    assert snapshot(trained.folder) == before
    return str(caught.value)


# ---- memory -----------------------------------------------------------------------------------


def test_too_little_memory_in_the_pool_names_both_figures(trained):
    """What the model needs and what the pool has, in the same unit."""
    write_pool(trained.folder, {"ram": 1e-5}, {"ram": 2e-5})
    message = fails(trained, PlanError, match="does not fit")
    needed = trained.plan.model.training_bytes
    assert re.findall(r"([\d.]+) kB", message) == [f"{needed / 1e3:.0f}", "30"]


@pytest.mark.parametrize("pool", [[4e-5] * 4, [2.8e-5] * 6 + [2.5e-5] * 3, [2.5e-5] * 12])
def test_too_little_memory_for_any_cluster_names_both_figures(trained, pool):
    """Enough in total, but no cut puts each piece where it fits: need and limit of one provider."""
    write_pool(trained.folder, *({"ram": ram} for ram in pool))
    assert trained.plan.model.training_bytes / 1e9 < sum(pool)
    message = fails(trained, PlanError, match="does not fit", micro_batches=1)
    need, limit = re.findall(r"needs (\S+) kB.* provider .* has (\S+) kB", message)[0]
    assert float(limit) in [pytest.approx(ram * 1e6) for ram in pool]
    assert float(need) > float(limit)


# ---- inputs and options -----------------------------------------------------------------------


class LooksAtValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


WRONG = {
    "no model": ({"model": None}, CaptureError, "needs a model"),
    "not a module": ({"model": "resnet"}, CaptureError, "model is str"),
    "nothing to train": ({"model": nn.ReLU()}, CaptureError, "no parameters"),
    "uncapturable": ({"model": LooksAtValues()}, CaptureError, "LooksAtValues"),
    "no inputs": ({"args": ()}, CaptureError, "do not fit Mlp.forward"),
    "unknown optimizer": ({"optimizer": "lion"}, ValueError, "'lion'; give one of sgd, momentum"),
    "negative factor": ({"optimizer": -1.0}, ValueError, "from 0 to 100"),
    "not a factor": ({"optimizer": True}, ValueError, "from 0 to 100"),
    "cluster size": ({"min_cluster_size": 0}, ValueError, "min_cluster_size is 0"),
    "clusters": ({"max_clusters": 0}, ValueError, "max_clusters is 0"),
    "no optimizer": ({"optimizer": None}, PlanError, "optimizer is None; give one of sgd"),
    "a module as optimizer": ({"optimizer": nn.Linear(9, 9)}, PlanError, "optimizer is Linear"),
    "idle gain": ({"idle_gain": 0.5}, ValueError, "idle_gain is 0.5"),
    "idle gain in words": ({"idle_gain": "x"}, PlanError, "idle_gain is 'x'; it has to be a num"),
    "idle gain as a flag": ({"idle_gain": True}, PlanError, "idle_gain is True"),
    "keywords in a list": ({"example_kwargs": [1]}, CaptureError, r"is \[1\]; give a dictionary"),
    "keywords by number": ({"example_kwargs": {1: 2}}, CaptureError, "give a dictionary"),
    "weights": ({"weights": 3}, PlanError, "weights is 3; give the path"),
    "weights for a full model": ({"weights": "w"}, CaptureError, "weights of its own"),
}


@pytest.mark.parametrize(("options", "error", "match"), WRONG.values(), ids=list(WRONG))
def test_wrong_inputs_are_named(trained, options, error, match):
    fails(trained, error, match, **options)


@pytest.mark.parametrize("folder", [None, 3, ["node_data"]])
def test_a_folder_that_is_no_path_is_named(folder):
    with pytest.raises(PlanError, match=r"node_data is .*; give the path"):
        run_clusterize(seeded(Mlp), (BATCH,), folder)


@pytest.mark.parametrize("content", [None, "{", '{"0": {}}'], ids=["missing", "broken", "empty"])
def test_a_wrong_pool_changes_nothing(trained, content):
    (trained.folder / "node_configs.json").unlink()
    if content is not None:
        (trained.folder / "node_configs.json").write_text(content)
    fails(trained, PoolError, "node_configs")


# ---- while checking and writing ---------------------------------------------------------------


def test_a_failing_self_check_changes_nothing(trained, monkeypatch):
    """One weight of one stage is spoilt on its way to disk: the check must see it."""
    honest = writing.write_package

    def spoiling(directory, graph, weights, **facts):
        if graph.stage == 1:
            name = graph.tensors[0].name
            weights = {**weights, name: weights[name] + 0.01}
        honest(directory, graph, weights, **facts)

    monkeypatch.setattr(writing, "write_package", spoiling)
    fails(trained, CaptureError, "do not compute what the model computes")


@pytest.mark.parametrize("at", [0, 1])
def test_a_full_disk_while_writing_changes_nothing(trained, monkeypatch, at):
    honest = writing.write_package

    def full(directory, graph, weights, **facts):
        if graph.stage == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        honest(directory, graph, weights, **facts)

    monkeypatch.setattr(writing, "write_package", full)
    fails(trained, OSError, "No space left")


def test_an_interrupted_swap_changes_nothing(trained, monkeypatch):
    """The old plan is already out of the way when the new one cannot take its place."""
    honest = os.replace

    def failing(source, target):
        if Path(target) == trained.folder / "plan.json":
            monkeypatch.setattr(os, "replace", honest)
            raise KeyboardInterrupt
        honest(source, target)

    monkeypatch.setattr(os, "replace", failing)
    fails(trained, KeyboardInterrupt)


# ---- success after all ------------------------------------------------------------------------


def test_trained_results_are_archived_by_the_next_plan(trained):
    """Twice: each earlier plan keeps a folder of its own, complete and unchanged."""
    for number in (1, 2):
        save_results(trained)
        before = snapshot(trained.folder)
        planned = run_clusterize(seeded(Mlp), (BATCH,), trained.folder)
        archived = trained.folder / "archive" / f"00{number}"
        assert f"moved to {archived}" in planned.printed
        kept = {path: content for path, content in before.items() if is_plan(path)}
        assert snapshot(archived) == kept
        assert not list(trained.folder.glob("cluster_*/*/trained.*"))


def is_plan(path):
    return path.startswith(("plan.json", "model.json", "nodes", "cluster_"))


def test_every_deliberate_failure_can_be_caught_as_one():
    for error in (CaptureError, PlanError, PoolError):
        assert issubclass(error, RavnestError)
        assert issubclass(error, ValueError)
