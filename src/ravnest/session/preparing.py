"""A request → everything that is sent: the model as data, rows as shards, the recipe by name."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from ravnest.api.jobs import FieldSpec, JobSpec, LossSpec, Named, Recipe, ScriptSpec
from ravnest.api.limits import FileRef, Name
from ravnest.client.http import hash_file
from ravnest.data.places import check_there
from ravnest.data.writing import write_data
from ravnest.errors import CaptureError, JobError
from ravnest.planning.handover.card import ModelCard
from ravnest.planning.handover.giving import model_files, write_model
from ravnest.planning.selfcheck import as_it_runs
from ravnest.planning.study import Study, study
from ravnest.planning.weights import FromFiles
from ravnest.session.columns import inputs_and_target, item, sources_of
from ravnest.session.names import loss_named, named, optimizer_named, schedule_named
from ravnest.session.request import JobRequest
from ravnest.session.trial import try_recipe
from ravnest.stage.graph import StageGraph
from ravnest.stage.package import load_package

logger = logging.getLogger("ravnest.session")

_CHECK_LIMIT = 2_000_000_000
"""Weights above this many bytes are not compared: it takes two copies of the model."""


@dataclass(frozen=True)
class Prepared:
    spec: JobSpec
    files: tuple[tuple[FileRef, Path], ...]


def prepare(request: JobRequest, folder: Path) -> Prepared:
    """Everything written to `folder`, and tried. Nothing leaves this machine here."""
    training, planning = request.training(), request.planning()
    if request.start not in ("asked", "at once"):
        raise JobError(f"start is {request.start!r}; expected 'asked' or 'at once'")
    _check_name(request.name)
    for given in (request.data, request.validation):
        if isinstance(given, str | Path):
            check_there(Path(given))
    if request.script is None:
        # What is misspelled is found before the model is captured, which may take minutes.
        optimizer = optimizer_named(
            request.optimizer, request.optimizer_params, _module(request.model)
        )
        losses, schedule = _losses(request), schedule_named(request.schedule)
    model_folder = folder / "model"
    name, model = _write_model(request, model_folder)
    graph = load_package(model_folder).graph
    arguments = _arguments(graph)
    logger.info("packing the data …")
    train_source, validation_source = sources_of(request, arguments)
    train = write_data(train_source, folder, split="train", seed=training.seed)
    validation = None
    if validation_source is not None:
        validation = write_data(validation_source, folder, split="validation", shuffle=False)
    for what, written in (("data", train), ("validation", validation)):
        for one in written.not_finite if written is not None else ():
            logger.warning("%s: the field %r has %s", what, one.field, one)
    recipe = script = None
    files = [*model, *train.files(), *(validation.files() if validation else ())]
    if request.script is None:
        inputs, target = inputs_and_target(request, train.spec.fields, arguments)
        scores = _output(request, model_folder, "logits")
        recipe = Recipe(
            inputs=inputs,
            losses=tuple(
                _loss_spec(
                    loss,
                    given,
                    target,
                    _output(request, model_folder, "loss") if loss.name == "output" else scores,
                )
                for loss, given in losses
            ),
            optimizer=optimizer,
            schedule=schedule,
            schedule_per=request.schedule_per,
            metrics=tuple(named(one) for one in request.metrics or ()),
        )
        logger.info("trying a few rows …")
        judged_by = None if validation is None else validation.spec
        try_recipe(model_folder, folder, train.spec, recipe, training, validation=judged_by)
    else:
        script, path = _script(request)
        files.append((script.file, path))
    spec = _decoded(
        JobSpec(
            name=name,
            model=tuple(ref for ref, _ in model),
            train=train.spec,
            validation=None if validation is None else validation.spec,
            recipe=recipe,
            script=script,
            training=training,
            planning=planning,
            legend=train.legend,
            start=request.start,
        )
    )
    return Prepared(spec, tuple({ref.sha256: (ref, path) for ref, path in files}.values()))


def _check_name(name: Any) -> None:
    try:
        msgspec.convert(name, Name | None)
    except msgspec.ValidationError:
        raise JobError(
            f"name is {name!r:.200}; it must be 1 to 100 letters, digits, spaces and _.:+/@()-, "
            "and begin with a letter, a digit or _"
        ) from None


# ---- the model ----


def _module(model: Any) -> Any:
    return model if isinstance(model, torch.nn.Module) else None


def _write_model(request: JobRequest, folder: Path) -> tuple[str, list[tuple[FileRef, Path]]]:
    """Its name, and what it consists of."""
    logger.info("capturing %s …", type(request.model).__name__)
    given = request.example_args
    args = given if isinstance(given, tuple | list) else (given,)
    studied = study(request.model, args, request.example_kwargs, pass_data=request.pass_data)
    check = studied.parameter_bytes <= _CHECK_LIMIT

    def written(studied: Study) -> ModelCard:
        weights = _weights(request, studied)
        return write_model(folder, studied, name=request.name, weights=weights, check=check)

    card = as_it_runs(studied, written)
    for warning in card.warnings:
        logger.warning(warning)
    return card.name, [
        (FileRef(path=one.name, sha256=one.sha256, size=one.size), folder / one.name)
        for one in model_files(folder, card)
    ]


def _weights(request: JobRequest, studied: Study) -> FromFiles | None:
    if request.weights is not None:
        return FromFiles(Path(request.weights), studied)
    if not studied.has_weights:
        raise CaptureError(
            "the model is on the meta device and has no weights: give weights=…, the path of a "
            "safetensors file or of a folder of them"
        )
    return None


def _arguments(graph: StageGraph) -> list[FieldSpec]:
    """What the model takes, as columns would have to be."""
    wires = {wire.value: wire for wire in graph.inputs}
    found = []
    for argument in graph.arguments:
        place = argument.structure.get("leaf") if isinstance(argument.structure, dict) else None
        wire = wires.get(place) if isinstance(place, int) else None
        if wire is None or wire.dtype is None:
            raise JobError(
                f"the model's argument {argument.name!r} is no single tensor; columns of a dataset "
                "can only be single tensors. Wrap the model in a module whose forward takes "
                "tensors, and put constants into that"
            )
        shape = tuple(max(0, size) for size in wire.shape[1:])
        found.append(FieldSpec(name=argument.name, dtype=wire.dtype, shape=shape))
    return found


def _output(request: JobRequest, model: Path, usual: str) -> tuple[str | int, ...]:
    """Where scores or loss are in what the model returns: as said, or a single tensor, or under
    their usual name."""
    given = request.output
    path = tuple(given) if isinstance(given, tuple | list) else (given,)
    if path:
        return path
    package = load_package(model)
    result = package.graph.mode("train").result
    if isinstance(result, dict) and "leaf" in result:
        return ()
    fields = dict(result.get("fields") or result.get("dict") or ()) if result else {}
    return (usual,) if usual in fields else ()


# ---- the recipe ----


def _losses(request: JobRequest) -> list[tuple[Named, dict[str, Any]]]:
    """Each with what else was said about it: target, output, weight."""
    given = request.loss if isinstance(request.loss, list) else [request.loss]
    found = []
    for one in given:
        more = {}
        if isinstance(one, dict):
            more = {key: one[key] for key in ("target", "output", "weight") if key in one}
            one = {key: value for key, value in one.items() if key not in more}
        found.append((loss_named(one), more))
    return found


def _loss_spec(
    loss: Named, more: dict[str, Any], target: Any, output: Sequence[str | int]
) -> LossSpec:
    said = more.get("output", output)
    return LossSpec(
        name=loss.name,
        params=loss.params,
        output=tuple(said) if isinstance(said, tuple | list) else (said,),
        target=item(more["target"]) if "target" in more else target,
        weight=float(more.get("weight", 1.0)),
    )


def _script(request: JobRequest) -> tuple[ScriptSpec, Path]:
    path = Path(request.script or "")
    if not path.is_file():
        raise JobError(f"script={str(path)!r}: there is no such file")
    sha256, size = hash_file(path)
    file = FileRef(path="script.py", sha256=sha256, size=size)
    return ScriptSpec(file=file, arguments=tuple(request.script_arguments)), path


def _decoded(spec: JobSpec) -> JobSpec:
    """As the server will read it: limits hold for what is decoded, not for what is made here."""
    try:
        return msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec)
    except (msgspec.ValidationError, ValueError) as error:
        raise JobError(f"the job cannot be handed over: {error}") from error
