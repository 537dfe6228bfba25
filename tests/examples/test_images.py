"""examples/images: two networks of torchvision, and the data sets a user may have."""

import numpy as np
import pytest
import torch
from torchvision_shim import import_torchvision


def learns(example, *arguments):
    import_torchvision()
    images = example("images")
    images.plan("--quick", *arguments)
    run = images.train("--quick", *arguments, providers=2)
    assert run.last < 0.7 * run.first
    assert "accuracy through the providers: " in run.printed
    return images.fused("--quick", *arguments), run


def test_resnet50_learns(example):
    _, run = learns(example)
    (accuracy,) = run.figures(r"accuracy through the providers: ([\d.]+)%")
    assert accuracy > 50  # chance is 25


def test_inception_v3_learns_with_both_heads(example):
    """`fused` has seen that the auxiliary head, which evaluation does without, was trained too."""
    model, _ = learns(example, "--model", "inception_v3")
    assert isinstance(model(torch.randn(2, 3, 80, 80)), torch.Tensor)


def test_the_full_size_keeps_inceptions_own_auxiliary_head(example):
    import_torchvision()
    images = example("images")
    options = images.part("parse")(["--model", "inception_v3", "--size", "299"])
    model = images.part("make_model")(options, classes=3)
    logits, auxiliary = model(torch.randn(2, 3, 299, 299))
    assert logits.shape == auxiliary.shape == (2, 3)
    batch = (None, torch.tensor([0, 2]))
    cross_entropy = torch.nn.functional.cross_entropy
    expected = cross_entropy(logits, batch[1]) + 0.4 * cross_entropy(auxiliary, batch[1])
    outputs = model(torch.randn(2, 3, 299, 299))._replace(logits=logits, aux_logits=auxiliary)
    torch.testing.assert_close(images.part("criterion")(outputs, batch), expected)


def test_made_up_images_are_the_same_for_everybody_and_balanced(example):
    load = example("images").part("load")
    once, again = load(None, 16, 4, 40), load(None, 16, 4, 40)
    assert torch.equal(once.train.tensors[0], again.train.tensors[0])
    assert once.train.tensors[1].bincount().tolist() == [10, 10, 10, 10]
    assert len(once.test) == 10
    assert not torch.equal(once.train.tensors[0][0], once.train.tensors[0][4])


def write_cifar(folder, rows):
    """Files as they are published, but short; image k of a file is all of brightness k."""
    for number, name in enumerate(
        [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    ):
        records = np.zeros((rows, 3073), dtype=np.uint8)
        records[:, 0] = (np.arange(rows) + number) % 10
        records[:, 1:] = np.arange(rows, dtype=np.uint8)[:, None]
        records.tofile(folder / name)


def test_cifar_is_read_record_by_record(example, tmp_path):
    load = example("images").part("load")
    write_cifar(tmp_path, rows=7)
    found = load(tmp_path, 32, 0, 0)
    assert (len(found.train), len(found.test), found.classes) == (35, 7, 10)
    image, label = found.train[7 + 3]  # the fourth of the second file
    assert image.shape == (3, 32, 32)
    assert torch.allclose(image, torch.tensor(3 / 127.5 - 1))
    assert label == 4
    assert load(tmp_path, 48, 0, 0).test[6][0].shape == (3, 48, 48)
    fewer = load(tmp_path, 32, 0, 8)
    assert (len(fewer.train), len(fewer.test)) == (8, 2)


def test_cifar_colours_and_rows_are_in_their_places(example, tmp_path):
    load = example("images").part("load")
    write_cifar(tmp_path, rows=1)
    record = np.zeros(3073, dtype=np.uint8)
    record[1 + 1024 : 1 + 1024 + 32] = 255  # green, first row
    record.tofile(tmp_path / "test_batch.bin")
    image, _ = load(tmp_path, 32, 0, 0).test[0]
    assert (image == 1).nonzero().tolist() == [[1, 0, column] for column in range(32)]


def test_a_cut_off_cifar_file_is_refused(example, tmp_path):
    load = example("images").part("load")
    write_cifar(tmp_path, rows=2)
    (tmp_path / "test_batch.bin").write_bytes(b"\0" * 3000)
    with pytest.raises(SystemExit, match="records of 3073 bytes"):
        load(tmp_path, 32, 0, 0)


def test_a_folder_of_something_else_is_refused(example, tmp_path):
    with pytest.raises(SystemExit, match=r"neither data_batch_1\.bin"):
        example("images").part("load")(tmp_path, 32, 0, 0)


COLOURS = {"n02": (250, 10, 10), "n01": (10, 10, 250)}


def write_tiny_imagenet(folder):
    """Two classes of one colour each, in the folders of the archive; one image is grey."""
    image = pytest.importorskip("PIL.Image")
    (folder / "wnids.txt").write_text("\n".join(COLOURS) + "\n")
    for name, colour in COLOURS.items():
        place = folder / "train" / name / "images"
        place.mkdir(parents=True)
        for number in range(3):
            image.new("RGB", (64, 64), colour).save(place / f"{name}_{number}.JPEG", quality=95)
    place = folder / "val" / "images"
    place.mkdir(parents=True)
    image.new("RGB", (64, 64), COLOURS["n02"]).save(place / "val_0.JPEG")
    image.new("L", (64, 64), 255).save(place / "val_1.JPEG")
    lines = ["val_0.JPEG\tn02\t0\t0\t63\t63", "val_1.JPEG\tn01\t0\t0\t63\t63"]
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")


def test_tiny_imagenet_is_read_from_its_folders(example, tmp_path):
    load = example("images").part("load")
    write_tiny_imagenet(tmp_path)
    found = load(tmp_path, 64, 0, 0)
    assert (len(found.train), len(found.test), found.classes) == (6, 2, 2)
    for (image, label), name in zip(
        (found.train[k] for k in range(6)), ["n01"] * 3 + ["n02"] * 3, strict=True
    ):
        assert label == sorted(COLOURS).index(name)
        colour = torch.tensor(COLOURS[name]) / 127.5 - 1
        assert torch.allclose(image.mean((1, 2)), colour, atol=0.05)
    assert [int(found.test[k][1]) for k in range(2)] == [1, 0]
    grey, _ = found.test[1]
    assert grey.shape == (3, 64, 64)
    assert torch.allclose(grey, torch.tensor(1.0))
