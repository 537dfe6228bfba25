"""A `Study` of a model that was handed over: the same as its owner's, without the owner's code."""

from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from ravnest.errors import PackageError
from ravnest.planning.capture.program import HeldTensor, Program
from ravnest.planning.capture.surroundings import as_in_training
from ravnest.planning.costing.profile import OpCost, profile
from ravnest.planning.cutting.analysis import Facts
from ravnest.planning.handover.rebuilding import rebuild_program
from ravnest.planning.handover.received import ReceivedModel
from ravnest.planning.handover.taking import ModelLimits, TakenModel, take_model
from ravnest.planning.study import Captured, Study, Told, conclude
from ravnest.stage.files import plain_file
from ravnest.stage.graph import Mode
from ravnest.stage.operators import DTYPES
from ravnest.stage.package import check_tensor, load_weights

Tensors = dict[str, torch.Tensor]


@as_in_training()
def study_package(
    folder: Path, limits: ModelLimits | None = None, *, weights: Path | None = None
) -> Study:
    """Check and understand the model in a folder that `write_model` has written.

    `weights` is a safetensors file with the keys of the model's state_dict, such as fusion writes,
    to start from instead of what the model came with. Weights stay in their files until they are
    read, so the files must not change while the study is in use.
    Raises `PackageError` if anything in the folder is not as it should be; then nothing of it has
    been run.
    """
    folder, limits = Path(folder), limits or ModelLimits()
    taken = take_model(folder, limits)
    try:
        tensors = _own_weights(taken)
        if weights is not None:
            tensors |= _other_weights(taken, Path(weights), limits)
        return _study(taken, tensors)
    except PackageError as error:
        raise PackageError(f"model {folder}: {error}") from error.__cause__


def _study(taken: TakenModel, tensors: Tensors) -> Study:
    outline = taken.outline
    model = ReceivedModel(taken.graph, tensors, outline.names)
    held = _held(taken, model)
    train, evaluation = _program(taken, "train", held), _program(taken, "eval", held)

    def price(facts: Facts) -> list[OpCost]:
        if outline.measured:
            return [OpCost(**msgspec.structs.asdict(measured)) for measured in outline.measured]
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


def _program(taken: TakenModel, mode: Mode, held: dict[str, HeldTensor]) -> Program:
    outline = taken.outline.train if mode == "train" else taken.outline.eval
    call = taken.call.with_several_rows()
    try:
        return rebuild_program(taken.graph, mode, call, held, outline, taken.outline.paths)
    except PackageError as error:
        raise PackageError(f"{mode} graph: {error}") from error.__cause__


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
