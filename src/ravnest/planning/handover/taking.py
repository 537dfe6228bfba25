"""The other side: a folder of unknown origin, checked until it may be planned from.

Everything is checked before anything is used, as a provider checks a stage package: files against
the card, the graph against the allow-list, and here also what planning takes for granted: the
outline, the names and the example against the graph. What is wrong is a `PackageError`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ravnest.errors import PackageError
from ravnest.planning.capture.call import Call
from ravnest.planning.handover.card import (
    ALWAYS,
    CARD,
    EXAMPLE,
    HANDOVER_FORMAT,
    INDEX,
    OUTLINE,
    SOMETIMES,
    Index,
    ModelCard,
    ModeOutline,
    Outline,
)
from ravnest.stage.checking import Limits, tensor_bytes
from ravnest.stage.files import check_file, read_document
from ravnest.stage.graph import FileEntry, ModeGraph, StageGraph, Wire
from ravnest.stage.operators import DTYPES, MODULE_CALL, dtype_name
from ravnest.stage.package import GRAPH, MANIFEST, WEIGHTS, StagePackage, load_package

_LONGEST_KEY = 1000


@dataclass(frozen=True)
class ModelLimits(Limits):
    """The most a handed over model may ask for."""

    example_bytes: int = 1 << 30
    names_of_a_tensor: int = 1024
    """In its state_dict. A layer that a model goes through again and again has as many."""
    repetition: int = 32
    """How many times the bytes of its tensors a state_dict may have when every name counts, as in
    the file that fusion writes,"""
    repeated_bytes: int = 64 << 20
    """and so many bytes more."""


@dataclass(frozen=True)
class TakenModel:
    """A folder in which everything fits together."""

    card: ModelCard
    package: StagePackage
    outline: Outline
    index: Index
    call: Call
    """The example batch; on the meta device if it came without values."""

    @property
    def graph(self) -> StageGraph:
        return self.package.graph

    @property
    def weights_file(self) -> Path | None:
        listed = {entry.name for entry in self.package.manifest.files}
        return self.package.directory / WEIGHTS if WEIGHTS in listed else None


def take_model(folder: Path, limits: ModelLimits | None = None) -> TakenModel:
    """Read and check a folder that `write_model` has written, or that claims so."""
    folder = Path(folder)
    limits = limits or ModelLimits()
    try:
        return _take(folder, limits)
    except PackageError as error:
        raise PackageError(f"model {folder}: {error}") from error.__cause__
    except OSError as error:
        raise PackageError(f"model {folder} cannot be read: {error}") from error


def _take(folder: Path, limits: ModelLimits) -> TakenModel:
    card = read_document(
        folder / CARD, ModelCard, format=HANDOVER_FORMAT, limit=limits.manifest_bytes
    )
    entries = _entries(card)
    check_file(folder / MANIFEST, entries[MANIFEST], limits.manifest_bytes)
    package = load_package(folder, limits)
    _check_package(package, entries)
    form, limit = HANDOVER_FORMAT, limits.graph_bytes
    outline = read_document(
        folder / OUTLINE, Outline, format=form, limit=limit, entry=entries[OUTLINE]
    )
    index = read_document(folder / INDEX, Index, format=form, limit=limit, entry=entries[INDEX])
    _check_outline(package.graph, outline)
    _check_names(package.graph, outline, index)
    _check_repetition(package.graph, index, limits)
    call = _call(folder, card, entries.get(EXAMPLE), package.graph, limits)
    _check_inputs(package.graph, outline, call)
    return TakenModel(card, package, outline, index, call)


def _entries(card: ModelCard) -> dict[str, FileEntry]:
    entries = {entry.name: entry for entry in card.files}
    known = {*ALWAYS, *SOMETIMES}
    if unknown := entries.keys() - known:
        raise PackageError(f"{CARD} lists {min(unknown)[:100]!r}, which no model has")
    if missing := set(ALWAYS) - entries.keys():
        raise PackageError(f"{CARD} does not list {min(missing)}")
    if len(entries) != len(card.files):
        raise PackageError(f"{CARD} lists a file twice")
    return entries


def _check_package(package: StagePackage, entries: dict[str, FileEntry]) -> None:
    """One stage that is the whole model, made of operators, and the files that the card means."""
    graph, listed = package.graph, {entry.name: entry for entry in package.manifest.files}
    if graph.stages != 1:
        raise PackageError(f"it is stage {graph.stage} of {graph.stages}, not a whole model")
    if not any(spec.trainable for spec in graph.tensors) or not graph.train.operations:
        raise PackageError("it has nothing to train")
    for name in (GRAPH, WEIGHTS):
        if listed.get(name) != entries.get(name):
            raise PackageError(f"{CARD} and {MANIFEST} speak of different files {name}")
    for part in (graph.train, graph.eval):
        if any(operation.op == MODULE_CALL for operation in part.operations):
            raise PackageError("it runs modules of its owner's program, which is not here")


def _check_outline(graph: StageGraph, outline: Outline) -> None:
    modes: tuple[tuple[ModeGraph, ModeOutline], ...] = (
        (graph.train, outline.train),
        (graph.eval, outline.eval),
    )
    for part, told in modes:
        if {len(part.operations)} != {len(told.paths), len(told.regions)}:
            raise PackageError(f"{OUTLINE} and {GRAPH} have different numbers of operators")
        if any(path >= len(outline.paths) for path in told.paths):
            raise PackageError(f"{OUTLINE} names a module that it does not list")
        if len(told.open) != len(graph.inputs):
            raise PackageError(f"{OUTLINE} and {GRAPH} have different numbers of inputs")
    if (graph.static_batch is None) != (outline.train.dynamic and outline.eval.dynamic):
        raise PackageError(f"{OUTLINE} and {GRAPH} disagree on whether batches have a fixed size")
    if outline.measured:
        _check_measured(graph, outline)


def _check_measured(graph: StageGraph, outline: Outline) -> None:
    if len(outline.measured) != len(graph.train.operations):
        raise PackageError(f"{OUTLINE} has measured another number of operators than there are")
    for operation, measured in zip(graph.train.operations, outline.measured, strict=True):
        arguments = [*operation.args, *operation.kwargs.values()]
        references = sum(map(_count_references, arguments))
        if any(place >= references for place in measured.kept_arguments):
            raise PackageError(f"{OUTLINE} has measured arguments of value {operation.out}")


def _count_references(argument: object) -> int:
    if isinstance(argument, list):
        return sum(map(_count_references, argument))
    return int(isinstance(argument, dict) and not argument.keys().isdisjoint(("v", "t")))


def _check_names(graph: StageGraph, outline: Outline, index: Index) -> None:
    named = {spec.name for spec in graph.tensors if spec.kind != "constant"}
    names = dict(outline.names)
    if len(names) != len(outline.names):
        raise PackageError(f"{OUTLINE} lists a tensor's name twice")
    if set(names.values()) != named or any(names.get(name) != name for name in named):
        wrong = sorted(named ^ set(names.values())) or sorted(named)
        raise PackageError(f"{OUTLINE} and {GRAPH} have different tensors, e.g. {wrong[0][:100]!r}")
    keys = [entry.key for entry in index.state]
    if len(set(keys)) != len(keys) or any(len(key) > _LONGEST_KEY for key in keys):
        raise PackageError(f"{INDEX} has a key twice, or one that is too long")
    if unknown := {entry.tensor for entry in index.state} - named:
        raise PackageError(f"{INDEX} has an unknown tensor {min(unknown)[:100]!r}")


def _check_repetition(graph: StageGraph, index: Index, limits: ModelLimits) -> None:
    """A few bytes of names must not become a file that fills a disk."""
    sizes = {spec.name: tensor_bytes(spec) for spec in graph.tensors}
    names = Counter(entry.tensor for entry in index.state)
    for tensor, count in names.most_common(1):
        if count > limits.names_of_a_tensor:
            raise PackageError(
                f"{INDEX} has {count} names for the tensor {tensor[:100]!r}, more than the "
                f"{limits.names_of_a_tensor} allowed"
            )
    total = sum(sizes[tensor] * count for tensor, count in names.items())
    most = limits.repetition * sum(sizes.values()) + limits.repeated_bytes
    if total > most:
        raise PackageError(
            f"{INDEX} names the same tensors so often that their {sum(sizes.values())} bytes would "
            f"be {total}, more than the {most} allowed; keep what is shared under fewer names"
        )


def _call(
    folder: Path, card: ModelCard, entry: FileEntry | None, graph: StageGraph, limits: ModelLimits
) -> Call:
    total = 0
    for leaf in card.example:
        if leaf.dtype not in DTYPES:
            raise PackageError(f"unknown dtype {leaf.dtype[:50]!r} in the example")
        size = DTYPES[leaf.dtype].itemsize
        for extent in leaf.shape:
            size = min(size * extent, 1 << 60)
        total += size
    if total > limits.example_bytes:
        raise PackageError(f"an example of {total} bytes, more than {limits.example_bytes} allowed")
    if entry is None:
        leaves = [
            torch.empty(leaf.shape, dtype=DTYPES[leaf.dtype], device="meta")
            for leaf in card.example
        ]
    else:
        check_file(folder / EXAMPLE, entry, limits.example_bytes + limits.manifest_bytes)
        leaves = _leaves(folder / EXAMPLE, card)
    return Call(graph.arguments, tuple(leaves), card.batch_size)


def _leaves(path: Path, card: ModelCard) -> list[torch.Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            names = [f"leaf_{number}" for number in range(len(card.example))]
            if set(file.keys()) != set(names):
                raise PackageError(f"{EXAMPLE} does not hold the {len(names)} tensors of the card")
            leaves = [file.get_tensor(name).clone() for name in names]
    except SafetensorError as error:
        raise PackageError(f"{EXAMPLE} cannot be read: {error}") from error
    for leaf, told in zip(leaves, card.example, strict=True):
        if tuple(leaf.shape) != told.shape or dtype_name(leaf.dtype) != told.dtype:
            raise PackageError(f"{EXAMPLE} holds other tensors than the card says")
    return leaves


def _check_inputs(graph: StageGraph, outline: Outline, call: Call) -> None:
    """The example is one that the graph takes; leaf i is value i."""
    if [wire.value for wire in graph.inputs] != list(range(len(call.leaves))):
        raise PackageError(f"{len(call.leaves)} tensors in the example do not fit the inputs")
    captured = call.with_several_rows()
    if graph.static_batch not in (None, captured.batch_size):
        raise PackageError(f"the batch size is fixed to {graph.static_batch}, not the example's")
    for number, (wire, leaf) in enumerate(zip(graph.inputs, captured.leaves, strict=True)):
        if not _fits(wire, leaf, outline.train.open[number]):
            raise PackageError(f"tensor {number} of the example does not fit the graph")
        follows = outline.train.open[number] or outline.eval.open[number]
        if follows and not captured.is_batched(leaf):
            raise PackageError(f"tensor {number} of the example has no rows to follow")


def _fits(wire: Wire, leaf: torch.Tensor, is_open: bool) -> bool:
    shape: Sequence[int] = tuple(leaf.shape)
    if is_open:
        shape = (-1, *shape[1:])
    return wire.dtype == dtype_name(leaf.dtype) and tuple(wire.shape) == tuple(shape)
