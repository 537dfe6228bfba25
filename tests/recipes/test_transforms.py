"""Transforms do what they say they will do to a column, the same on every machine."""

import numpy as np
import pytest
import torch
from samples_of_recipes import column, named

from ravnest.errors import JobError
from ravnest.recipes.changes import Draw
from ravnest.recipes.randomness import fractions, order
from ravnest.recipes.transforms import TRANSFORMS, build_transforms, transformed

ROWS = 6
DRAW = Draw(np.arange(ROWS), seed=1, epoch=0)
IMAGES = torch.randint(0, 256, (ROWS, 3, 8, 10), dtype=torch.uint8)
EXAMPLES = [
    (named("cast", dtype="int64"), IMAGES),
    (named("scale", factor=0.5, offset=1), IMAGES),
    (named("normalize", mean=[1, 2, 3], std=[2.0]), IMAGES),
    (named("normalize", mean=0.5, std=2), torch.randn(ROWS)),
    (named("clamp", low=10, high=20), IMAGES),
    (named("one_hot", classes=256), IMAGES[:, 0, 0]),
    (named("slice", stop=-1), IMAGES),
    (named("slice", start=1, axis=0), IMAGES),
    (named("reshape", shape=[3, -1]), IMAGES),
    (named("reshape", shape=[]), IMAGES[:, :1, 0, 0]),
    (named("flatten"), IMAGES),
    (named("permute", axes=[1, 2, 0]), IMAGES),
    (named("random_flip"), IMAGES),
    (named("random_crop", size=[4, 5], padding=1), IMAGES),
]


def apply(values, *transforms, draw=DRAW):
    return build_transforms(transforms)(values, draw)


@pytest.mark.parametrize(("transform", "values"), EXAMPLES)
@pytest.mark.parametrize("training", [True, False])
def test_a_batch_becomes_what_its_column_is_said_to_become(transform, values, training):
    dtype = str(values.dtype).removeprefix("torch.")
    expected = transformed(column("x", dtype, *values.shape[1:]), [transform])
    found = apply(values, transform, draw=DRAW._replace(training=training))
    assert tuple(found.shape) == (ROWS, *expected.shape)
    assert str(found.dtype) == f"torch.{expected.dtype}"


def test_every_transform_has_an_example():
    assert {transform.name for transform, _ in EXAMPLES} == set(TRANSFORMS)


def test_numbers_are_what_they_should_be():
    found = apply(IMAGES, named("scale", factor=1 / 255), named("normalize", mean=0.5, std=0.25))
    torch.testing.assert_close(found, (IMAGES.float() / 255 - 0.5) / 0.25)
    by_channel = apply(IMAGES, named("normalize", mean=[1, 2, 3], std=[1, 2, 4]))
    torch.testing.assert_close(by_channel[:, 2], (IMAGES[:, 2].float() - 3) / 4)
    words = torch.arange(12).reshape(ROWS, 2)
    torch.testing.assert_close(apply(words, named("slice", start=1)), words[:, 1:])
    assert apply(words, named("one_hot", classes=12)).argmax(-1).equal(words)


def test_flips_follow_from_seed_epoch_and_row_and_from_nothing_else():
    flip = named("random_flip")
    whole = apply(IMAGES, flip)
    flipped = [not row.equal(image) for row, image in zip(whole, IMAGES, strict=True)]
    assert any(flipped)
    assert not all(flipped)
    some = [4, 1]
    assert apply(IMAGES[some], flip, draw=DRAW._replace(rows=np.array(some))).equal(whole[some])
    epochs = {
        tuple(apply(IMAGES, flip, draw=DRAW._replace(epoch=epoch)).flatten().tolist())
        for epoch in range(5)
    }
    assert len(epochs) > 1
    assert apply(IMAGES, flip, draw=DRAW._replace(training=False)).equal(IMAGES)


def test_an_image_and_its_mask_are_changed_together():
    mask = IMAGES[:, :1] > 100
    same = [named("random_crop", size=6, padding=2), named("random_flip")]
    image = apply(IMAGES, named("scale"), *same)
    assert apply(mask.to(torch.uint8), *same).bool().equal(image[:, :1] > 100)


def test_crops_differ_and_validation_takes_the_middle():
    crop = named("random_crop", size=4)
    numbers = torch.arange(80).reshape(1, 1, 8, 10).expand(ROWS, 1, 8, 10)
    assert len(set(apply(numbers, crop)[:, 0, 0, 0].tolist())) > 2
    middle = apply(numbers, crop, draw=DRAW._replace(training=False))
    assert middle[:, 0, 0, 0].tolist() == [23] * ROWS


@pytest.mark.parametrize(
    ("transforms", "of", "complaint"),
    [
        ([named("slise")], column("x"), r"transforms\[0\]: there is no transform 'slise'; did"),
        ([named("slice")], column("x"), r"transforms\[0\]: 'slice' cannot .* 'x', float32\[\]"),
        ([named("slice", start=9)], column("x", "int64", 5), "nothing is left of axis 0"),
        ([named("cast", dtype="complex64")], column("x"), "'dtype' .* expected one of 'float64'"),
        ([named("one_hot", classes=3)], column("x"), "it needs whole numbers, not float32"),
        (
            [named("flatten"), named("reshape", shape=[4, -1])],
            column("x", "float32", 2, 3),
            r"transforms\[1\]: 'reshape' cannot .* shape \[6\] does not fill \(4, -1\)",
        ),
        ([named("permute", axes=[0, 0])], column("x", "int8", 2, 3), "each axis of the shape"),
        ([named("normalize", mean=[1, 2], std=1)], column("x", "uint8", 3, 4), "mean has 2"),
        ([named("random_crop", size=9)], column("x", "uint8", 3, 8, 8), "9 is more than the 8"),
        ([named("random_flip", axis=2)], column("x", "uint8", 3, 8), "axis is 2"),
        ([named("clamp", low=2, high=1)], column("x"), "low is above high"),
        # Of so many the server would make a product, for hours.
        ([named("reshape", shape=[2**62] * 33)], column("x"), "whole numbers from -1, at most 32"),
        ([named("permute", axes=[0] * 33)], column("x"), "whole numbers from 0, at most 32"),
        ([named("random_crop", size=[8] * 3)], column("x"), "whole numbers from 1, at most 2"),
    ],
)
def test_what_cannot_be_applied_is_refused_before_there_is_data(transforms, of, complaint):
    with pytest.raises(JobError, match=complaint):
        transformed(of, transforms)


def test_numbers_without_a_class_are_refused():
    with pytest.raises(JobError, match=r"3 classes, and the data has other numbers too$"):
        apply(torch.arange(ROWS), named("one_hot", classes=3))


def test_an_order_is_a_permutation_that_no_library_can_change():
    assert order(8, 42, 0, 0).tolist() == [6, 4, 7, 5, 0, 3, 1, 2]
    assert sorted(order(1000, 1, 2, 3)) == list(range(1000))
    assert order(1000, 1, 2, 3).tolist() != order(1000, 1, 3, 3).tolist()
    spread = fractions(np.arange(10_000), 5)
    assert 0.0 <= spread.min() < 0.001 < 0.999 < spread.max() < 1.0
    assert abs(spread.mean() - 0.5) < 0.01
