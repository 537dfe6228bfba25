"""Parts of a dataset: who gets which rows, what is read of them, and what is refused."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from ravnest.api.jobs import DataSpec, InputSpec, Named
from ravnest.api.work import DataPart
from ravnest.data.batches import ROWS, Batches, Reading, batches_in
from ravnest.data.dividing import divide, rows_of_cluster
from ravnest.data.reading import PartReader
from ravnest.data.writing import write_data
from ravnest.errors import DataError, JobError

COUNT = 23
X = torch.randn(COUNT, 2)
Y = torch.arange(COUNT)


@pytest.fixture
def written(tmp_path):
    data = {"x": X, "y": Y, "z": torch.full((COUNT,), float("nan"))}
    return write_data(data, tmp_path, shuffle=False, shard_bytes=8 * 4)


def everything(reader, field):
    return reader.read(field, np.arange(reader.rows))


@pytest.mark.parametrize("clusters", [1, 2, 3, 7])
def test_clusters_have_all_rows_among_them_and_only_the_files_they_need(written, clusters):
    seen = []
    for cluster in range(clusters):
        part = divide(written.spec, cluster, clusters, ("y",))
        needed = {file.path for shard in part.data.shards for file in shard.files}
        assert all("/y-" in path for path in needed)
        rows = rows_of_cluster(COUNT, cluster, clusters)
        assert len(needed) == rows[-1] // 4 - rows[0] // 4 + 1
        seen += everything(PartReader(part, written.folder), "y").tolist()
    assert seen == Y.tolist()


def test_fields_are_those_that_were_asked_for_in_the_order_of_the_dataset(written):
    part = divide(written.spec, 0, 2, ("z", "x"))
    assert [column.name for column in part.data.fields] == ["x", "z"]
    reader = PartReader(part, written.folder)
    torch.testing.assert_close(everything(reader, "x"), X[:11])
    assert everything(reader, "z").isnan().all()
    assert msgspec.json.decode(msgspec.json.encode(part), type=DataPart) == part


def test_a_cluster_without_rows_or_a_field_that_is_not_there_is_refused(written):
    with pytest.raises(JobError, match="23 rows for 99 clusters: cluster 0 would have none"):
        divide(written.spec, 0, 99, ("x",))
    with pytest.raises(JobError, match="no field 'label'"):
        divide(written.spec, 0, 1, ("label",))


def test_rows_can_be_read_in_any_order(written):
    reader = PartReader(divide(written.spec, 1, 2, ("y",)), written.folder)
    assert reader.read("y", np.array([7, 0, 11, 3])).tolist() == [18, 11, 22, 14]


# ---- batches ----


def batches(written, cluster=0, clusters=1, epoch=0, fields=("x", "y"), **how):
    reader = PartReader(divide(written.spec, cluster, clusters, fields), written.folder)
    items = {name: InputSpec(field=name) for name in fields}
    how = {"batch_size": 5, "seed": 9, "cluster": cluster, **how}
    return Batches(reader, items, Reading(**how), epoch=epoch)


def test_an_epoch_has_every_row_once_in_an_order_of_its_own(written):
    loader = batches(written)
    epochs = [list(loader), list(loader)]
    assert [len(epoch) for epoch in epochs] == [len(loader)] * 2 == [5, 5]
    orders = [torch.cat([batch["y"] for batch in epoch]).tolist() for epoch in epochs]
    assert sorted(orders[0]) == sorted(orders[1]) == Y.tolist()
    assert orders[0] != orders[1]
    for batch in epochs[1]:
        torch.testing.assert_close(batch["x"], X[batch["y"]])
        assert batch[ROWS].shape == (len(batch["y"]), 1)


def test_readers_of_different_fields_are_on_the_same_rows(written):
    inputs, targets = batches(written, fields=("x",)), batches(written, fields=("y",))
    for given, wanted in zip(inputs, targets, strict=True):
        assert torch.equal(given[ROWS], wanted[ROWS])
        torch.testing.assert_close(given["x"], X[wanted["y"]])


def test_later_epochs_can_be_the_first_ones_read(written):
    whole = batches(written)
    _, second = list(whole), list(whole)
    again = list(batches(written, epoch=1))
    assert [b["y"].tolist() for b in again] == [b["y"].tolist() for b in second]


def test_order_depends_on_seed_and_cluster_and_need_not_be_random(written):
    def first(**how):
        return next(iter(batches(written, **how)))[ROWS].flatten().tolist()

    assert first() != first(seed=10)
    assert first(clusters=2) != first(cluster=1, clusters=2)
    assert first(shuffle=False) == [0, 1, 2, 3, 4]


def test_columns_are_transformed_on_their_way(written):
    reader = PartReader(divide(written.spec, 0, 1, ("x",)), written.folder)
    scale = Named(name="scale", params={"factor": 2.0})
    items = {"a": InputSpec(field="x", transforms=(scale,)), "b": InputSpec(field="x")}
    for batch in Batches(reader, items, Reading(batch_size=8)):
        torch.testing.assert_close(batch["a"], 2 * batch["b"])


@pytest.mark.parametrize(("least", "count"), [(1, 5), (3, 5), (4, 4)])
def test_a_last_batch_that_the_model_does_not_take_is_left_out(written, least, count):
    loader = batches(written, least_rows=least)
    assert len(loader) == len(list(loader)) == batches_in(COUNT, 5, least) == count


# ---- files that are not what they should be ----


def first_file(written):
    return written.folder / written.spec.shards[0].files[0].path


def other_size(written):
    with first_file(written).open("ab") as file:
        file.write(b"\0")


def other_rows(written):
    save_file({"x": X[:3]}, first_file(written))


def other_type(written):
    save_file({"x": X[:4].int()}, first_file(written))


def other_name(written):
    save_file({"w": X[:4]}, first_file(written))


def more_tensors(written):
    save_file({"x": X[:4], "w": Y[:4].clone()}, first_file(written))


def pickled(written):
    with first_file(written).open("wb") as file:
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)


def huge_header(written):
    first_file(written).write_bytes((1 << 62).to_bytes(8, "little") + b"{}")


def link(written):
    path = first_file(written)
    path.rename(written.folder / "elsewhere")
    path.symlink_to(written.folder / "elsewhere")


def linked_folder(written):
    path = first_file(written).parent
    path.rename(written.folder / "elsewhere")
    path.symlink_to(written.folder / "elsewhere")


def pipe(written):
    first_file(written).unlink()
    os.mkfifo(first_file(written))


def missing(written):
    first_file(written).unlink()


ATTACKS = {
    other_size: "bytes, and .* were announced",
    other_rows: r"its shape is \[3, 2\], and \[4, 2\] was announced",
    other_type: "its type is torch.int32, and float32 was announced",
    other_name: "it holds the tensors 'w' instead of 'x'",
    more_tensors: "instead of 'x' alone",
    pickled: "cannot be read as safetensors",
    huge_header: "cannot be read as safetensors",
    link: "is not a plain file",
    linked_folder: "train is not a plain folder",
    pipe: "is not a plain file",
    missing: "cannot be read",
}


@pytest.mark.parametrize("attack", list(ATTACKS), ids=lambda attack: attack.__name__)
def test_a_file_that_is_not_as_announced_is_refused_by_name(written, attack):
    attack(written)
    spec = written.spec
    if attack in (other_rows, other_type, other_name, more_tensors, pickled, huge_header):
        # The size is as announced: what is announced may come from the same hand.
        first = replace(spec.shards[0].files[0], size=first_file(written).stat().st_size)
        shard = replace(spec.shards[0], files=(first, *spec.shards[0].files[1:]))
        spec = replace(spec, shards=(shard, *spec.shards[1:]))
    with pytest.raises(DataError, match=f"x-00000.safetensors.*{ATTACKS[attack]}"):
        PartReader(divide(spec, 0, 1, ("x",)), written.folder)


@pytest.mark.parametrize("path", ["../x.safetensors", "data/../../x", "/etc/passwd", "data//x", ""])
def test_a_path_that_leads_elsewhere_is_refused(written, path):
    shard = written.spec.shards[0]
    files = (replace(shard.files[0], path=path), *shard.files[1:])
    spec = replace(written.spec, shards=(replace(shard, files=files),))
    with pytest.raises(DataError, match="such a path may not be part of a dataset"):
        PartReader(divide(spec, 0, 1, ("x",)), written.folder)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(spec), type=DataSpec)


def test_more_rows_than_there_are_are_refused(written):
    part = divide(written.spec, 1, 2, ("x",))
    with pytest.raises(DataError, match="and its shards have"):
        PartReader(replace(part, range=replace(part.range, rows=99)), written.folder)


def test_tensors_stay_in_their_files(tmp_path):
    """A dataset may be larger than memory: reading a row does not read its shard."""
    big = {"x": torch.zeros(64, 1 << 20, dtype=torch.uint8)}
    written = write_data(big, tmp_path, shard_bytes=1 << 30)
    before = resident()
    reader = PartReader(divide(written.spec, 0, 1, ("x",)), tmp_path)
    assert not reader.read("x", np.array([3])).any()
    assert resident() - before < 32 << 20


def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
