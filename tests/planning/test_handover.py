"""A model leaves its owner as files, and whoever plans it finds everything in them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from handed import assert_same, hand_over, packages, plan_study, pool
from pools import Mixed, Mlp, seeded, snapshot, word_batches
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ravnest.errors import CaptureError, PackageError, PlanError
from ravnest.planning.fusion import fuse_cluster
from ravnest.planning.handover import model_files, study_package, write_model
from ravnest.planning.planned import PlanRequest, plan_only
from ravnest.planning.study import study
from ravnest.planning.weights import FromFiles
from ravnest.rundir import ModelIndex, RunDir
from ravnest.stage.files import entry_of
from ravnest.stage.package import load_package, save_trained

BATCH = torch.rand(6, 32, generator=torch.Generator().manual_seed(1))
WORDS = word_batches(1)[0]
FILES = {
    "card.json", "manifest.json", "graph.json", "weights.safetensors", "outline.json", "model.json",
    "example.safetensors",
}  # fmt: skip


# ---- the folder ---------------------------------------------------------------------------------


def test_the_folder_is_a_package_of_one_stage_and_what_belongs_to_it(tmp_path):
    handed = hand_over(seeded(Mlp), (BATCH,), tmp_path / "model", name="a chain of layers")
    assert {path.name for path in handed.folder.iterdir()} == FILES
    package = load_package(handed.folder)
    assert (package.graph.stage, package.graph.stages) == (0, 1)
    card = handed.card
    assert (card.name, card.class_name, card.checked) == ("a chain of layers", "Mlp", True)
    assert card.parameters == 8 * (32 * 32 + 32)
    assert card.parameter_bytes == 4 * card.parameters
    assert (card.batch_size, card.rows_mix, card.warnings) == (6, "", ())


def test_every_file_is_pinned_so_that_each_can_be_sent_by_itself(tmp_path):
    handed = hand_over(seeded(Mlp), (BATCH,), tmp_path / "model")
    files = model_files(handed.folder, handed.card)
    assert {entry.name for entry in files} == FILES
    assert all(entry == entry_of(handed.folder / entry.name) for entry in files)


def test_a_folder_that_is_there_is_not_written_to(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").write_text("keep")
    with pytest.raises(PackageError, match="exists already"):
        write_model(tmp_path / "model", study(seeded(Mlp), (BATCH,)))
    assert snapshot(tmp_path) == {"model": None, "model/mine": b"keep"}


class Remembering(nn.Module):
    """Does something else at its second call, which no graph shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 4)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        return self.layer(x) * len(self.seen)


def test_a_graph_that_is_not_the_model_is_not_handed_over(tmp_path):
    with pytest.raises(CaptureError, match="called before"):
        write_model(tmp_path / "model", study(seeded(Remembering), (BATCH,)))
    assert snapshot(tmp_path) == {}


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_a_model_that_is_cut_as_code_is_refused_with_the_reason_and_a_remedy(tmp_path):
    model = nn.Sequential(nn.Linear(32, 8), Branching(), nn.Linear(8, 2))
    with pytest.raises(CaptureError, match=r"as data.*depends on the values.*clusterize"):
        write_model(tmp_path / "model", study(model, (BATCH,)))
    assert snapshot(tmp_path) == {}


def test_a_model_that_was_not_compared_says_so(tmp_path):
    handed = hand_over(seeded(Mlp), (BATCH,), tmp_path / "model", check=False)
    assert not handed.card.checked
    assert "was not compared with Mlp itself" in handed.card.warnings[-1]
    assert handed.taken.train.rows == (2, None)


# ---- what arrives -------------------------------------------------------------------------------


def test_tied_frozen_unused_and_counted_tensors_arrive_and_are_fused_under_their_names(tmp_path):
    model = seeded(Mixed)
    handed = hand_over(model, (WORDS,), tmp_path / "model")
    assert_same(handed.owners, handed.taken)
    run = RunDir(tmp_path / "node_data")
    plan = plan_study(handed.taken, pool(), PlanRequest(max_clusters=1), run)
    for stage in plan.clusters[0].stages:
        package = load_package(run.package_dir(0, stage.provider.address))
        moved = {name: t + 1 for name, t in package.module().tensors().items()}
        save_trained(package, moved)
    fused = torch.load(fuse_cluster(run.root, 0, tmp_path / "trained"), weights_only=True)
    expected = model.state_dict()
    assert list(fused) == list(expected)
    assert fused._metadata == {path: {"version": v["version"]} for path, v in _versions(expected)}
    assert fused["head.weight"] is fused["embed.weight"]
    assert all(torch.equal(fused[key], tensor + 1) for key, tensor in expected.items())


def _versions(state: Any) -> list[tuple[str, dict[str, int]]]:
    return [(path, entry) for path, entry in state._metadata.items() if "version" in entry]


class Looping(nn.Module):
    """Takes the batch apart row by row, so that its size is part of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.stack([row.relu() for row in self.first(x)]))


class Halving(nn.Module):
    """Goes another way for small batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.second(hidden.tanh() if x.shape[0] > 4 else hidden.relu())


class Named(nn.Module):
    """Keyword-only inputs, one of them a plain number; a dict of outputs; other in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 8), nn.Dropout(0.5), nn.Linear(8, 4))

    def forward(self, x: Tensor, *, mask: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        y = self.layers(x * mask) * scale
        return {"y": y, "sum": y.sum(1)} if self.training else {"y": y}


def test_a_fixed_batch_size_stays_fixed(tmp_path):
    handed = hand_over(seeded(Looping), (BATCH,), tmp_path / "model")
    assert handed.taken.stages(())[0].static_batch == 6
    assert any("exactly 6 rows" in warning for warning in handed.taken.warnings)
    assert_same(handed.owners, handed.taken)


def test_limits_of_the_batch_size_stay_what_they_are(tmp_path):
    handed = hand_over(seeded(Halving), (BATCH,), tmp_path / "model")
    assert handed.taken.train.rows == (5, None)
    assert_same(handed.owners, handed.taken)


def test_an_example_of_one_row_will_do(tmp_path):
    handed = hand_over(seeded(Mlp), (BATCH[:1],), tmp_path / "model")
    assert (handed.card.batch_size, handed.taken.train.batch_size) == (1, 2)
    assert_same(handed.owners, handed.taken)


def test_batches_of_one_row_stay_refused_where_batchnorm_refuses_them(tmp_path):
    handed = hand_over(seeded(Mixed), (WORDS,), tmp_path / "model")
    assert handed.taken.train.rows == (2, None)
    assert any("one row" in warning for warning in handed.taken.warnings)
    assert "writes to norm." in handed.card.rows_mix


def test_keyword_inputs_numbers_and_dicts_of_outputs_arrive(tmp_path):
    model = seeded(Named)
    kwargs = {"mask": torch.ones(6, 32), "scale": 2.0}
    handed = hand_over(model, (BATCH,), tmp_path / "model", kwargs)
    assert_same(handed.owners, handed.taken)
    _, pipeline = packages(handed.taken, tmp_path / "node_data")
    pipeline.train(False)
    found = pipeline(BATCH, mask=kwargs["mask"], scale=2.0)
    assert list(found) == ["y"]
    assert torch.equal(found["y"], model.eval()(BATCH, **kwargs)["y"])


def test_what_a_real_pass_has_measured_arrives(tmp_path):
    owners = study(seeded(Mlp), (BATCH,), pass_data=True)
    write_model(tmp_path / "model", owners)
    assert_same(owners, study_package(tmp_path / "model"))
    predicted = study(seeded(Mlp), (BATCH,))
    assert owners.costs.compute_s[-1] != predicted.costs.compute_s[-1]


@pytest.mark.parametrize(("kind", "example"), [(Mlp, BATCH), (Mixed, WORDS)])
def test_costs_can_be_for_another_batch_size_than_the_examples(tmp_path, kind, example):
    write_model(tmp_path / "model", study(seeded(kind), (example[:2],)))
    larger = torch.cat([example] * 10)[:48]
    owners, taken = (
        study(seeded(kind), (larger,)),
        study_package(tmp_path / "model", rows=len(larger)),
    )
    assert taken.train.batch_size == 48
    for name, expected in vars(owners.costs).items():
        np.testing.assert_allclose(getattr(taken.costs, name), expected, rtol=1e-9, err_msg=name)


def test_measured_costs_grow_with_the_batch(tmp_path):
    owners = study(seeded(Mlp), (BATCH,), pass_data=True)
    write_model(tmp_path / "model", owners)
    taken = study_package(tmp_path / "model", rows=10 * len(BATCH))
    # All but the optimizer's step and the reading of weights.
    assert 9 < taken.costs.compute_s[-1] / owners.costs.compute_s[-1] < 10


def test_a_model_whose_batches_are_fixed_keeps_its_costs(tmp_path):
    class Fixed(Mlp):
        def forward(self, x):
            return super().forward(x.reshape(6, 32))

    handed = hand_over(seeded(Fixed), (BATCH,), tmp_path / "model")
    assert handed.taken.train.batch_size == 6
    assert_same(handed.owners, study_package(tmp_path / "model", rows=48))


def test_nothing_of_the_owners_program_is_needed(tmp_path):
    """In a process of its own, which has none of the modules of this test."""
    hand_over(seeded(Mixed), (WORDS,), tmp_path / "model")
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from ravnest.planning.handover import study_package\n"
        "from ravnest.planning.planned import PlanRequest, plan_only, write_planned\n"
        "from ravnest.planning.pool import parse_pool\n"
        "from ravnest.rundir import RunDir\n"
        "entry = lambda i: {'IP': f'h:{i}', 'benchmarks': {'ram': 1, 'bandwidth': 10000}}\n"
        "pool = parse_pool({str(i): entry(i + 1) for i in range(3)}, 'pool')\n"
        "studied = study_package(Path(sys.argv[1]))\n"
        "plan = plan_only(studied, pool, PlanRequest())\n"
        "write_planned(plan, studied, PlanRequest(), RunDir(sys.argv[2]))\n"
        "print(plan.model.name, 'pools' in sys.modules)\n"
    )
    arguments = [sys.executable, "-c", program, tmp_path / "model", tmp_path / "node_data"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["Mixed", "False"]
    assert (tmp_path / "node_data" / "plan.json").is_file()


def test_planning_leaves_the_files_as_they_are(tmp_path):
    """The weights are mapped, and the self-check trains on them."""
    handed = hand_over(seeded(Mixed), (WORDS,), tmp_path / "model")
    before = snapshot(handed.folder)
    packages(handed.taken, tmp_path / "node_data", self_check=True)
    assert snapshot(handed.folder) == before


# ---- a plan to look at --------------------------------------------------------------------------


def test_a_plan_can_be_looked_at_before_anything_is_written(tmp_path):
    handed = hand_over(seeded(Mlp), (BATCH,), tmp_path / "model")
    before = snapshot(tmp_path)
    looked_at = plan_only(handed.taken, pool(), PlanRequest())
    assert snapshot(tmp_path) == before
    written = plan_study(handed.taken, pool(), PlanRequest(), RunDir(tmp_path / "node_data"))
    assert written == looked_at


@pytest.mark.parametrize("wish", [{"min_cluster_size": 0}, {"idle_gain": 0.5}, {"seed": "x"}])
def test_a_wrong_wish_is_refused_before_a_model_is_looked_at(wish):
    with pytest.raises(PlanError, match=next(iter(wish))):
        PlanRequest(**wish)


# ---- weights ------------------------------------------------------------------------------------


def fused_weights(model: nn.Module, path: Path) -> Path:
    save_file({key: t.clone() for key, t in model.state_dict().items()}, path)
    return path


def test_a_later_run_starts_from_the_weights_of_the_one_before(tmp_path):
    handed = hand_over(seeded(Mixed), (WORDS,), tmp_path / "model")
    later = seeded(Mixed, seed=1)
    path = fused_weights(later, tmp_path / "fused.safetensors")
    taken = study_package(handed.folder, weights=path)
    assert taken.stages(()) == handed.owners.stages(())
    plan, pipeline = packages(taken, tmp_path / "node_data")
    assert plan.plan_id != packages(handed.taken, tmp_path / "other")[0].plan_id
    pipeline.train(False)
    assert torch.allclose(pipeline(WORDS), later.eval()(WORDS), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda state: state.pop("second.bias"), "'second.bias' is missing"),
        (lambda state: state.update(extra=torch.ones(1)), "no key 'extra'"),
        (lambda state: state.update({"second.bias": torch.ones(3)}), "expected float32"),
        (lambda state: state.update({"head.weight": torch.ones(12, 16)}), "tied to"),
    ],
)
def test_weights_of_another_model_are_refused(change, complaint, tmp_path):
    handed = hand_over(seeded(Mixed), (WORDS,), tmp_path / "model")
    path = fused_weights(seeded(Mixed, seed=1), tmp_path / "fused.safetensors")
    state = load_file(path)
    change(state)
    save_file(state, path)
    with pytest.raises(PackageError, match=complaint):
        study_package(handed.folder, weights=path)


def test_a_model_without_weights_is_handed_over_as_a_graph_and_gets_them_later(tmp_path):
    with torch.device("meta"):
        model, batch = Mlp(), torch.empty(6, 32)
    handed = hand_over(model, (batch,), tmp_path / "model")
    assert not handed.card.checked
    assert not handed.taken.has_weights
    assert {path.name for path in handed.folder.iterdir()} == FILES - {
        "weights.safetensors",
        "example.safetensors",
    }
    assert plan_only(handed.taken, pool(), PlanRequest()).clusters
    real = seeded(Mlp)
    path = fused_weights(real, tmp_path / "fused.safetensors")
    taken = study_package(handed.folder, weights=path)
    assert taken.has_weights
    plan, pipeline = packages(taken, tmp_path / "node_data")
    assert any("example batch has no values" in warning for warning in plan.warnings)
    assert torch.equal(pipeline(BATCH), real(BATCH))


def test_weights_that_lie_in_files_are_handed_over_with_the_graph(tmp_path):
    with torch.device("meta"):
        owners = study(Mlp(), (torch.empty(6, 32),))
    real = seeded(Mlp)
    path = fused_weights(real, tmp_path / "checkpoint.safetensors")
    write_model(tmp_path / "model", owners, weights=FromFiles(path, owners))
    taken = study_package(tmp_path / "model")
    assert taken.has_weights
    assert torch.equal(taken.model.eval()(BATCH), real(BATCH))


# ---- models that are not what they seem ----------------------------------------------------------


def test_a_torchscript_module_can_be_handed_over(tmp_path):
    scripted = torch.jit.script(seeded(Mlp))
    handed = hand_over(scripted, (BATCH,), tmp_path / "model")
    assert_same(handed.owners, handed.taken)
    _, pipeline = packages(handed.taken, tmp_path / "node_data")
    assert torch.allclose(pipeline(BATCH), scripted(BATCH), atol=1e-6)


class Renaming(nn.Module):
    """Its state_dict has keys that are no names of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 8), nn.Linear(8, 2)
        self.register_state_dict_post_hook(self._rename)

    @staticmethod
    def _rename(module: nn.Module, state: dict[str, Any], prefix: str, local: Any) -> None:
        for key in list(state):
            state[f"net/{key}"] = state.pop(key)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def test_keys_that_are_no_names_of_tensors_arrive_and_serve_later_weights(tmp_path):
    handed = hand_over(seeded(Renaming), (BATCH,), tmp_path / "model")
    later = seeded(Renaming, seed=1)
    path = fused_weights(later, tmp_path / "fused.safetensors")
    assert "net/first.weight" in load_file(path)
    taken = study_package(handed.folder, weights=path)
    run = RunDir(tmp_path / "node_data")
    plan_study(taken, pool(), PlanRequest(), run)
    index = msgspec.json.decode(run.model_file.read_bytes(), type=ModelIndex)
    assert [entry.key for entry in index.state] == list(later.state_dict())
    assert torch.equal(taken.held["first.weight"].tensor, later.first.weight)
