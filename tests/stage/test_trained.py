"""Trained weights lie beside the package and are believed only with a manifest of their own."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import weights, whole, write

from ravnest.errors import PackageError
from ravnest.stage.package import (
    Limits,
    StagePackage,
    check_trained,
    load_package,
    save_trained,
    settle_trained,
    trained_saves,
)


@pytest.fixture
def package(tmp_path: Path) -> StagePackage:
    package = load_package(write(tmp_path / "stage", whole(), weights()))
    save_trained(package, trained(1.0))
    return package


def trained(more: float) -> dict[str, torch.Tensor]:
    return {name: tensor + more for name, tensor in weights().items()}


def edit(package: StagePackage, **changes: Any) -> None:
    path = package.directory / "trained.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_trained_weights_are_read_back_and_replaced(package):
    for more in (1.0, 2.0):
        save_trained(package, trained(more))
        check_trained(package)
        found = load_package(package.directory).module(trained=True).tensors()
        assert all(torch.equal(found[name], each) for name, each in trained(more).items())
    assert torch.equal(package.module().tensors()["scale"], weights()["scale"])
    assert not list(package.directory.glob("*.new"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"plan_id": "other"}, "belongs to plan_id 'other', this package to 'plan'"),
        ({"cluster": 1}, "belongs to cluster 1"),
        ({"stage": 1, "stages": 2}, "belongs to stage 1"),
        ({"stages": 2}, "belongs to stages 2"),
        ({"format": 3}, "format 3"),
        ({"files": []}, "does not list"),
        ({"files": 1}, "not a valid Manifest"),
        ({"who": "me"}, "unknown field"),
    ],
    ids=str,
)
def test_the_results_of_others_are_refused(package, changes, match):
    edit(package, **changes)
    with pytest.raises(PackageError, match=match):
        check_trained(package)
    with pytest.raises(PackageError, match=match):
        package.module(trained=True)


def results_of(package):
    return check_trained(package)


def test_a_manifest_of_trained_weights_lists_nothing_else(package):
    entry = json.loads((package.directory / "trained.json").read_text())["files"][0]
    for files in ([entry, entry], [{**entry, "name": "weights.safetensors"}]):
        edit(package, files=files)
        with pytest.raises(PackageError, match="does not list just"):
            check_trained(package)


def test_damaged_or_missing_results_are_refused(package):
    path = results_of(package)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(PackageError, match=r"trained-\w+\.safetensors does not have the hash"):
        package.module(trained=True)
    path.write_bytes(content[:-1])
    with pytest.raises(PackageError, match="the manifest says"):
        package.module(trained=True)
    path.unlink()
    with pytest.raises(PackageError, match="missing"):
        package.module(trained=True)
    (package.directory / "trained.json").unlink()
    with pytest.raises(PackageError, match=r"trained\.json is missing"):
        package.module(trained=True)


def test_the_limits_of_the_package_hold_for_its_results(package):
    size = results_of(package).stat().st_size
    with pytest.raises(PackageError, match="more than"):
        check_trained(package, Limits(weight_bytes=size - 1))
    narrow = StagePackage(
        package.directory, package.manifest, package.graph, Limits(weight_bytes=size - 1)
    )
    with pytest.raises(PackageError, match="more than"):
        narrow.module(trained=True)


def test_wrong_results_are_not_saved(package):
    with pytest.raises(PackageError, match="expected"):
        save_trained(package, {**trained(5.0), "scale": torch.ones(7)})
    with pytest.raises(PackageError, match="missing"):
        save_trained(package, {})
    found = package.module(trained=True).tensors()
    assert torch.equal(found["scale"], trained(1.0)["scale"])


def test_nothing_is_written_through_a_link(package, tmp_path):
    """A package may bring a link under the name that is about to be written."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("trained.new", results_of(package).name, "trained.json", "trained.json.new"):
        link = package.directory / name
        link.unlink(missing_ok=True)
        link.symlink_to(victim)
    save_trained(package, trained(1.0))
    assert victim.read_text() == "precious"
    assert not os.path.islink(check_trained(package))


@pytest.mark.parametrize("moment", ["weights", "manifest"])
def test_an_interrupted_save_leaves_the_older_result_whole(package, monkeypatch, moment):
    """Whichever file is about to be put in place: what is loaded is one result or the other."""
    honest = os.replace

    def interrupted(source, target):
        if ("trained.json" in str(target)) == (moment == "manifest"):
            raise KeyboardInterrupt
        honest(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_trained(package, trained(5.0))
    monkeypatch.undo()
    found = package.module(trained=True).tensors()
    assert torch.equal(found["scale"], trained(1.0)["scale"])
    save_trained(package, trained(6.0))
    settle_trained(package)
    assert [results_of(package)] == list(package.directory.glob("trained-*"))


def test_the_save_before_stays_until_all_stages_have_the_last_one(package):
    save_trained(package, trained(2.0), "second")
    save_trained(package, trained(3.0), "third")
    assert list(trained_saves(package)) == ["third", "second"]
    settle_trained(package)
    assert list(trained_saves(package)) == ["third"]
    assert [results_of(package)] == list(package.directory.glob("trained-*"))


def test_equal_weights_of_two_saves_share_a_file(package):
    save_trained(package, trained(2.0), "second")
    save_trained(package, trained(2.0), "third")
    assert len(set(trained_saves(package).values())) == 1
    settle_trained(package)
    assert package.module(trained=True).tensors().keys() == trained(2.0).keys()
