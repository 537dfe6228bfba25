"""A recipe is judged against a dataset, and against the arguments of a model."""

import pytest
from samples_of_recipes import column, dataset, loss, named, recipe

from ravnest.api.jobs import InputSpec, Recipe
from ravnest.errors import JobError
from ravnest.recipes.checking import (
    arguments_of,
    check_recipe,
    input_fields,
    model_inputs,
    target_fields,
)

DATA = dataset(column("image", "uint8", 3, 8, 8), column("label", "int64"), column("mask", "bool"))


def of(*losses, **more):
    return recipe(*(losses or (loss(target="label"),)), **{"inputs": ("image",), **more})


def test_a_recipe_that_makes_sense_passes():
    check_recipe(
        of(
            optimizer=named("adamw", lr=1e-3),
            schedule=named("cosine"),
            metrics=(named("accuracy"),),
        ),
        DATA,
    )


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (of(inputs=("images",)), r"inputs\[0\]: the dataset has no field 'images'; did you mean"),
        (of(loss(target="labels")), r"losses\[0\].target: the dataset has no field 'labels'"),
        (of(loss("crossentropy", "label")), r"losses\[0\]: there is no loss 'crossentropy'"),
        (of(loss("nll", "mask")), r"losses\[0\]: the loss 'nll' needs whole numbers"),
        (of(loss("kl_div", "label")), "needs fractions as targets; 'label' is int64"),
        (of(loss("cross_entropy", "mask")), "cannot compare with 'mask', a bool"),
        (of(loss(target="label", times=0.0)), "all losses of the recipe have the weight 0"),
        (of(optimizer=named("adm")), "optimizer: there is no optimizer 'adm'; did you mean"),
        (of(schedule=named("step")), "schedule: the schedule 'step' needs the parameter"),
        (
            of(loss(target="label", transforms=(named("cast"),))),
            r"losses\[0\].target.transforms\[0\]: the transform 'cast' needs",
        ),
    ],
)
def test_a_recipe_that_does_not_is_refused_with_the_place(wrong, complaint):
    with pytest.raises(JobError, match=complaint):
        check_recipe(wrong, DATA)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (dataset(column("x"), column("x")), "two fields 'x'"),
        (dataset(column("x", "complex64")), "'x' has the type 'complex64'"),
        (dataset(column("x", "object")), "'x' has the type 'object'"),
    ],
)
def test_a_dataset_that_cannot_be_is_refused(data, complaint):
    with pytest.raises(JobError, match=complaint):
        check_recipe(recipe(), data)


def test_a_shard_has_one_file_for_each_field():
    from msgspec.structs import replace

    short = replace(DATA.shards[0], files=DATA.shards[0].files[:2])
    with pytest.raises(JobError, match="shard 0 of the dataset has 2 files for 3 fields"):
        check_recipe(of(), replace(DATA, shards=(short,)))


def with_arguments(*arguments):
    inputs = tuple(InputSpec(field="image", argument=name) for name in arguments)
    return Recipe(inputs=inputs, losses=(loss(),), optimizer=named("sgd"))


def test_inputs_are_arguments_by_name_or_the_next_one_by_position():
    names = ("pixels", "size", "mask")
    assert arguments_of(with_arguments("_", "_", "_"), names) == names
    assert arguments_of(with_arguments("_", "pixels", "_"), names) == ("size", "pixels", "mask")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (("pixel",), "the model has no input 'pixel'; did you mean 'pixels'"),
        (("_", "_", "_"), "the recipe has 3 inputs, and the model takes 2: pixels, mask"),
        (("_",), "gives nothing for the model's input 'mask'"),
    ],
)
def test_inputs_that_do_not_suit_the_model_are_refused(given, complaint):
    with pytest.raises(JobError, match=complaint):
        arguments_of(with_arguments(*given), ("pixels", "mask"))


def test_what_reaches_the_model_is_known_before_there_is_data():
    inputs = (
        InputSpec(field="image", transforms=(named("scale", factor=1 / 255), named("flatten"))),
    )
    made = Recipe(inputs=inputs, losses=(loss(target="label"),), optimizer=named("sgd"))
    (found,) = model_inputs(made, DATA, ("x",)).values()
    assert (found.dtype, found.shape) == ("float32", (192,))
    assert (input_fields(made), target_fields(made)) == (("image",), ("label",))
