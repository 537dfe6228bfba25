"""May a batch be divided into micro-batches? Only if no row's result depends on another row.

Then the parts of a batch add up to the batch: one update from their gradients is the update that
the whole batch would have made. BatchNorm, for one, looks at all rows; so does whatever counts its
calls in a buffer. Rather than read this off operators nobody has seen before, the model is asked:
change one row of the example, and see whether the others' results change.
"""

from collections.abc import Sequence

import torch

from ravnest.planning.capture.borrowing import switched_to, unchanged, values_restored
from ravnest.planning.capture.call import Call
from ravnest.planning.capture.program import is_open
from ravnest.planning.capture.surroundings import as_in_training
from ravnest.planning.costing.costs import Division
from ravnest.planning.cutting.staging import common_rows
from ravnest.planning.study import Study
from ravnest.stage import structure

_SEED = 2025
_ROWS = 4
_TOLERANCE = 1e-4
"""Relative; kernels may add up in another order, rows that mix differ by far more."""


@as_in_training()
def why_rows_mix(study: Study) -> str:
    """Why the model's batches must stay whole; "" if they may be divided."""
    train = study.train
    least, most = common_rows(train, study.evaluation)
    if least == most or not (train.dynamic and study.evaluation.dynamic):
        return "its batches have a fixed number of rows"
    if train.written:
        return f"its forward writes to {min(train.written)}, once for every call"
    rows = max(_ROWS, least)
    if most is not None and rows + 1 > most:
        return f"it takes no more than {most} rows"
    if study.told is not None:  # it was tried where its code was
        return study.told.rows_mix
    if not study.has_weights:
        return "its weights are not in memory, so that it could not be tried"
    try:
        return _try(study, rows)
    except Exception as error:  # whatever the model thinks of inputs that it was not made for
        return f"it could not be tried with changed rows ({type(error).__name__})"


def division_of(study: Study, parts_asked: int | None, *, undivided: bool) -> Division:
    return Division(
        batch_rows=study.train.batch_size,
        least_rows=None if undivided else study.train.rows[0],
        parts_asked=parts_asked,
    )


def _try(study: Study, rows: int) -> str:
    call = study.call.resized(rows)
    batched = [bool(leaf.dim()) and is_open(leaf.shape[0]) for leaf in study.train.inputs]
    changed = _first_row_changed(call, batched)
    if changed is None:
        return (
            "its example rows are all alike, so that it could not be tried (give real or random "
            "rows, not zeros)"
        )
    before, after = _outputs(study, call), _outputs(study, changed)
    longer = _outputs(study, study.call.resized(rows + 1))
    for one, other, more in zip(before, after, longer, strict=True):
        by_row = one.dim() > 0 and one.shape[0] == rows and more.shape[0] == rows + 1
        if not by_row or one.shape[1:] != more.shape[1:]:
            return "it has an output that is not one result per row"
        if not _agree(one[1:], other[1:]):
            return "the results of its rows depend on each other (as with BatchNorm)"
    return ""


def _first_row_changed(call: Call, batched: Sequence[bool]) -> Call | None:
    """The same call with what is in the second row, in reverse, as its first row."""
    leaves, differs = [], False
    for leaf, is_batched in zip(call.leaves, batched, strict=True):
        if is_batched:
            other = leaf[1].reshape(-1).flip(0).reshape(leaf[1].shape)
            differs = differs or not torch.equal(other, leaf[0])
            leaf = torch.cat((other[None], leaf[1:]))
        leaves.append(leaf)
    return Call(call.arguments, tuple(leaves), call.batch_size) if differs else None


def _outputs(study: Study, call: Call) -> list[torch.Tensor]:
    model = study.model
    args, kwargs = call.rebuild([leaf.clone() for leaf in call.leaves])
    found: list[torch.Tensor] = []
    with values_restored(model), unchanged(model), switched_to(model, "train"), torch.no_grad():
        torch.manual_seed(_SEED)
        structure.flatten(model(*args, **kwargs), found, "output")
    return found


def _agree(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.dtype.is_floating_point and not one.is_complex():
        return torch.equal(one, other)
    scale = float(one.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True)
