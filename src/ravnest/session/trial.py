"""A few rows through the captured model and the loss, before anything is sent anywhere.

What does not fit together is found here in a second, instead of on somebody else's machine in half
an hour. What is tried is the package that will be sent, not the requester's own code.
"""

import logging
import math
from pathlib import Path
from typing import Any

import torch

from ravnest.api.jobs import DataSpec, InputSpec, Recipe, TrainingSpec
from ravnest.api.work import DataPart, RowRange
from ravnest.data.batches import Batches, Reading
from ravnest.data.reading import PartReader
from ravnest.errors import InputError, JobError, RavnestError
from ravnest.planning.figures import plain, quantity
from ravnest.recipes.checking import arguments_of, check_recipe, model_inputs
from ravnest.recipes.criterion import build_criterion, target_name
from ravnest.recipes.losses import LOSSES, named_loss
from ravnest.recipes.metrics import build_metrics
from ravnest.recipes.outputs import class_axis, output_at
from ravnest.recipes.parameters import Values
from ravnest.stage.graph import StageGraph
from ravnest.stage.local import LocalPipeline
from ravnest.stage.package import load_package

logger = logging.getLogger("ravnest.session")

ROWS = 8
"""Enough to see whether rows are rows, few enough for any machine that could capture the model."""
_ALL_TARGETS_BYTES = 256 << 20
"""Targets up to this size are all looked at."""


def try_recipe(
    model: Path,
    folder: Path,
    data: DataSpec,
    recipe: Recipe,
    training: TrainingSpec,
    *,
    validation: DataSpec | None = None,
) -> None:
    """`JobError` that says what does not fit. `folder` is where the files of the data are."""
    check_recipe(recipe, data)
    package = load_package(model)
    graph = package.graph
    names = [argument.name for argument in graph.arguments]
    model_inputs(recipe, data, names)
    _check_rows(graph, data, training)
    rows = graph.static_batch or min(ROWS, training.batch_size, data.rows)
    part = _whole(data, folder)
    parts = (
        {"": part} if validation is None else {"": part, "validation: ": _whole(validation, folder)}
    )
    arguments = dict(zip(arguments_of(recipe, names), recipe.inputs, strict=True))
    targets = {target_name(n): loss.target for n, loss in enumerate(recipe.losses)}
    how = Reading(batch_size=rows, seed=training.seed, shuffle=False)
    batch = next(iter(Batches(part, {**arguments, **targets}, how)))
    pipeline = LocalPipeline([package.module()])
    pipeline.train()
    criterion = build_criterion(recipe)
    kwargs = {name: batch[name] for name in arguments}

    def judged(outputs: Any) -> torch.Tensor:
        for where, each in parts.items():
            _check_classes(recipe, each, outputs, where)
        found: torch.Tensor = criterion(outputs, batch)
        return found

    try:
        loss, outputs = pipeline.step(((), kwargs), judged)
        for name, metric in build_metrics(recipe).items():
            with torch.no_grad():
                _tried(f"the metric {name!r}", metric, outputs, batch)
    except InputError as error:
        raise JobError(f"the data does not suit the model: {error}") from error
    except RavnestError:
        raise
    except Exception as error:  # whatever torch thinks of shapes that do not fit
        raise JobError(f"the model or the loss fails on the first rows: {_first(error)}") from error
    if not math.isfinite(float(loss)):
        raise JobError(
            f"the loss of the first {rows} rows is {float(loss)}: are there numbers in the data "
            "that are none, or far too large ones?"
        )
    logger.info("tried %s: the loss is %s", quantity(rows, "row"), plain(float(loss), 4))


def _whole(data: DataSpec, folder: Path) -> PartReader:
    return PartReader(DataPart(data=data, range=RowRange(first=0, rows=data.rows)), folder)


def _tried(what: str, function: Any, *args: Any) -> None:
    try:
        function(*args)
    except RavnestError:
        raise
    except Exception as error:
        raise JobError(f"{what} fails on the first rows: {_first(error)}") from error


def _first(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line[:300]}"


def _check_rows(graph: StageGraph, data: DataSpec, training: TrainingSpec) -> None:
    fixed = graph.static_batch
    if fixed is not None and training.batch_size != fixed:
        raise JobError(
            f"this model takes batches of exactly {quantity(fixed, 'row')}, as it was captured; "
            f"batch_size is {training.batch_size}: use batch_size={fixed}, or capture it with "
            "another example"
        )
    if data.rows < training.batch_size and fixed is not None:
        raise JobError(f"there are {quantity(data.rows, 'row')} of data, and a batch has {fixed}")
    least, rest = graph.train.least_rows, data.rows % training.batch_size
    if fixed is not None and rest:
        least = fixed
    if 0 < rest < least:
        logger.warning(
            "the last batch of an epoch would have %d of the %d rows that this model needs at "
            "least; leave some rows out, or choose another batch_size",
            rest,
            least,
        )


def _check_classes(recipe: Recipe, part: PartReader, outputs: Any, where: str) -> None:
    """The number of a class that the model does not have would end a run, however late it comes."""
    for spec in recipe.losses:
        values = LOSSES.values(named_loss(spec))
        size = part.rows * math.prod(part.fields[spec.target.field].shape) * 8
        if "class_axis" in values and "ignore_index" in values and size <= _ALL_TARGETS_BYTES:
            scores = output_at(outputs, spec.output)
            try:
                _check_targets(spec.target, part, scores, values)
            except JobError as error:
                raise JobError(f"{where}{error}") from None


def _check_targets(spec: InputSpec, part: PartReader, scores: Any, values: Values) -> None:
    for batch in Batches(part, {"target": spec}, Reading(batch_size=4096, shuffle=False)):
        target = batch["target"]
        if target.is_floating_point():
            if target.ndim == scores.ndim - 1:
                dtype = str(target.dtype).removeprefix("torch.")
                raise JobError(
                    f"the field {spec.field!r} holds {dtype}; class numbers must be whole: give "
                    f"{spec.field}.long()"
                )
            return  # shares of every class
        target = target.long()  # a small type cannot be compared with many classes
        shape = (scores.shape[0], *target.shape[1:])
        classes = scores.shape[class_axis(scores, shape, values["class_axis"])]
        wrong = ((target < 0) | (target >= classes)) & (target != values["ignore_index"])
        if bool(wrong.any()):
            raise JobError(
                f"the field {spec.field!r} has the class {int(target[wrong][0])}, and the model "
                f"gives scores for {classes} of them, 0 to {classes - 1}"
            )
