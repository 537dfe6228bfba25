"""Whatever a dataset is made of, its shards hold the same rows, once, shuffled by a seed."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.utils.data import Dataset, TensorDataset

from ravnest.api.jobs import Legend
from ravnest.data.files import as_source
from ravnest.data.images import image_folder
from ravnest.data.sources import held_out
from ravnest.data.text import TokenWindows, next_token, text_windows
from ravnest.data.writing import write_data
from ravnest.errors import JobError
from ravnest.recipes.transforms import transformed

ROWS = 23
X = torch.arange(ROWS * 6, dtype=torch.float32).reshape(ROWS, 2, 3)
Y = torch.arange(ROWS)


class Pairs(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, number):
        return X[number], int(Y[number])


class Records(Pairs):
    def __getitem__(self, number):
        return {"x": X[number].numpy(), "y": np.int64(Y[number])}


def save_npy(folder):
    np.save(folder / "x.npy", X.numpy())
    np.save(folder / "y.npy", Y.numpy())
    return {"x": folder / "x.npy", "y": str(folder / "y.npy")}


def save_npz(folder):
    np.savez(folder / "both.npz", x=X.numpy(), y=Y.numpy())
    return folder / "both.npz"


def save_tensors(folder):
    save_file({"y": Y[:10], "x": X[:10]}, folder / "a.safetensors")
    save_file({"x": X[10:], "y": Y[10:]}, folder / "b.safetensors")
    return [folder / "a.safetensors", folder / "b.safetensors"]


KINDS = {
    "mapping": lambda folder: {"x": X, "y": Y.numpy()},
    "pair": lambda folder: (X.numpy(), Y),
    "lists": lambda folder: {"x": X, "y": Y.tolist()},
    "big-endian": lambda folder: {"x": X.numpy().astype(">f4"), "y": Y},
    "tensor dataset": lambda folder: TensorDataset(X, Y),
    "dataset of pairs": lambda folder: Pairs(),
    "dataset of records": lambda folder: Records(),
    "npy": save_npy,
    "npz": save_npz,
    "safetensors": save_tensors,
}


def rows_written(written):
    found = {column.name: [] for column in written.spec.fields}
    for shard in written.spec.shards:
        for column, file in zip(written.spec.fields, shard.files, strict=True):
            values = load_file(written.folder / file.path)[column.name]
            assert values.shape == (shard.rows, *column.shape)
            assert str(values.dtype) == f"torch.{column.dtype}"
            found[column.name].append(values)
    return {name: torch.cat(parts) for name, parts in found.items()}


@pytest.mark.parametrize("make", KINDS.values(), ids=list(KINDS))
def test_every_row_is_written_once_and_its_columns_stay_together(tmp_path, make):
    written = write_data(make(tmp_path), tmp_path / "out", shard_bytes=5 * 24)
    assert [shard.rows for shard in written.spec.shards] == [5, 5, 5, 5, 3]
    found = rows_written(written)
    assert sorted(found["y"].tolist()) == Y.tolist()
    assert found["y"].tolist() != Y.tolist()
    assert torch.equal(found["x"], X[found["y"]])


def test_files_are_named_and_hashed(tmp_path):
    written = write_data((X, Y), tmp_path, split="validation", shard_bytes=1)
    assert written.spec.rows == len(written.spec.shards) == ROWS
    first, _ = written.spec.shards[0].files
    assert first.path == "data/validation/x-00000.safetensors"
    for file, path in written.files():
        content = path.read_bytes()
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_the_order_follows_from_the_seed(tmp_path):
    def order(name, **options):
        return rows_written(write_data({"y": Y}, tmp_path / name, **options))["y"].tolist()

    assert order("a", seed=1) == order("b", seed=1) != order("c", seed=2)
    assert order("d", shuffle=False) == Y.tolist()


def test_numbers_without_an_equal_in_numpy_are_written_too(tmp_path):
    values = torch.randn(ROWS).bfloat16()
    found = rows_written(write_data({"x": values, "y": Y}, tmp_path))
    assert torch.equal(found["x"], values[found["y"]])


def test_numbers_that_are_none_are_counted_and_the_first_is_named(tmp_path):
    """Over all shards; rows are numbered as they were given, though they are shuffled."""
    images = torch.ones(23, 2, 2, dtype=torch.bfloat16)
    images[[5, 9], 0, 1] = float("nan")
    images[9, 1, 1] = float("inf")
    large = torch.full((23,), 3e38)  # whose sum is too large for its own type
    data = {"x": images, "large": large, "y": torch.arange(23)}
    (found,) = write_data(data, tmp_path, shard_bytes=40).not_finite
    assert (found.field, found.count, found.first_row) == ("x", 3, 5)
    assert str(found) == "3 numbers that are NaN or infinite, the first in row 5"


def test_a_share_of_the_rows_can_be_held_out():
    train, validation = held_out(as_source({"y": Y}), 0.2)
    everything = np.arange(ROWS)
    found = [part.read(everything[: len(part)])["y"].tolist() for part in (train, validation)]
    assert len(found[1]) == 5
    assert sorted(found[0] + found[1]) == Y.tolist()
    with pytest.raises(JobError, match="leaves nothing on one side"):
        held_out(as_source({"y": Y}), 0.001)


class Uneven(Pairs):
    def __getitem__(self, number):
        return torch.zeros(3 if number == 7 else 2), number


class Broken(Pairs):
    def __getitem__(self, number):
        if number == 5:
            raise ValueError("so it is")
        return super().__getitem__(number)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (Broken(), r"row 5 .* cannot be read: ValueError: so it is \(.*test_writing.py, line 1"),
        ({"x": X, "y": Y[:5]}, "equally many rows: x has 23, y has 5"),
        ({}, "at least one column"),
        ({"x": X[:0]}, "no rows"),
        ({"x": np.array(["a", "b"])}, "'x' has the type <U1"),
        ({"x": np.array([{}, {}])}, "'x' has the type object"),
        ({"x": np.zeros(3, np.uint16)}, "'x' has the type uint16.*convert it to one of"),
        ({"x": 3.0}, "'x' is a single number"),
        ({"../x": X}, "a field is called '../x'"),
        ({"x": [[1], [1, 2]]}, "'x' is no array"),
        ((X, Y, Y, "z.npy"), "z.npy does not exist"),
        (Uneven(), r"row 7 of the dataset: 'x' is float32\[3\], in row 0 it is float32\[2\]"),
        (7, "cannot be made of int"),
        ("data.csv", "data.csv does not exist"),
        (__file__, r"test_writing.py is none of .npy, .npz, .safetensors"),
        (Path(__file__).parent, r"of a folder \(it holds .* \.py"),
    ],
)
def test_what_is_no_dataset_is_refused_with_the_reason(tmp_path, data, complaint):
    with pytest.raises(JobError, match=complaint):
        write_data(data, tmp_path)


def test_a_pickled_array_is_not_unpickled(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([{"a": 1}], dtype=object))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(JobError, match=f"{name} cannot be read"):
            write_data(tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize("name", ["x.safetensors", "x.npy", "x.npz"])
@pytest.mark.parametrize("content", [b"\xff" * 40, b"PK\x03\x04 and then nothing of it"])
def test_a_damaged_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(JobError, match=f"{name} cannot be read as"):
        as_source(tmp_path / name)


def test_an_array_under_the_name_of_several_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    with pytest.raises(JobError, match=r"x\.npz .* single array: call it \.npy"):
        as_source(tmp_path / "x.npz")


# ---- images ----


def picture(path, colour, size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def test_a_folder_of_images_is_classes_and_pixels(tmp_path):
    picture(tmp_path / "images/cat/1.png", (255, 0, 0))
    picture(tmp_path / "images/cat/more/2.PNG", (0, 255, 0), (9, 9))
    picture(tmp_path / "images/dog/3.bmp", (0, 0, 255))
    (tmp_path / "images/dog/notes.txt").write_text("no image")
    written = write_data(image_folder(tmp_path / "images", (3, 5)), tmp_path, shuffle=False)
    found = rows_written(written)
    assert written.classes == ("cat", "dog")
    assert found["label"].tolist() == [0, 0, 1]
    assert found["image"].shape == (3, 3, 3, 5)
    assert found["image"].dtype == torch.uint8
    assert found["image"][:, :, 0, 0].tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]


def test_grey_images_have_one_channel_and_cropping_keeps_the_shape(tmp_path):
    image = Image.new("L", (8, 2), 0)
    image.paste(200, (3, 0, 5, 2))
    (tmp_path / "a").mkdir()
    image.save(tmp_path / "a/1.png")
    source = image_folder(tmp_path, 2, channels=1, crop=True)
    assert source.read(np.array([0]))["image"].tolist() == [[[[200, 200], [200, 200]]]]


def test_validation_images_have_the_classes_of_the_training_images(tmp_path):
    picture(tmp_path / "dog/1.png", (1, 2, 3))
    assert image_folder(tmp_path, 2, classes=("cat", "dog")).read(np.array([0]))["label"] == 1
    with pytest.raises(JobError, match="the class 'dog', which is not among the others"):
        image_folder(tmp_path, 2, classes=("cat",))


def test_whoever_lacks_pillow_is_told_how_to_get_it(tmp_path, monkeypatch):
    """By its own name: that works however Ravnest was installed."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").touch()
    with pytest.raises(JobError, match="needs Pillow: pip install pillow"):
        write_data(image_folder(tmp_path, 2), tmp_path / "shards")


def test_classes_are_known_of_a_part_of_the_images_too(tmp_path):
    for number in range(4):
        picture(tmp_path / f"dog/{number}.png", (1, 2, 3))
    for part in held_out(image_folder(tmp_path, 2), 0.5):
        assert write_data(part, tmp_path / "out").legend == Legend(classes=("dog",))


def test_a_broken_image_is_named(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/broken.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(JobError, match=r"broken\.png cannot be read as an image"):
        write_data(image_folder(tmp_path, 2), tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("notes.md", "has no sub-folders.*: it holds 1 .md"),
        ("cat/notes.md", "has no images.*: it holds 1 .md in sub-folders"),
        (None, "images is empty"),
    ],
)
def test_a_folder_that_holds_no_classes_is_refused(tmp_path, file, complaint):
    folder = tmp_path / "images"
    with pytest.raises(JobError, match="images does not exist"):
        image_folder(folder, 4)
    folder.mkdir()
    if file is not None:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("no image")
    with pytest.raises(JobError, match=complaint):
        image_folder(folder, 4)


# ---- text ----


def test_text_is_cut_into_windows_whose_ends_overlap_by_one(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abcdefghij")
    source = text_windows(tmp_path / "a.txt", 4)
    windows = source.read(np.arange(len(source)))["tokens"]
    assert [bytes(window.tolist()) for window in windows] == [b"abcde", b"efghi"]
    assert windows.dtype == torch.uint8
    overlapping = text_windows(tmp_path / "a.txt", 4, stride=1)
    assert len(overlapping) == 6


def test_all_texts_of_a_folder_follow_each_other(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "a.txt").write_text("ab")
    (tmp_path / "more" / "b.txt").write_text("cd")
    (tmp_path / "c.csv").write_text("no text")
    window = text_windows(tmp_path, 4).read(np.array([0]))["tokens"]
    assert bytes(window[0].tolist()) == b"ab\ncd"


def test_characters_are_numbered_by_a_vocabulary_that_can_be_used_again(tmp_path):
    (tmp_path / "a.txt").write_text("zażółć", encoding="utf-8")
    source = text_windows(tmp_path / "a.txt", 5, tokens="characters")
    assert source.vocabulary == ("a", "z", "ó", "ć", "ł", "ż")
    numbers = source.read(np.array([0]))["tokens"][0].tolist()
    assert "".join(source.vocabulary[number] for number in numbers) == "zażółć"
    assert write_data(source, tmp_path).vocabulary == source.vocabulary
    again = text_windows(tmp_path / "a.txt", 5, tokens="characters", vocabulary="zażółć!")
    assert again.read(np.array([0]))["tokens"][0].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(JobError, match=r"a\.txt has the character 'ż', which is not in"):
        text_windows(tmp_path / "a.txt", 5, tokens="characters", vocabulary="za")


def test_many_characters_have_larger_numbers(tmp_path):
    (tmp_path / "a.txt").write_text("".join(map(chr, range(1000, 1400))), encoding="utf-8")
    source = text_windows(tmp_path / "a.txt", 399, tokens="characters")
    assert source.read(np.array([0]))["tokens"][0].tolist() == list(range(400))
    assert source.fields[0].dtype == "int16"


def test_tokens_of_the_users_own_are_cut_too(tmp_path):
    np.save(tmp_path / "tokens.npy", np.arange(50_000, 50_011, dtype=np.int32))
    source = TokenWindows(np.load(tmp_path / "tokens.npy", mmap_mode="r"), 5)
    assert source.read(np.array([1]))["tokens"].tolist() == [list(range(50_005, 50_011))]


def test_the_next_token_is_what_is_to_be_learnt():
    given, wanted = next_token()
    column = TokenWindows(np.arange(20, dtype=np.uint8), 8).fields[0]
    for spec in (given, wanted):
        after = transformed(column, spec.transforms)
        assert (after.dtype, after.shape) == ("int64", (8,))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda folder: text_windows(folder / "a.txt", 99), "3 tokens, and a window of length 99"),
        (lambda folder: text_windows(folder / "empty.txt", 2), "the text is empty"),
        (lambda folder: text_windows(folder / "sub", 2), "sub is empty"),
        (lambda folder: text_windows(folder / "md", 2), "neither a text.*it holds 1 .md"),
        (lambda folder: text_windows(folder / "none", 2), "none does not exist"),
        (
            lambda folder: text_windows(folder / "latin.txt", 2, tokens="characters"),
            r"latin\.txt is not UTF-8 text.*tokens='bytes'",
        ),
        (lambda folder: TokenWindows(np.zeros((3, 3)), 2), "one long row of whole numbers"),
        (lambda folder: TokenWindows(np.zeros(9, np.uint32), 2), "convert them to int32"),
        (lambda folder: TokenWindows(np.zeros(9, int), 2, stride=0), "expected numbers from 1"),
    ],
)
def test_text_that_cannot_be_cut_is_refused(tmp_path, make, complaint):
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes("naïve".encode("latin-1"))
    (tmp_path / "sub").mkdir()
    (tmp_path / "md").mkdir()
    (tmp_path / "md" / "a.md").write_text("abc")
    with pytest.raises(JobError, match=complaint):
        make(tmp_path)
