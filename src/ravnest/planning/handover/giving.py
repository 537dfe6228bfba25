"""The owner's side: a studied model written as files that say everything and run nothing.

The graph is read back from its files and compared with the model itself before the folder is put
in place. Whoever plans from the folder compares the cut stages with the graph; so what trains in
the end has been compared with the model, step by step.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from ravnest.errors import CaptureError, PackageError
from ravnest.planning.capture.program import Program, is_open
from ravnest.planning.capture.surroundings import as_in_training
from ravnest.planning.capture.tensors import held_tensors
from ravnest.planning.handover.card import (
    CARD,
    EXAMPLE,
    HANDOVER_FORMAT,
    INDEX,
    OUTLINE,
    Index,
    Leaf,
    Measured,
    ModelCard,
    ModeOutline,
    Outline,
)
from ravnest.planning.rowwise import why_rows_mix
from ravnest.planning.selfcheck import OneRowError, SelfCheck
from ravnest.planning.state import model_index
from ravnest.planning.study import Study
from ravnest.planning.weights import FromModel, WeightSource
from ravnest.stage.files import entry_of
from ravnest.stage.graph import MODES, FileEntry
from ravnest.stage.operators import dtype_name
from ravnest.stage.package import load_package, write_package

_PLAN_ID = "handover"
_LONGEST = 4000


@as_in_training()
def write_model(
    folder: Path,
    studied: Study,
    *,
    name: str | None = None,
    weights: WeightSource | None = None,
    check: bool = True,
) -> ModelCard:
    """Write the model into `folder`, which must not exist yet; it appears there complete.

    `weights` is for a model on the meta device; without it such a model is handed over as a graph
    only. `check=False` leaves out the comparison with the model, which takes another copy of it.
    Raises `CaptureError` if the model cannot be handed over, or not without a wrong result.
    """
    folder = Path(folder)
    if folder.exists():
        raise PackageError(f"{folder} exists already: name a folder that does not, or remove it")
    _refuse_code(studied)
    folder.parent.mkdir(parents=True, exist_ok=True)
    pending = Path(tempfile.mkdtemp(prefix=".handover-", dir=folder.parent))
    source = weights or (FromModel(studied) if studied.has_weights else None)
    checked = check and studied.has_weights
    try:
        draft = pending / "model"
        if checked:
            notes = _write_compared(draft, studied, source)
        else:
            notes = _write_uncompared(draft, studied, source)
        card = _write_rest(draft, studied, name or studied.name, checked=checked, notes=notes)
        os.replace(draft, folder)
    finally:
        shutil.rmtree(pending, ignore_errors=True)
    return card


def model_files(folder: Path, card: ModelCard) -> list[FileEntry]:
    """Everything that has to be handed over, the card included."""
    return [entry_of(Path(folder) / CARD), *card.files]


def _refuse_code(studied: Study) -> None:
    if studied.is_chain:
        why = next((text for text in studied.warnings if "graph cannot be captured" in text), "")
        raise CaptureError(
            f"{studied.name} cannot be handed over as data: it can only be {why or 'cut as code'} "
            "Change the model as it says there, or plan it with clusterize and start the "
            "providers with a script of your own that builds the model."
        )


def _write_compared(draft: Path, studied: Study, source: WeightSource | None) -> list[str]:
    """The package of the whole model, equal to the model; returns what is to be said about it."""
    notes: list[str] = []
    while True:
        _write_package(draft, studied, source)
        try:
            SelfCheck(studied)([load_package(draft).module()])
            return notes
        except OneRowError as error:
            studied.needs_two_rows(error.mode)
            mode = "evaluation" if error.mode == "eval" else "training"
            notes.append(f"{error}; batches of one row are refused in {mode}")
            shutil.rmtree(draft)


def _write_uncompared(draft: Path, studied: Study, source: WeightSource | None) -> list[str]:
    for mode in MODES:
        studied.needs_two_rows(mode)
    _write_package(draft, studied, source)
    return [f"what was handed over was not compared with {studied.name} itself"]


def _write_package(draft: Path, studied: Study, source: WeightSource | None) -> None:
    (graph,) = studied.stages(())
    tensors = None if source is None else source.read(graph.tensors)
    write_package(draft, graph, tensors, plan_id=_PLAN_ID, cluster=0)


def _write_rest(
    draft: Path, studied: Study, name: str, *, checked: bool, notes: Sequence[str]
) -> ModelCard:
    index = model_index(studied, _PLAN_ID)
    _write_json(
        draft / INDEX, Index(format=HANDOVER_FORMAT, state=index.state, versions=index.versions)
    )
    _write_json(draft / OUTLINE, _outline(studied))
    leaves = studied.call.leaves
    if not any(leaf.is_meta for leaf in leaves):
        # Copies: leaves may be views of one tensor, which safetensors refuses.
        values = [torch.clone(leaf, memory_format=torch.contiguous_format) for leaf in leaves]
        save_file({f"leaf_{i}": value.cpu() for i, value in enumerate(values)}, draft / EXAMPLE)
    parameters = [held.tensor for held in studied.held.values() if held.kind == "parameter"]
    card = ModelCard(
        format=HANDOVER_FORMAT,
        name=name[:200],
        class_name=studied.name[:200],
        parameters=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=studied.parameter_bytes,
        batch_size=studied.call.batch_size,
        example=tuple(Leaf(dtype=dtype_name(x.dtype), shape=tuple(x.shape)) for x in leaves),
        rows_mix=why_rows_mix(studied)[:_LONGEST],
        checked=checked,
        warnings=tuple(text[:_LONGEST] for text in (*studied.warnings, *notes)),
        files=tuple(entry_of(path) for path in sorted(draft.iterdir())),
    )
    _write_json(draft / CARD, card)
    return card


def _outline(studied: Study) -> Outline:
    programs = (studied.train, studied.evaluation)
    paths = list(dict.fromkeys(op.path for program in programs for op in program.ops))
    number = {path: place for place, path in enumerate(paths)}
    return Outline(
        format=HANDOVER_FORMAT,
        paths=tuple(paths),
        train=_mode_outline(studied.train, number),
        eval=_mode_outline(studied.evaluation, number),
        names=tuple((name, held.name) for name, held in held_tensors(studied.model).items()),
        measured=tuple(Measured(**asdict(cost)) for cost in studied.measured),
    )


def _mode_outline(program: Program, number: Mapping[str, int]) -> ModeOutline:
    return ModeOutline(
        paths=tuple(number[op.path] for op in program.ops),
        regions=tuple(op.region or 0 for op in program.ops),
        open=tuple(leaf.dim() > 0 and is_open(leaf.shape[0]) for leaf in program.inputs),
        dynamic=program.dynamic,
    )


def _write_json(path: Path, document: msgspec.Struct) -> None:
    path.write_bytes(msgspec.json.encode(document))
