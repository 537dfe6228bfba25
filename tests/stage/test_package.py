"""A package on disk is read only if it is exactly what its manifest says, file by file."""

import json
import os
import shutil
import struct
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from samples import weights, whole, write

from ravnest.errors import PackageError
from ravnest.stage.graph import StageGraph
from ravnest.stage.package import (
    Limits,
    load_package,
    load_weights,
    write_package,
)


def graph() -> StageGraph:
    return msgspec.json.decode(json.dumps(whole()).encode(), type=StageGraph)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    write_package(tmp_path / "stage", graph(), weights(), plan_id="plan", cluster=0)
    return tmp_path / "stage"


def edit_manifest(package: Path, name: str = "manifest.json", **changes: object) -> None:
    document = json.loads((package / name).read_text())
    (package / name).write_text(json.dumps({**document, **changes}))


def files_of(package: Path) -> list[dict[str, object]]:
    found = json.loads((package / "manifest.json").read_text())["files"]
    assert isinstance(found, list)
    return found


def refuse(package: Path, match: str) -> None:
    with pytest.raises(PackageError, match=match) as caught:
        load_package(package)
    assert str(package) in str(caught.value)


def test_what_the_format_of_the_files_cannot_hold_is_said(tmp_path):
    spec = msgspec.structs.replace(graph().tensors[2], dtype="complex128")
    changed = msgspec.structs.replace(graph(), tensors=(*graph().tensors[:2], spec))
    tensors = {**weights(), "scale": weights()["scale"].to(torch.complex128)}
    with pytest.raises(PackageError, match=r"'scale' is complex128.*use complex64"):
        write_package(tmp_path / "stage", changed, tensors, plan_id="plan", cluster=0)


def test_what_is_written_is_read_back(package):
    found = load_package(package)
    assert found.graph == graph()
    assert found.manifest.plan_id == "plan"
    module = found.module()
    for name, tensor in weights().items():
        assert torch.equal(module.tensors()[name], tensor)
    assert sorted(path.name for path in package.iterdir()) == [
        "graph.json",
        "manifest.json",
        "weights.safetensors",
    ]


def test_the_format_is_always_written_down(package):
    for name in ("graph.json", "manifest.json"):
        assert json.loads((package / name).read_text())["format"] == 1


def test_an_existing_directory_is_not_overwritten(package):
    with pytest.raises(FileExistsError):
        write_package(package, graph(), weights(), plan_id="plan", cluster=0)


@pytest.mark.parametrize("name", ["graph.json", "weights.safetensors", "manifest.json"])
def test_a_missing_file_is_named(package, name):
    (package / name).unlink()
    refuse(package, f"{name} is missing")


def test_a_missing_directory_is_named(tmp_path):
    refuse(tmp_path / "nowhere", r"manifest\.json is missing")


@pytest.mark.parametrize("name", ["graph.json", "weights.safetensors"])
def test_every_changed_byte_is_noticed(package, name):
    content = (package / name).read_bytes()
    for position in (0, 8, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[position] ^= 1
        (package / name).write_bytes(changed)
        refuse(package, f"{name} does not have the hash")


@pytest.mark.parametrize("name", ["graph.json", "weights.safetensors"])
def test_a_file_that_is_too_short_or_too_long_is_noticed(package, name):
    content = (package / name).read_bytes()
    for changed in (b"", content[:-1], content + b" "):
        (package / name).write_bytes(changed)
        refuse(package, f"{name} has {len(changed)} bytes, the manifest says {len(content)}")


@pytest.mark.parametrize("name", ["graph.json", "weights.safetensors", "manifest.json"])
def test_a_link_is_not_followed(package, name, tmp_path):
    shutil.move(package / name, tmp_path / "elsewhere")
    (package / name).symlink_to(tmp_path / "elsewhere")
    refuse(package, f"{name} is not a plain file")


@pytest.mark.parametrize("name", ["graph.json", "weights.safetensors", "manifest.json"])
def test_a_pipe_or_a_directory_is_not_read(package, name):
    (package / name).unlink()
    os.mkfifo(package / name)
    refuse(package, f"{name} is not a plain file")
    (package / name).unlink()
    (package / name).mkdir()
    refuse(package, f"{name} is not a plain file")


@pytest.mark.parametrize(
    "name", ["../stage/graph.json", "/etc/passwd", "./graph.json", "graph.json\x00", "x", ""]
)
def test_a_manifest_names_no_other_files(package, name):
    for number in (0, 1):
        files = files_of(package)
        files[number]["name"] = name
        edit_manifest(package, files=files)
        refuse(package, "the manifest must list")


@pytest.mark.parametrize("order", [[], [1], [1, 0], [0, 0], [0, 1, 1], [0, 1, 0]])
def test_a_manifest_lists_each_file_once(package, order):
    files = files_of(package)
    edit_manifest(package, files=[files[number] for number in order])
    refuse(package, "the manifest must list")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": 2}, r"manifest\.json has format 2; this release reads 1"),
        ({"format": 2, "new_field": []}, "has format 2"),
        ({"format": "1"}, "not a valid Manifest"),
        ({"new_field": []}, "unknown field"),
        ({"stage": 1}, "different stages"),
        ({"stages": 2}, "different stages"),
        ({"stage": -1}, "not a valid Manifest"),
        ({"plan_id": None}, "not a valid Manifest"),
        ({"plan_id": "x" * 2000}, "not a valid Manifest"),
        ({"cluster": 2**64}, "not a valid Manifest"),
        ({"files": {}}, "not a valid Manifest"),
        ({"torch": []}, "not a valid Manifest"),
    ],
    ids=str,
)
def test_a_manifest_that_is_wrong_is_refused(package, changes, match):
    edit_manifest(package, **changes)
    refuse(package, match)


def test_a_huge_manifest_is_not_read(package):
    (package / "manifest.json").write_bytes(b" " * ((1 << 20) + 1))
    refuse(package, "larger than the 1048576 bytes")


def test_a_graph_of_another_format_is_called_that(tmp_path):
    refuse(write(tmp_path / "p", {**whole(), "format": 2, "x": 1}), r"graph\.json has format 2")


def test_a_graph_without_a_format_is_refused(tmp_path):
    document = whole()
    del document["format"]
    refuse(write(tmp_path / "p", document), "format")


def test_weights_larger_than_allowed_are_refused_before_they_are_hashed(package):
    with pytest.raises(PackageError, match="more than"):
        load_package(package, Limits(weight_bytes=64))
    size = (package / "weights.safetensors").stat().st_size
    with pytest.raises(PackageError, match=f"has {size} bytes, more than the {size - 1} allowed"):
        load_package(package, Limits(weight_bytes=size - 1))


def test_a_package_without_weights_says_so_when_asked_for_its_module(tmp_path):
    write_package(tmp_path / "stage", graph(), None, plan_id="plan", cluster=0)
    package = load_package(tmp_path / "stage")
    with pytest.raises(PackageError, match="planned without weights"):
        package.module()
    # Weights that nobody vouches for do not change that.
    save_file(weights(), tmp_path / "stage" / "weights.safetensors")
    with pytest.raises(PackageError, match="planned without weights"):
        load_package(tmp_path / "stage").module()


# ---- weights ---------------------------------------------------------------------------------

HEADER = {"scale": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}


def safetensors(header: object, data: bytes = b"\0" * 4) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 8,
        b"garbage, and more of it",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 99_999_999) + b"{}",
        safetensors(b"{"),
        safetensors(b"\xff\xfe"),
        safetensors(b"[" * 100_000),
        safetensors([]),
        safetensors({"scale": 1}),
        safetensors({"scale": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 4]}}),
        safetensors({"scale": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}}),
        safetensors({"scale": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}),
        safetensors({"scale": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
        safetensors({"scale": {"dtype": "OBJECT", "shape": [1], "data_offsets": [0, 4]}}),
        safetensors({"scale": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}),
        safetensors({"scale": {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}}),
        safetensors({"scale": {"dtype": "U32", "shape": [1], "data_offsets": [0, 4]}}),
        safetensors({"__metadata__": {"a": "b"}}, b""),
        safetensors(HEADER),
        safetensors(HEADER, b"\0" * 8),
    ],
    ids=range(21),
)
def test_weights_that_are_not_the_stages_are_refused(content, tmp_path):
    package = load_package(write(tmp_path / "stage", whole(), content))
    with pytest.raises(PackageError, match=r"weights\.safetensors"):
        package.module()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"scale": None}, "'scale' is missing"),
        ({"extra": torch.ones(1)}, "unknown tensor 'extra'"),
        ({"scale": torch.ones(2)}, r"float32\[2\], expected float32\[1\]"),
        ({"scale": torch.ones(1, 1)}, "expected"),
        ({"scale": torch.ones(1).double()}, r"float64\[1\], expected float32\[1\]"),
        ({"scale": torch.ones(1, dtype=torch.int32)}, "int32"),
        ({"scale": torch.ones(1, dtype=torch.uint16)}, "uint16"),
    ],
    ids=str,
)
def test_tensors_of_another_shape_or_type_are_refused(changes, match, tmp_path):
    tensors = {name: t for name, t in {**weights(), **changes}.items() if t is not None}
    package = load_package(write(tmp_path / "stage", whole(), tensors))
    with pytest.raises(PackageError, match=match):
        package.module()


def test_a_module_does_not_depend_on_the_file_any_more(package):
    module = load_package(package).module()
    path = package / "weights.safetensors"
    path.write_bytes(b"\xff" * path.stat().st_size)
    os.truncate(path, 0)
    assert torch.equal(module.tensors()["fc.bias"], weights()["fc.bias"])


def test_writing_wrong_tensors_is_refused_at_once(tmp_path):
    wrong = {**weights(), "scale": torch.ones(3)}
    with pytest.raises(PackageError, match="expected"):
        write_package(tmp_path / "a", graph(), wrong, plan_id="plan", cluster=0)
    del wrong["scale"]
    with pytest.raises(PackageError, match="missing"):
        write_package(tmp_path / "b", graph(), wrong, plan_id="plan", cluster=0)


def test_views_of_one_memory_are_written_apart(tmp_path):
    shared = torch.arange(16.0)
    tensors = {"fc.weight": shared[:12].view(3, 4), "fc.bias": shared[:3], "scale": shared[15:]}
    write_package(tmp_path / "stage", graph(), tensors, plan_id="plan", cluster=0)
    found = load_file(tmp_path / "stage" / "weights.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert load_weights(tmp_path / "stage" / "weights.safetensors", graph())["scale"].item() == 15.0
