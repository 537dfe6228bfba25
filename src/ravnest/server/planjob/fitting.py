"""Whether a dataset suits a model: its columns the inputs, its targets what comes out.

Found out without a single number: the model runs on tensors that have only a shape and a type.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ravnest.api.jobs import DataSpec, FieldSpec, Recipe
from ravnest.errors import JobError
from ravnest.recipes.checking import model_inputs, prepared
from ravnest.recipes.losses import LOSSES, named_loss
from ravnest.recipes.outputs import output_at
from ravnest.stage.graph import Argument, StageGraph, Wire
from ravnest.stage.module import StageModule
from ravnest.stage.operators import DTYPES
from ravnest.stage.structure import rebuild, result_values

_NOWHERE = "meta"


def check_inputs(recipe: Recipe, data: DataSpec, graph: StageGraph) -> None:
    """`JobError` if a column is of another type or shape than the input that it is for."""
    names = [argument.name for argument in graph.arguments]
    given = model_inputs(recipe, data, names)
    wires = {wire.value: wire for wire in graph.inputs}
    for argument in graph.arguments:
        leaves = result_values(argument.structure)
        wire = wires.get(leaves[0]) if len(leaves) == 1 else None
        if wire is not None and wire.dtype is not None:
            _check_input(argument, wire, given[argument.name])


def _check_input(argument: Argument, wire: Wire, column: FieldSpec) -> None:
    if column.dtype != wire.dtype:
        raise JobError(
            f"the model's input {argument.name!r} is {wire.dtype}, and the field {column.name!r} "
            f"gives {column.dtype} (there is a transform: cast)"
        )
    wanted = wire.shape[1:]
    fits = len(column.shape) == len(wanted) and all(
        size in (-1, own) for own, size in zip(column.shape, wanted, strict=True)
    )
    if wire.shape[:1] == (-1,) and not fits:
        raise JobError(
            f"the model's input {argument.name!r} takes rows of shape {list(wanted)}, and the "
            f"field {column.name!r} gives {list(column.shape)} (there are transforms: reshape, …)"
        )


def check_losses(
    recipe: Recipe, datasets: Sequence[DataSpec], graph: StageGraph, rows: int
) -> None:
    """`JobError` if a loss cannot compare what the model makes with its target in one of these."""
    rows = graph.static_batch or rows
    outputs = _outputs(graph, rows)
    if outputs is None:
        return
    for data in datasets:
        _check_losses(recipe, data, outputs, rows)


def _check_losses(recipe: Recipe, data: DataSpec, outputs: Any, rows: int) -> None:
    for number, loss in enumerate(recipe.losses):
        where = f"losses[{number}]"
        target = prepared(loss.target, data, f"{where}.target")
        total = LOSSES[loss.name].build(LOSSES.values(named_loss(loss), where)).total
        try:
            total(output_at(outputs, loss.output), _empty((-1, *target.shape), target.dtype, rows))
        except JobError as error:
            raise JobError(f"{where}, {loss.name!r} with {target.name!r}: {error}") from None
        except Exception:
            continue  # what torch says about empty tensors may be about their emptiness


def _outputs(graph: StageGraph, rows: int) -> Any:
    """What the model makes of a batch; None if that takes numbers."""
    try:
        weights = {spec.name: _empty(spec.shape, spec.dtype, rows) for spec in graph.tensors}
        stage = StageModule(graph, weights, _NOWHERE)
        stage.train()
        inputs: Mapping[int, Any] = {
            wire.value: _empty(wire.shape, wire.dtype or "float32", rows) for wire in graph.inputs
        }
        with torch.no_grad():
            results = stage(*inputs.values())
        values = {**inputs, **dict(zip(stage.returns("train"), results, strict=True))}
        return rebuild(graph.train.result, values.__getitem__)
    except Exception:
        return None


def _empty(shape: tuple[int, ...], dtype: str, rows: int) -> torch.Tensor:
    sizes = [rows if size == -1 else size for size in shape]
    return torch.empty(sizes, dtype=DTYPES[dtype], device=_NOWHERE)
