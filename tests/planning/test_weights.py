"""Models on the meta device: planned without weights, or with weights read from files."""

import shutil

import msgspec
import pytest
import torch
from pools import Mixed, Mlp, run_clusterize, seeded, snapshot, word_batches, write_pool
from safetensors.torch import save_file
from torch import nn

from ravnest.errors import CaptureError, PackageError

WORDS = word_batches(1)[0]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The same model with its weights in memory, to compare with."""
    folder = write_pool(tmp_path_factory.mktemp("full"), 2)
    return run_clusterize(seeded(Mixed), (WORDS,), folder, self_check=False)


def on_meta(kind=Mixed):
    with torch.device("meta"):
        return kind()


def checkpoint(model, *, leave_out=()):
    return {k: v.clone() for k, v in model.state_dict().items() if k not in leave_out}


def plan_with(folder, weights, model=None):
    words = torch.empty_like(WORDS, device="meta")
    return run_clusterize(model or on_meta(), (words,), write_pool(folder, 2), weights=weights)


def named_alike(plan):
    """The id depends on the weights, and so does the note why the stages were not checked."""
    return msgspec.structs.replace(plan, plan_id="", warnings=())


def graphs(folder):
    return {path: text for path, text in snapshot(folder).items() if path.endswith("graph.json")}


def test_without_weights_the_packages_hold_graphs_only(tmp_path, planned):
    """The same plan and graphs as with weights; a stage cannot be run by mistake."""
    bare = plan_with(tmp_path, None)
    assert named_alike(bare.plan) == named_alike(planned.plan)
    assert graphs(bare.folder) == graphs(planned.folder)
    assert not list(tmp_path.rglob("*.safetensors"))
    with pytest.raises(PackageError):
        bare.packages()[0].module()


@pytest.mark.parametrize("shards", [0, 3], ids=["one file", "folder of shards"])
def test_weights_from_files_make_the_same_packages(tmp_path, planned, shards):
    """Byte for byte what the model in memory gives, tied names and buffers included."""
    tensors = checkpoint(seeded(Mixed))
    source = tmp_path / "weights.safetensors"
    if shards:
        source = tmp_path / "checkpoint"
        source.mkdir()
        for number in range(shards):
            names = list(tensors)[number::shards]
            save_file({name: tensors[name] for name in names}, source / f"{number}.safetensors")
        (source / "config.json").write_text("{}")
    else:
        save_file(tensors, source)
    found = plan_with(tmp_path / "node_data", source)
    assert named_alike(found.plan) == named_alike(planned.plan)
    one, other = snapshot(found.folder), snapshot(planned.folder)
    assert sorted(one) == sorted(other)
    differing = {path for path in one if "cluster_0/" in path and one[path] != other[path]}
    assert {path.rpartition("/")[2] for path in differing} == {"manifest.json"}  # the plan's id


@pytest.mark.parametrize("absent", ["embed.weight", "head.weight"])
def test_either_name_of_a_tied_tensor_will_do(tmp_path, planned, absent):
    """Checkpoints store a tied tensor once, and libraries differ about the name."""
    save_file(checkpoint(seeded(Mixed), leave_out={absent}), tmp_path / "w.safetensors")
    found = plan_with(tmp_path / "node_data", tmp_path / "w.safetensors")
    for one, other in zip(found.packages(), planned.packages(), strict=True):
        for name, tensor in one.module().tensors().items():
            assert torch.equal(tensor, other.module().tensors()[name]), name


def damaged(tensors, case):
    match case:
        case "missing":
            del tensors["second.weight"]
        case "wrong shape":
            tensors["second.weight"] = tensors["second.weight"][:, :3].contiguous()
        case "wrong dtype":
            tensors["second.weight"] = tensors["second.weight"].half()
    return tensors


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("missing", r"does not hold the tensor 'second\.weight'"),
        ("wrong shape", r"'second\.weight' has shape \[16, 3\], the model expects \[16, 16\]"),
        ("wrong dtype", r"'second\.weight' is float16, the model expects float32"),
    ],
)
def test_a_file_that_does_not_fit_the_model_is_refused(tmp_path, planned, case, message):
    """With the name and both values; an older plan stays."""
    folder = tmp_path / "node_data"
    shutil.copytree(planned.folder, folder)
    before = snapshot(folder)
    save_file(damaged(checkpoint(seeded(Mixed)), case), tmp_path / "w.safetensors")
    with pytest.raises(CaptureError, match=message):
        plan_with(folder, tmp_path / "w.safetensors")
    assert snapshot(folder) == before


@pytest.mark.parametrize("case", ["no such file", "empty folder", "not safetensors"])
def test_a_source_that_is_none_is_refused_by_name(tmp_path, case):
    source = tmp_path / "source"
    if case == "empty folder":
        source.mkdir()
    elif case == "not safetensors":
        source.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(CaptureError, match="source"):
        plan_with(tmp_path / "node_data", source)
    assert not (tmp_path / "node_data" / "plan.json").exists()


class Scaled(nn.Module):
    """Has a number that no checkpoint holds, because the model makes it itself."""

    def __init__(self):
        super().__init__()
        self.mlp = Mlp(2)
        self.register_buffer("scale", torch.tensor(0.5, device="cpu"), persistent=False)

    def forward(self, x):
        return self.mlp(x) * self.scale


def test_what_the_model_has_itself_need_not_be_in_the_file(tmp_path):
    real = seeded(Scaled)
    save_file(checkpoint(real), tmp_path / "w.safetensors")
    batch = torch.rand(4, 32)
    planned = run_clusterize(
        on_meta(Scaled),
        (batch.to("meta"),),
        write_pool(tmp_path / "node_data", 2),
        weights=tmp_path / "w.safetensors",
    )
    torch.testing.assert_close(planned.pipeline()(batch), real(batch).detach())
