"""From model to model: plan, cut, train the stages, save, fuse, load, compare with plain training.

The model has what makes this hard: tied weights, running statistics, a frozen and an unused
parameter. It is planned for two clusters, each of which must fuse to the same result.
"""

import dataclasses
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from pools import Mixed, Planned, run_clusterize, seeded, snapshot, word_batches, write_pool
from safetensors.torch import load_file
from torch import nn

from ravnest.errors import FusionError, RavnestError
from ravnest.planning.fusion import owning_stages
from ravnest.stage.local import LocalPipeline
from ravnest.stage.package import save_trained, settle_trained
from ravnest.utils import model_fusion

STEPS = 6
WORDS = word_batches(STEPS)
TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Trained:
    planned: Planned
    whole: nn.Module


def loss_of(scores, words):
    return nn.functional.cross_entropy(scores, words.roll(1))


def train_whole(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    for words in WORDS:
        optimizer.zero_grad()
        loss_of(model(words), words).backward()
        optimizer.step()
    return model


def train_stages(planned, cluster):
    """Each stage with an optimizer of its own, as separate providers would have them."""
    packages = planned.packages(cluster)
    pipeline = LocalPipeline([package.module() for package in packages])
    optimizers = [torch.optim.SGD(stage.parameters(), lr=0.1) for stage in pipeline.stages]
    pipeline.train()
    for words in WORDS:
        for optimizer in optimizers:
            optimizer.zero_grad()
        pipeline.step(((words,), {}), partial(loss_of, words=words))
        for optimizer in optimizers:
            optimizer.step()
    for package, stage in zip(packages, pipeline.stages, strict=True):
        save_trained(package, stage.tensors())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = write_pool(tmp_path_factory.mktemp("run") / "node_data", 6)
    planned = run_clusterize(seeded(Mixed), (WORDS[0],), folder, max_clusters=2)
    assert [len(cluster.stages) for cluster in planned.plan.clusters] == [3, 3]
    for cluster in (0, 1):
        train_stages(planned, cluster)
    return Trained(planned, train_whole(seeded(Mixed)))


@pytest.fixture(scope="module", params=[0, 1])
def fused(request, trained, tmp_path_factory):
    """The path that fusing one of the clusters returns."""
    output = tmp_path_factory.mktemp("fused") / "trained"
    return model_fusion(request.param, node_data=trained.planned.folder, output=output)


# ---- the result -------------------------------------------------------------------------------


def test_the_fused_model_is_the_model_trained_whole(trained, fused):
    """Loads strictly, without pickle, into the original model, and every value agrees."""
    state = torch.load(fused, weights_only=True)
    model = seeded(Mixed, seed=99)
    model.load_state_dict(state, strict=True)
    expected = trained.whole.state_dict()
    assert list(state) == list(expected)
    for name, tensor in expected.items():
        assert state[name].dtype == tensor.dtype, name
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=0, atol=TOLERANCE)


def test_training_had_something_to_change(trained):
    """Otherwise the comparison above would prove nothing."""
    before, after = seeded(Mixed).state_dict(), trained.whole.state_dict()
    moved = {name for name in before if (after[name].float() - before[name]).abs().max() > 1e-3}
    assert moved == set(before) - {"unused", "frozen.weight", "frozen.bias"}


def test_tied_names_share_one_tensor(fused):
    state = torch.load(fused, weights_only=True)
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()


@pytest.mark.parametrize("name", ["unused", "frozen.weight", "frozen.bias"])
def test_what_is_not_trained_keeps_its_exact_values(fused, name):
    state = torch.load(fused, weights_only=True)
    assert torch.equal(state[name], seeded(Mixed).state_dict()[name])


def test_the_metadata_of_the_state_dict_survives(fused):
    """Modules ask it for the version of their format when they load."""
    state = torch.load(fused, weights_only=True)
    assert state._metadata == seeded(Mixed).state_dict()._metadata
    assert state._metadata["norm"]["version"] == 2


def test_the_safetensors_file_holds_the_same(fused):
    state = torch.load(fused, weights_only=True)
    stored = load_file(fused.with_suffix(".safetensors"))
    assert set(stored) == set(state)
    assert all(torch.equal(stored[name], state[name]) for name in state)
    assert {path.suffix for path in fused.parent.iterdir()} == {".pt", ".safetensors"}


def test_the_documented_call_needs_no_arguments(trained, monkeypatch):
    monkeypatch.chdir(trained.planned.folder.parent)
    assert model_fusion() == Path("trained/trained_state_dict.pt")
    assert Path("trained/trained_state_dict.pt").is_file()


# ---- what is refused --------------------------------------------------------------------------


@pytest.fixture
def broken(trained, tmp_path):
    """A copy of the run to damage, beside an older result that has to survive."""
    folder = tmp_path / "node_data"
    shutil.copytree(trained.planned.folder, folder)
    result = tmp_path / "trained"
    model_fusion(node_data=folder, output=result)
    return dataclasses.replace(trained.planned, folder=folder)


def swap(one, other):
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def swap_results(planned, one, other):
    here, there = planned.package_folder(*one), planned.package_folder(*other)
    first, second = weights_in(here), weights_in(there)
    first.rename(there / first.name)
    second.rename(here / second.name)
    swap(here / "trained.json", there / "trained.json")


def weights_in(folder):
    (path,) = folder.glob("trained-*.safetensors")
    return path


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def change_one_byte(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def plan_again(planned):
    """Another plan of the same model; then the results of the first are copied back in."""
    results = list(planned.folder.glob("cluster_0/*/trained*"))
    kept = {path: path.read_bytes() for path in results}
    write_pool(planned.folder, *[{"ram": 2}] * 6)
    run_clusterize(seeded(Mixed), (WORDS[0],), planned.folder, max_clusters=2)
    for path, content in kept.items():
        path.write_bytes(content)


DAMAGE = {
    "no results": (
        lambda run: weights_in(run.package_folder(1)).unlink(),
        r"stage 1 \(node_\d+, .*cannot be used.*is missing",
    ),
    "results without their manifest": (
        lambda run: (run.package_folder(2) / "trained.json").unlink(),
        "stage 2 .*has no trained weights",
    ),
    "no package": (
        lambda run: shutil.rmtree(run.package_folder(0)),
        "stage 0 .*has no trained weights",
    ),
    "no graph": (
        lambda run: (run.package_folder(1) / "graph.json").unlink(),
        "stage 1 .*cannot be used.*graph.json is missing",
    ),
    "truncated": (
        lambda run: truncate(weights_in(run.package_folder(1))),
        "stage 1 .*cannot be used.* bytes",
    ),
    "one bit changed": (
        lambda run: change_one_byte(weights_in(run.package_folder(1))),
        "stage 1 .*cannot be used.*hash",
    ),
    "manifest is no JSON": (
        lambda run: (run.package_folder(1) / "trained.json").write_text("{"),
        "stage 1 .*cannot be used",
    ),
    "packages of two stages swapped": (
        lambda run: swap(run.package_folder(0), run.package_folder(1)),
        "holds stage 1 of cluster 0",
    ),
    "packages of two clusters swapped": (
        lambda run: swap(run.package_folder(0), run.package_folder(0, cluster=1)),
        "holds stage 0 of cluster 1",
    ),
    "results of two stages swapped": (
        lambda run: swap_results(run, (0,), (1,)),
        "belongs to stage 1",
    ),
    "results of two clusters swapped": (
        lambda run: swap_results(run, (0, 0), (0, 1)),
        "belongs to cluster 1",
    ),
    "results of another plan": (plan_again, "belongs to plan_id"),
    "no plan": (lambda run: (run.folder / "plan.json").unlink(), "plan.json is missing"),
    "no index": (lambda run: (run.folder / "model.json").unlink(), "model.json is missing"),
    "plan is no JSON": (lambda run: truncate(run.folder / "plan.json"), "cannot be read"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=list(DAMAGE))
def test_what_does_not_belong_is_named_and_the_old_result_stays(broken, damage, message):
    damage(broken)
    result = broken.folder.parent / "trained"
    before = snapshot(result)
    with pytest.raises(FusionError, match=message):
        model_fusion(node_data=broken.folder, output=result)
    assert snapshot(result) == before


@pytest.mark.parametrize(
    ("damage", "stage"),
    [("no results", 1), ("results without their manifest", 2), ("truncated", 1), ("no plan", None)],
)
def test_a_refusal_says_which_stage_is_at_fault(broken, damage, stage):
    DAMAGE[damage][0](broken)
    with pytest.raises(FusionError) as refused:
        model_fusion(node_data=broken.folder, output=broken.folder.parent / "trained")
    assert refused.value.stage == stage


def test_of_three_stages_the_one_with_another_save_is_at_fault(broken):
    for package, save in zip(broken.packages(0), ("one", "another", "one"), strict=True):
        save_trained(package, package.module(trained=True).tensors(), save)
        settle_trained(package)
    with pytest.raises(FusionError, match="different saves") as refused:
        model_fusion(node_data=broken.folder, output=broken.folder.parent / "trained")
    assert refused.value.stage == 1


def test_every_key_is_of_the_stage_that_owns_its_tensor(trained):
    owners = owning_stages(trained.planned.folder, 0)
    for number, package in enumerate(trained.planned.packages(0)):
        owned = {spec.name for spec in package.graph.tensors if spec.owner}
        assert {key for key, stage in owners.items() if stage == number} >= owned & owners.keys()
    assert set(owners.values()) == {0, 1, 2}


def test_stages_of_different_saves_are_not_mixed(broken, caplog):
    """The last stage did not come to save: what all stages have is fused, or nothing."""
    packages = broken.packages(0)
    trained = [package.module(trained=True).tensors() for package in packages]
    result = broken.folder.parent / "trained"
    for package, tensors in zip(packages, trained, strict=True):
        save_trained(package, tensors, "whole")
        settle_trained(package)
    for package, tensors in zip(packages[:-1], trained, strict=False):
        save_trained(package, {name: tensor + 1 for name, tensor in tensors.items()}, "half")
    path = model_fusion(node_data=broken.folder, output=result)
    state = torch.load(path, weights_only=True)
    assert "the last save is not complete" in caplog.text
    owned = {
        spec.name: tensors[spec.name]
        for package, tensors in zip(packages, trained, strict=True)
        for spec in package.graph.tensors
        if spec.owner
    }
    assert all(torch.equal(state[name], value) for name, value in owned.items() if name in state)
    settle_trained(packages[0])
    with pytest.raises(FusionError, match="different saves"):
        model_fusion(node_data=broken.folder, output=result)


def test_a_cluster_left_behind_by_another_is_not_fused_silently(broken, caplog):
    """Its run broke off an hour before the other one saved."""
    result = broken.folder.parent / "trained"
    model_fusion(0, node_data=broken.folder, output=result)
    assert not caplog.records
    for package in broken.packages(0):
        then = (package.directory / "trained.json").stat().st_mtime - 3600
        os.utime(package.directory / "trained.json", (then, then))
    model_fusion(1, node_data=broken.folder, output=result)
    assert not caplog.records
    model_fusion(0, node_data=broken.folder, output=result)
    assert "fuse cluster 1" in caplog.text


def test_an_unknown_cluster_is_named_with_those_there_are(broken):
    with pytest.raises(FusionError, match="no cluster 7; this plan has: 0, 1"):
        model_fusion(7, node_data=broken.folder, output=broken.folder.parent / "trained")
    assert issubclass(FusionError, RavnestError)


def test_plans_that_were_mixed_are_refused(broken, trained):
    index = broken.folder / "model.json"
    index.write_text(index.read_text().replace(trained.planned.plan.plan_id, "0" * 16))
    with pytest.raises(FusionError, match="different plans"):
        model_fusion(node_data=broken.folder, output=broken.folder.parent / "trained")


@pytest.mark.parametrize("writer", ["torch.save", "ravnest.planning.fusion.save_file"])
def test_a_full_disk_leaves_the_older_result(broken, monkeypatch, writer):
    def full(*args, **kwargs):
        raise OSError("No space left on device")

    result = broken.folder.parent / "trained"
    before = snapshot(result)
    monkeypatch.setattr(writer, full)
    with pytest.raises(OSError, match="No space left"):
        model_fusion(node_data=broken.folder, output=result)
    assert snapshot(result) == before
