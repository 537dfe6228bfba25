"""Folders that were not written by `write_model`, or not left as it wrote them.

Each is refused with an error that names the folder, and nothing that it describes has been run.
Hashes are made to fit wherever the hash is not the point: a liar states the right ones.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from handed import edit, restate
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ravnest.errors import PackageError
from ravnest.planning.handover import ModelLimits, study_package, write_model
from ravnest.planning.study import study
from ravnest.stage.module import StageModule

Change = Callable[[Any], Any]


class Small(nn.Module):
    """Two layers and a buffer, with a tied name."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()) * self.scale


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "model"
    torch.manual_seed(0)
    write_model(folder, study(Small(), (torch.rand(3, 4),)))
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to falsify, and a trap for whoever runs it."""
    target = tmp_path / "model"
    target.mkdir()
    for path in written.iterdir():
        (target / path.name).write_bytes(path.read_bytes())

    def trap(*args: Any) -> Any:
        raise AssertionError("the model was run")

    monkeypatch.setattr(StageModule, "forward", trap)
    return target


def refuse(folder: Path, match: str, **options: Any) -> None:
    with pytest.raises(PackageError, match=match) as caught:
        study_package(folder, **options)
    assert str(folder) in str(caught.value)


def test_the_folder_itself_is_fine(folder):
    edit(folder, "graph.json", lambda graph: None)
    assert study_package(folder).name == "Small"


# ---- files --------------------------------------------------------------------------------------

ALL = [
    "card.json", "manifest.json", "graph.json", "outline.json", "model.json", "weights.safetensors",
    "example.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_a_missing_file_is_named(name, folder):
    (folder / name).unlink()
    refuse(folder, f"{name} is missing")


@pytest.mark.parametrize("name", ALL)
def test_a_link_is_refused(name, folder, tmp_path):
    (folder / name).rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", folder / name)
    refuse(folder, f"{name} is not a plain file")


@pytest.mark.parametrize("name", ALL[1:])
def test_a_file_with_another_hash_is_refused(name, folder):
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1
    (folder / name).write_bytes(bytes(content))
    refuse(folder, "hash")


@pytest.mark.parametrize("name", ALL[1:])
def test_a_longer_file_is_refused(name, folder):
    with (folder / name).open("ab") as file:
        file.write(b" ")
    refuse(folder, "bytes, the manifest says")


@pytest.mark.parametrize("name", ["card.json", "graph.json", "outline.json", "model.json"])
@pytest.mark.parametrize("content", [b"", b"no json", b"[]", b'{"format": 1', b"\xff\xfe", b"null"])
def test_what_is_no_json_of_its_kind_is_refused(name, content, folder):
    (folder / name).write_bytes(content)
    if name != "card.json":
        restate(folder)
    refuse(folder, "is not a valid")


@pytest.mark.parametrize("name", ["weights.safetensors", "example.safetensors"])
def test_what_is_no_safetensors_file_is_refused(name, folder):
    (folder / name).write_bytes(b"\x80\x04 nothing of the kind")
    restate(folder)
    refuse(folder, "cannot be read")


@pytest.mark.parametrize("name", ["../card.json", "/etc/passwd", "graph.json/../x", "other", ""])
@pytest.mark.parametrize("lists", ["card.json", "manifest.json"])
def test_other_file_names_are_refused(name, lists, folder):
    edit(folder, lists, lambda document: document["files"][0].update(name=name))
    refuse(folder, "which no model has|must list")


def test_a_file_listed_twice_is_refused(folder):
    edit(folder, "card.json", lambda card: card["files"].append(card["files"][0]))
    refuse(folder, "ModelCard|twice")


def test_card_and_manifest_must_mean_the_same_weights(folder):
    card = json.loads((folder / "card.json").read_text())
    card["files"] = [entry for entry in card["files"] if entry["name"] != "weights.safetensors"]
    (folder / "card.json").write_text(json.dumps(card))
    refuse(folder, "different files weights.safetensors")


@pytest.mark.parametrize("name", ["card.json", "outline.json", "model.json"])
def test_a_field_nobody_knows_and_another_format_are_refused(name, folder):
    edit(folder, name, lambda document: document.update(more=1))
    refuse(folder, "unknown field `more`")
    edit(folder, name, lambda document: document.update(format=2))
    refuse(folder, "has format 2")


@pytest.mark.parametrize(
    "limits",
    [
        {"manifest_bytes": 50},
        {"graph_bytes": 50},
        {"weight_bytes": 50},
        {"example_bytes": 8},
        {"operations": 2},
        {"tensors": 1},
    ],
)
def test_what_is_larger_than_allowed_is_refused(limits, folder):
    refuse(folder, "allowed", limits=ModelLimits(**limits))


# ---- the graph ----------------------------------------------------------------------------------


def operations(graph: Any) -> list[Any]:
    return graph["train"]["operations"]


def first_call(op: str, args: list[Any]) -> Change:
    return lambda graph: operations(graph)[0].update(op=op, args=args, kwargs={})


X, W = {"v": 0}, {"t": 0}
GRAPHS: dict[str, tuple[Change, str]] = {
    "forbidden": (first_call("aten.from_file.default", ["/etc/passwd"]), "allow-list"),
    "Python": (first_call("builtins.eval.default", ["1"]), "allow-list"),
    "a module": (
        lambda graph: operations(graph)[0].update(
            op="ravnest.module", args=[X], kwargs={"path": "first"}
        ),
        "modules of its owner's program",
    ),
    "stage 1 of 2": (lambda graph: graph.update(stages=2), "different stages|result|not a whole"),
    "no operators": (
        lambda graph: graph["train"].update(operations=[], result={"leaf": 0}),
        "nothing to train",
    ),
    "nothing to train": (
        lambda graph: [spec.pop("trainable", None) for spec in graph["tensors"]] and None,
        "nothing to train",
    ),
    "a misfit": (first_call("aten.view.default", [W, [5, 7]]), "does not fit its arguments"),
    "a list to repeat": (first_call("mul", [[1], 1 << 40]), "does not fit its arguments"),
    "a huge tensor": (first_call("aten.zeros.default", [[1 << 39]]), "more than .* allowed"),
    "a size of no tensor": (first_call("aten.zeros.default", [[1 << 40]]), "size .* out of bounds"),
    "an endless power": (first_call("pow", [1 << 40, 60]), "out of bounds"),
    "data-dependent": (
        lambda graph: operations(graph)[0].update(
            op="aten.narrow.Tensor", args=[X, 0, {"t": 0}, 1], kwargs={}
        ),
        "does not fit its arguments",
    ),
    "another shape": (
        lambda graph: graph["tensors"][0].update(shape=[5, 4]),
        "expected float32|fit its arguments",
    ),
    "an unknown tensor": (
        lambda graph: graph["tensors"][0].update(name="elsewhere"),
        "different tensors",
    ),
    "an open size inside": (
        lambda graph: graph["inputs"][0].update(shape=[-1, -1]),
        "does not fit the graph",
    ),
    "a fixed batch": (lambda graph: graph.update(static_batch=7), "fixed"),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_a_graph_that_may_not_be_planned_is_refused(case, folder):
    change, complaint = GRAPHS[case]
    edit(folder, "graph.json", change)
    refuse(folder, complaint)


def test_a_stage_of_a_larger_model_is_refused(folder):
    edit(folder, "graph.json", lambda graph: graph.update(stages=2, stage=1, inputs=[]))
    edit(folder, "manifest.json", lambda manifest: manifest.update(stages=2, stage=1))
    refuse(folder, "arguments|stage 1 of 2|takes the model's inputs")


# ---- weights, outline, names and example --------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda tensors: tensors.pop("first.bias"), "'first.bias' is missing"),
        (lambda tensors: tensors.update(more=torch.ones(1)), "unknown tensor 'more'"),
        (lambda tensors: tensors.update({"first.bias": torch.ones(5)}), "expected float32"),
        (lambda tensors: tensors.update({"first.bias": torch.ones(4).half()}), "expected float32"),
    ],
)
def test_other_weights_than_the_graph_states_are_refused(change, complaint, folder):
    path = folder / "weights.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    restate(folder)
    refuse(folder, complaint)


def of_train(**changes: Any) -> Change:
    return lambda outline: outline["train"].update(changes)


COST = {"forward_flops": 1, "backward_flops": 1, "seconds": 1.0, "forward_s": 1.0}
OUTLINES: dict[str, tuple[Change, str]] = {
    "too few operators": (of_train(paths=[0]), "numbers of operators"),
    "no such module": (
        lambda outline: outline["train"].update(paths=[99] * len(outline["train"]["paths"])),
        "a module that it does not list",
    ),
    "too many inputs": (of_train(open=[True, True]), "numbers of inputs"),
    "a fixed input": (of_train(open=[False]), "does not fit the graph"),
    "a fixed batch": (of_train(dynamic=False), "fixed size"),
    "a name twice": (lambda o: o["names"].append(o["names"][0]), "name twice"),
    "a name missing": (lambda o: o["names"].__delitem__(0), "different tensors"),
    "an unknown tensor": (lambda o: o["names"].append(["x", "y"]), "different tensors"),
    "too few measured": (lambda o: o.update(measured=[COST]), "another number"),
    "arguments measured": (
        lambda o: o.update(measured=[{**COST, "kept_arguments": [9]}] * len(o["train"]["paths"])),
        "measured arguments",
    ),
    "negative seconds": (lambda o: o.update(measured=[{**COST, "seconds": -1}]), "not a valid"),
}


@pytest.mark.parametrize("case", OUTLINES)
def test_an_outline_of_another_graph_is_refused(case, folder):
    change, complaint = OUTLINES[case]
    edit(folder, "outline.json", change)
    refuse(folder, complaint)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"key": "x", "tensor": "elsewhere"}, "unknown tensor 'elsewhere'"),
        ({"key": "first.bias", "tensor": "first.bias"}, "a key twice"),
        ({"key": "x" * 1001, "tensor": "first.bias"}, "too long"),
        ({"key": 1, "tensor": "first.bias"}, "not a valid"),
    ],
)
def test_keys_of_another_state_dict_are_refused(entry, complaint, folder):
    edit(folder, "model.json", lambda index: index["state"].append(entry))
    refuse(folder, complaint)


def name_again(folder: Path, times: int) -> None:
    more = [{"key": f"k{number}", "tensor": "first.weight"} for number in range(times)]
    edit(folder, "model.json", lambda index: index["state"].extend(more))


def test_a_small_tensor_with_very_many_names_is_refused(folder):
    """Fusion writes each of them out: 2 MB of names would be 600 MB of weights."""
    name_again(folder, 2000)
    refuse(folder, "2002 names for the tensor 'first.weight'")


def test_tensors_that_are_named_too_often_for_their_size_are_refused(folder):
    name_again(folder, 1000)
    assert study_package(folder).name == "Small"  # small enough to be of no harm
    refuse(
        folder,
        "100 bytes would be 64164, more than the 4200",
        limits=ModelLimits(repeated_bytes=1000),
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"example": []}, "does not hold"),
        ({"example": [{"dtype": "float32", "shape": [3, 5]}]}, "other tensors than the card"),
        ({"example": [{"dtype": "object", "shape": [3, 4]}]}, "unknown dtype"),
        ({"example": [{"dtype": "float32", "shape": [1 << 40, 1 << 40]}]}, "allowed"),
        ({"batch_size": 4}, "no rows to follow"),
        ({"batch_size": 0}, "not a valid"),
        ({"warnings": ["x" * 5000]}, "not a valid"),
    ],
)
def test_an_example_that_does_not_fit_is_refused(change, complaint, folder):
    edit(folder, "card.json", lambda card: card.update(change))
    refuse(folder, complaint)


def test_an_example_of_another_shape_is_refused(folder):
    save_file({"leaf_0": torch.ones(3, 5)}, folder / "example.safetensors")
    restate(folder)
    edit(folder, "card.json", lambda card: card["example"][0].update(shape=[3, 5]))
    refuse(folder, "does not fit the graph")
