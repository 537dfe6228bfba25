"""A `Study` of a model that was handed over: the same as its owner's, without the owner's code."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ravnest.errors import PackageError
from ravnest.planning.capture.call import Call
from ravnest.planning.capture.program import HeldTensor, Program
from ravnest.planning.capture.surroundings import as_in_training
from ravnest.planning.costing.profile import OpCost, profile
from ravnest.planning.cutting.analysis import Facts
from ravnest.planning.handover.card import Measured
from ravnest.planning.handover.rebuilding import rebuild_program
from ravnest.planning.handover.received import ReceivedModel
from ravnest.planning.handover.taking import ModelLimits, TakenModel, take_model
from ravnest.planning.study import Captured, Study, Told, conclude
from ravnest.stage.files import plain_file
from ravnest.stage.graph import MODES, Mode
from ravnest.stage.operators import DTYPES
from ravnest.stage.package import check_tensor, load_weights

Tensors = dict[str, torch.Tensor]


@as_in_training()
def study_package(
    folder: Path,
    limits: ModelLimits | None = None,
    *,
    weights: Path | None = None,
    rows: int | None = None,
) -> Study:
    """Check and understand the model in a folder that `write_model` has written.

    `weights` is a safetensors file with the keys of the model's state_dict, such as fusion writes,
    to start from instead of what the model came with. Weights stay in their files until they are
    read, so the files must not change while the study is in use. `rows` is the batch size that the
    costs are to be for, where the model takes others than its example's.
    Raises `PackageError` if anything in the folder is not as it should be; then nothing of it has
    been run.
    """
    folder, limits = Path(folder), limits or ModelLimits()
    taken = take_model(folder, limits)
    try:
        return _study(taken, weights_of(taken, weights, limits), rows)
    except PackageError as error:
        raise PackageError(f"model {folder}: {error}") from error.__cause__


def _study(taken: TakenModel, tensors: Tensors, rows: int | None) -> Study:
    outline = taken.outline
    call = _with_rows(taken, rows)
    model = ReceivedModel(taken.graph, tensors, outline.names)
    held = _held(taken, model)
    train, evaluation = (_program(taken, mode, held, call) for mode in MODES)

    def price(facts: Facts) -> list[OpCost]:
        if outline.measured:
            more = train.batch_size / taken.call.with_several_rows().batch_size
            return [_measured_cost(measured, more) for measured in outline.measured]
        return profile(train, gradients=facts.differentiable, foreign=True)

    captured = Captured(
        model=model,
        name=taken.card.class_name,
        call=taken.call,
        train=train,
        evaluation=evaluation,
        warnings=taken.card.warnings,
        told=Told(taken.index.state, taken.index.versions, taken.card.rows_mix),
    )
    return conclude(captured, price, measured=bool(outline.measured))


def _held(taken: TakenModel, model: ReceivedModel) -> dict[str, HeldTensor]:
    """In the order of the original model, on which the order of its stages' tensors rests."""
    tensors = model.tensors()
    specs = {spec.name: spec for spec in taken.graph.tensors}
    order = dict.fromkeys((*(first for _, first in taken.outline.names), *specs))
    return {
        name: HeldTensor(name, specs[name].kind, tensors[name], specs[name].trainable)
        for name in order
    }


def _with_rows(taken: TakenModel, rows: int | None) -> Call:
    """The call as it was captured, with another number of rows where both modes take it. The
    sizes of what follows the rows are not taken from its tensors."""
    call = taken.call.with_several_rows()
    limits = [taken.graph.mode(mode) for mode in MODES]
    fits = rows is not None and all(
        rows >= limit.least_rows and (limit.most_rows is None or rows <= limit.most_rows)
        for limit in limits
    )
    if rows is None or rows < 2 or taken.graph.static_batch is not None or not fits:
        return call
    return replace(call, batch_size=rows)


def _measured_cost(measured: Measured, more: float) -> OpCost:
    """Of a batch that is so many times the measured one."""
    return OpCost(
        forward_flops=round(measured.forward_flops * more),
        backward_flops=round(measured.backward_flops * more),
        seconds=measured.seconds * more,
        forward_s=measured.forward_s * more,
        kept_arguments=measured.kept_arguments,
        keeps_result=measured.keeps_result,
        kept_bytes=round(measured.kept_bytes * more),
        working_bytes=round(measured.working_bytes * more),
        calls=measured.calls,
    )


def _program(taken: TakenModel, mode: Mode, held: dict[str, HeldTensor], call: Call) -> Program:
    outline = taken.outline.train if mode == "train" else taken.outline.eval
    try:
        return rebuild_program(taken.graph, mode, call, held, outline, taken.outline.paths)
    except PackageError as error:
        raise PackageError(f"{mode} graph: {error}") from error.__cause__


def weights_of(
    taken: TakenModel, path: Path | None = None, limits: ModelLimits | None = None
) -> Tensors:
    """All tensors of a model: those it came with, or of a state_dict that was saved at `path`."""
    tensors = _own_weights(taken)
    if path is not None:
        tensors |= _other_weights(taken, Path(path), limits or ModelLimits())
    return tensors


def _own_weights(taken: TakenModel) -> Tensors:
    """What the model came with; without values if it came without."""
    if taken.weights_file is not None:
        return load_weights(taken.weights_file, taken.graph, mapped=True)
    return {
        spec.name: torch.empty(spec.shape, dtype=DTYPES[spec.dtype], device="meta")
        for spec in taken.graph.tensors
    }


def _other_weights(taken: TakenModel, path: Path, limits: ModelLimits) -> Tensors:
    """The tensors of a state_dict, every one of them; tied keys have equal values."""
    specs = {spec.name: spec for spec in taken.graph.tensors}
    try:
        if plain_file(path) > limits.weight_bytes:
            raise PackageError(f"it is larger than the {limits.weight_bytes} bytes allowed")
        with safe_open(path, framework="pt") as file:
            keys, known = set(file.keys()), {entry.key for entry in taken.index.state}
            if unknown := keys - known:
                raise PackageError(f"the model's state_dict has no key {min(unknown)[:100]!r}")
            if missing := known - keys:
                raise PackageError(f"the key {min(missing)[:100]!r} is missing")
            found: Tensors = {}
            for entry in taken.index.state:
                tensor = file.get_tensor(entry.key)
                check_tensor(tensor, specs[entry.tensor])
                if not torch.equal(found.setdefault(entry.tensor, tensor), tensor):
                    raise PackageError(f"{entry.key[:100]!r} differs from what it is tied to")
            return found
    except PackageError as error:
        raise PackageError(f"weights {path}: {error}") from error.__cause__
    except (SafetensorError, OSError) as error:
        raise PackageError(f"weights {path} cannot be read: {error}") from error
