"""Trained weights as files, where others may have put something in their place."""

import json

import pytest
import torch
from safetensors.torch import save_file

from ravnest.session.results import write_result


class Trained:
    """A job, as far as it is fetched."""

    def fetch(self, path):
        names = {"classes": json.dumps(["cat", "dog", "cow"])}
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({"weight": torch.ones(3)}, path, metadata=names)
        return path


@pytest.mark.parametrize("weights", ["others", "the same"])
@pytest.mark.parametrize("name", ["classes.json", "trained_state_dict.pt"])
@pytest.mark.parametrize("what", ["link", "dangling link", "folder"])
def test_what_stands_in_the_way_of_weights_is_moved_aside_and_not_written_through(
    tmp_path, weights, name, what
):
    folder, target = tmp_path / "trained", tmp_path / "precious"
    before = write_result(Trained(), folder)
    assert [path.name for path in before][2:] == ["classes.json"]
    if weights == "others":
        (folder / "trained_state_dict.safetensors").write_bytes(b"")
    (folder / name).unlink()
    if what == "folder":
        (folder / name).mkdir()
    else:
        (folder / name).symlink_to(target)
    if what == "link":
        target.write_text("precious")
    assert write_result(Trained(), folder) == before
    torch.load(folder / "trained_state_dict.pt", weights_only=True)
    assert json.loads((folder / "classes.json").read_text()) == ["cat", "dog", "cow"]
    assert not (folder / name).is_symlink()
    aside = (folder / name).with_suffix(f".1{(folder / name).suffix}")
    assert aside.is_dir() if what == "folder" else aside.readlink() == target
    assert target.read_text() == "precious" if what == "link" else not target.exists()


def test_what_was_moved_aside_is_not_overwritten_either(tmp_path):
    weights = tmp_path / "trained_state_dict.safetensors"
    for before in (b"first", b"second"):
        weights.write_bytes(before)
        write_result(Trained(), tmp_path)
    aside = [weights.with_suffix(f".{number}.safetensors").read_bytes() for number in (1, 2)]
    assert aside == [b"first", b"second"]


def test_nothing_is_written_through_a_link_by_the_name_of_an_unfinished_file(tmp_path):
    folder, target = tmp_path / "trained", tmp_path / "precious"
    folder.mkdir()
    target.write_text("precious")
    names = [f"trained_state_dict.{kind}.new" for kind in ("pt", "safetensors")]
    for name in names:
        (folder / name).symlink_to(target)
    write_result(Trained(), folder)
    assert target.read_text() == "precious"
    written = {"trained_state_dict.pt", "trained_state_dict.safetensors", "classes.json"}
    assert {path.name for path in folder.iterdir()} == written | set(names)
