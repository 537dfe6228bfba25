"""Rows of a shard as a file of their own: all kinds of columns, and shards that are none."""

import hashlib

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from ravnest.api.jobs import FieldSpec
from ravnest.data.slicing import slice_rows
from ravnest.data.writing import write_data
from ravnest.errors import JobError

COLUMNS = {
    "numbers": torch.randn(10, 3),
    "label": torch.arange(10),
    "half": torch.randn(10, 2).bfloat16(),
    "seen": torch.arange(10) % 3 == 0,
    "image": torch.randint(0, 256, (10, 3, 4, 4), dtype=torch.uint8),
    "tokens": torch.randint(0, 256, (10, 17), dtype=torch.uint8),
    "nothing": torch.empty(10, 0),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("wanted", [range(4), range(3, 7), range(9, 10)], ids=str)
def test_a_cut_holds_its_own_rows_and_is_a_shard(tmp_path, name, wanted):
    written = write_data({name: COLUMNS[name]}, tmp_path, shuffle=False)
    ((file, path),) = written.files()
    cut = slice_rows(path, tmp_path / "cut", file, written.spec.fields[0], 10, wanted)
    content = (tmp_path / "cut").read_bytes()
    assert (cut.path, cut.size) == (file.path, len(content))
    assert cut.sha256 == hashlib.sha256(content).hexdigest()
    assert len(content) <= len(wanted) * (COLUMNS[name][0].nbytes) + 200
    found = load_file(tmp_path / "cut")
    assert found.keys() == {name}
    assert torch.equal(found[name], COLUMNS[name][wanted.start : wanted.stop])


COLUMN = FieldSpec(name="x", dtype="float32", shape=(2,))


def another_tensor(path):
    save_file({"x": torch.zeros(5, 2), "y": torch.zeros(1)}, path)


def another_shape(path):
    save_file({"x": torch.zeros(6, 2)}, path)


def another_type(path):
    save_file({"x": torch.zeros(5, 2, dtype=torch.float64)}, path)


def not_whole(path):
    save_file({"x": torch.zeros(5, 2)}, path)
    path.write_bytes(path.read_bytes()[:-20])


def no_header(path):
    path.write_bytes(b"\xff" * 100)


def no_json(path):
    path.write_bytes((4).to_bytes(8, "little") + b"[[[[" + bytes(40))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (another_tensor, "alone"),
        (another_shape, r"shape is \[6, 2\]"),
        (another_type, "bytes are not those of 5 rows"),
        (not_whole, "ends 16 bytes before"),
        (no_header, "header has"),
        (no_json, "no safetensors"),
    ],
)
def test_a_shard_that_is_not_as_announced_is_refused_by_name(tmp_path, make, said):
    make(tmp_path / "shard")
    written = write_data({"x": torch.zeros(5, 2)}, tmp_path)
    ((file, _),) = written.files()
    file = replace(file, path="data/train/x-00007.safetensors")
    with pytest.raises(JobError, match=f"x-00007.*{said}"):
        slice_rows(tmp_path / "shard", tmp_path / "cut", file, COLUMN, 5, range(3, 5))
    assert not (tmp_path / "cut").exists()
