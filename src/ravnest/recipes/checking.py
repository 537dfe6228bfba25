"""Whether a recipe makes sense for a dataset, before anything is trained with it. No torch here."""

from collections.abc import Sequence

from ravnest.api.jobs import DataSpec, FieldSpec, InputSpec, Recipe
from ravnest.errors import JobError
from ravnest.recipes.kinds import SIZES
from ravnest.recipes.losses import LOSSES, check_target, named_loss
from ravnest.recipes.metrics import check_metrics
from ravnest.recipes.optimizers import OPTIMIZERS
from ravnest.recipes.parameters import probably
from ravnest.recipes.schedules import SCHEDULES
from ravnest.recipes.transforms import transformed

NEXT = "_"
"""The argument that is the next one by position."""


def check_recipe(recipe: Recipe, data: DataSpec) -> None:
    """`JobError` that names the part of the recipe, the value and the remedy."""
    check_columns(data)
    for number, spec in enumerate(recipe.inputs):
        prepared(spec, data, f"inputs[{number}]")
    named = [spec.argument for spec in recipe.inputs if spec.argument != NEXT]
    if twice := {name for name in named if named.count(name) > 1}:
        raise JobError(f"two inputs of the recipe are for the argument {min(twice)!r}")
    targets = []
    for number, loss in enumerate(recipe.losses):
        where = f"losses[{number}]"
        LOSSES.values(named_loss(loss), where)
        targets.append(target := prepared(loss.target, data, f"{where}.target"))
        try:
            check_target(loss, target)
        except JobError as error:
            raise JobError(f"{where}: {error}") from None
    if not any(loss.weight for loss in recipe.losses):
        raise JobError("all losses of the recipe have the weight 0: nothing would be learnt")
    OPTIMIZERS.values(recipe.optimizer, "optimizer")
    if recipe.schedule is not None:
        SCHEDULES.values(recipe.schedule, "schedule")
    check_metrics(recipe, targets[0])


def check_columns(data: DataSpec) -> None:
    """What a DataSpec must be besides its types: columns with names and types of their own."""
    names = [column.name for column in data.fields]
    if twice := {name for name in names if names.count(name) > 1}:
        raise JobError(f"the dataset has two fields {min(twice)!r}")
    for column in data.fields:
        if column.dtype not in SIZES:
            raise JobError(
                f"the field {column.name!r} has the type {column.dtype!r}"
                f"{probably(column.dtype, SIZES)}"
            )
    for number, shard in enumerate(data.shards):
        if len(shard.files) != len(names):
            raise JobError(
                f"shard {number} of the dataset has {len(shard.files)} files for {len(names)} "
                "fields: it must have one for each"
            )


def field_named(data: DataSpec, name: str, where: str = "") -> FieldSpec:
    for column in data.fields:
        if column.name == name:
            return column
    known = [column.name for column in data.fields]
    begin = f"{where}: " if where else ""
    raise JobError(f"{begin}the dataset has no field {name!r}{probably(name, known)}")


def prepared(spec: InputSpec, data: DataSpec, where: str = "") -> FieldSpec:
    """The column as it comes out of its transforms."""
    column = field_named(data, spec.field, where)
    return transformed(column, spec.transforms, f"{where}." if where else "")


def arguments_of(recipe: Recipe, names: Sequence[str]) -> tuple[str, ...]:
    """Which argument of the model each input of the recipe is; `names` are all it has, in order."""
    given = {spec.argument for spec in recipe.inputs} - {NEXT}
    if unknown := given - set(names):
        name = min(unknown)
        raise JobError(f"the model has no input {name!r}{probably(name, names)}")
    free = iter([name for name in names if name not in given])
    found = []
    for spec in recipe.inputs:
        argument = next(free, None) if spec.argument == NEXT else spec.argument
        if argument is None:
            raise JobError(
                f"the recipe has {len(recipe.inputs)} inputs, and the model takes {len(names)}: "
                f"{', '.join(names)}"
            )
        found.append(argument)
    if missing := set(names) - set(found):
        raise JobError(f"the recipe gives nothing for the model's input {min(missing)!r}")
    return tuple(found)


def model_inputs(recipe: Recipe, data: DataSpec, names: Sequence[str]) -> dict[str, FieldSpec]:
    """Every argument of the model, as the recipe makes it of the dataset."""
    arguments = arguments_of(recipe, names)
    return {
        argument: prepared(spec, data, f"inputs[{number}]")
        for number, (argument, spec) in enumerate(zip(arguments, recipe.inputs, strict=True))
    }


def input_fields(recipe: Recipe) -> tuple[str, ...]:
    """Fields that the Root of a cluster needs."""
    return tuple(dict.fromkeys(spec.field for spec in recipe.inputs))


def target_fields(recipe: Recipe) -> tuple[str, ...]:
    """Fields that the Leaf of a cluster needs."""
    return tuple(dict.fromkeys(loss.target.field for loss in recipe.losses))
