"""Is a stage graph, read from a file of unknown origin, one that may be built and run?

Each field alone has been checked by its type when it was decoded (graph.py). Here the parts are
checked against each other: every number refers to something that exists, every operator is allowed
and gets arguments that it can take, every wire leads from an earlier stage to a later one.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ravnest.errors import PackageError
from ravnest.stage import structure
from ravnest.stage.argument_rules import is_size
from ravnest.stage.gradients import check_gradient, values_of
from ravnest.stage.graph import (
    GRAPH_FORMAT,
    Context,
    Mode,
    ModeGraph,
    Operation,
    StageGraph,
    TensorSpec,
    Wire,
)
from ravnest.stage.operators import DTYPES, GRADIENT, MODULE_CALL, decode
from ravnest.stage.signatures import check_call

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Limits:
    """The most a package may ask for; a provider lowers these to what it is willing to lend."""

    manifest_bytes: int = 1 << 20
    graph_bytes: int = 64 << 20
    weight_bytes: int = 1 << 42
    operations: int = 200_000
    arguments: int = 2_000_000
    """Numbers, texts and references over all operators of one mode."""
    values: int = 200_000
    """Inputs, received, sent and returned values of one mode."""
    tensors: int = 100_000
    stages: int = 10_000
    constant_elements: int = 1 << 32
    """Of a tensor that one operator makes from sizes written in the graph. A plain lie is found
    here; what grows while the stage runs is a matter for the memory limit of its process."""


def check_graph(graph: StageGraph, limits: Limits) -> None:
    """Refuse a graph that names anything not allowed or that does not hold together."""
    if graph.format != GRAPH_FORMAT:
        raise PackageError(f"graph format {graph.format} is unknown, not {GRAPH_FORMAT}")
    if not 1 <= graph.stages <= limits.stages or not graph.stage < graph.stages:
        raise PackageError(f"stage {graph.stage} of {graph.stages} does not exist")
    if graph.static_batch == 0:
        raise PackageError("the graph was captured for a batch of 0")
    _check_tensors(graph, limits)
    for context in graph.contexts:
        _check_context(context)
    _check_arguments(graph, limits)
    modes: tuple[Mode, Mode] = ("train", "eval")
    for mode in modes:
        try:
            _check_mode(graph, graph.mode(mode), limits)
        except PackageError as error:
            raise PackageError(f"{mode} graph: {error}") from error.__cause__


def _check_count(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise PackageError(f"{count} {what} are more than the {limit} allowed")


def _check_tensors(graph: StageGraph, limits: Limits) -> None:
    _check_count("tensors", len(graph.tensors), limits.tensors)
    if len({spec.name for spec in graph.tensors}) != len(graph.tensors):
        raise PackageError("a tensor is listed twice")
    total = 0
    for spec in graph.tensors:
        total += tensor_bytes(spec)
        if spec.trainable and (spec.kind != "parameter" or not _is_differentiable(spec.dtype)):
            raise PackageError(f"{spec.kind} {spec.name[:100]!r} cannot be trainable")
        least = {"matrix": 2, "stack": 3}.get(spec.hidden or "no", 0)
        if len(spec.shape) < least or (least and not spec.trainable):
            raise PackageError(f"{spec.kind} {spec.name[:100]!r} cannot be a hidden {spec.hidden}")
        if spec.stages and (graph.stage not in spec.stages or max(spec.stages) >= graph.stages):
            raise PackageError(f"tensor {spec.name[:100]!r} is held by {spec.stages[:10]}")
    _check_count("bytes of tensors", total, limits.weight_bytes)


def tensor_bytes(spec: TensorSpec) -> int:
    if not is_size(spec.shape):
        raise PackageError(f"tensor {spec.name[:100]!r} has an impossible shape")
    return DTYPES[_known_dtype(spec.dtype)].itemsize * math.prod(spec.shape)


def _known_dtype(name: str) -> str:
    if name not in DTYPES:
        raise PackageError(f"unknown dtype {name[:50]!r}")
    return name


def _is_differentiable(dtype: str) -> bool:
    found = DTYPES[_known_dtype(dtype)]
    return found.is_floating_point or found.is_complex


def _check_context(context: Context) -> None:
    dtype = context.autocast_dtype
    if (dtype is None) != (context.autocast_enabled is None):
        raise PackageError("an autocast context lacks its dtype or its state")
    if dtype is not None:
        _known_dtype(dtype)


def _check_arguments(graph: StageGraph, limits: Limits) -> None:
    """The user's call, described on stage 0, fills each input exactly once."""
    if not graph.is_first and (graph.arguments or graph.inputs):
        raise PackageError("only the first stage takes the model's inputs")
    if graph.is_first and (graph.train.receives or graph.eval.receives):
        raise PackageError("the first stage receives nothing but the model's inputs")
    _check_count("inputs", len(graph.inputs), limits.values)
    _check_wires(graph, graph.inputs, lambda stage: stage == 0)
    if any(wire.dtype is None for wire in graph.inputs):
        raise PackageError("an input that is not a tensor")
    if len({argument.name for argument in graph.arguments}) != len(graph.arguments):
        raise PackageError("an argument is listed twice")
    leaves: list[int] = []
    for argument in graph.arguments:
        structure.check(argument.structure, leaves.append)
    if sorted(leaves) != sorted(wire.value for wire in graph.inputs):
        raise PackageError("the arguments and the inputs speak of different values")


def _check_mode(graph: StageGraph, part: ModeGraph, limits: Limits) -> None:
    _check_count("operators", len(part.operations), limits.operations)
    _check_count("values received", len(part.receives), limits.values)
    _check_count("values sent", len(part.sends), limits.values)
    _check_wires(graph, part.receives, lambda stage: stage < graph.stage)
    _check_wires(graph, part.sends, lambda stage: stage > graph.stage)
    if any(len(wire.stages) != 1 for wire in part.receives):
        raise PackageError("a value is received from several stages or from none")
    known = {wire.value for wire in (graph.inputs if graph.is_first else part.receives)}
    _check_operations(graph, part.operations, known, limits)
    returned = [wire.value for wire in part.sends] + _result_leaves(graph, part, limits)
    if missing := set(returned) - known:
        raise PackageError(f"value {min(missing)} is handed on but never computed")


def _result_leaves(graph: StageGraph, part: ModeGraph, limits: Limits) -> list[int]:
    if graph.is_last != (part.result is not None):
        raise PackageError("the last stage, and no other, has the model's result")
    leaves: list[int] = []
    if part.result is not None:
        structure.check(part.result, leaves.append)
    _check_count("values returned", len(leaves), limits.values)
    return leaves


def _check_wires(graph: StageGraph, wires: Iterable[Wire], right: Callable[[int], bool]) -> None:
    seen: set[int] = set()
    for wire in wires:
        if wire.value in seen:
            raise PackageError(f"value {wire.value} is listed twice")
        seen.add(wire.value)
        if not wire.stages or len(set(wire.stages)) != len(wire.stages):
            raise PackageError(f"value {wire.value} travels nowhere or twice to one stage")
        if not all(stage < graph.stages and right(stage) for stage in wire.stages):
            raise PackageError(f"value {wire.value} travels the wrong way: {wire.stages[:10]}")
        if wire.dtype is None and (wire.shape or wire.grad):
            raise PackageError(f"value {wire.value} is a number and has a shape or a gradient")
        if wire.dtype is not None and wire.grad > _is_differentiable(wire.dtype):
            raise PackageError(f"value {wire.value} of type {wire.dtype} cannot have a gradient")


def _check_operations(
    graph: StageGraph, operations: Iterable[Operation], known: set[int], limits: Limits
) -> None:
    def reference(tag: str, number: int) -> None:
        if tag == "v" and number not in known:
            raise PackageError(f"value {number} is used before it exists")
        if tag == "t" and not 0 <= number < len(graph.tensors):
            raise PackageError(f"tensor {number} does not exist in this stage")

    arguments = 0
    for operation in operations:
        for argument in values_of(operation):
            decode(argument, _CPU, reference)
            arguments += _count_leaves(argument)
        if operation.op == GRADIENT:
            inner = check_gradient(operation, limits.constant_elements)
            arguments += sum(1 + _count_leaves(argument) for argument in inner)
        _check_count("arguments", arguments, limits.arguments)
        if operation.op == MODULE_CALL:
            _check_module_call(operation)
        elif operation.op == GRADIENT:
            pass
        else:
            check_call(operation.op, operation.args, operation.kwargs, limits.constant_elements)
        if operation.context is not None and operation.context >= len(graph.contexts):
            raise PackageError(f"context {operation.context} does not exist in this stage")
        if operation.out in known:
            raise PackageError(f"value {operation.out} is defined twice")
        known.add(operation.out)


def _count_leaves(argument: Any) -> int:
    if isinstance(argument, list):
        return 1 + sum(map(_count_leaves, argument))
    return 1


def _check_module_call(operation: Operation) -> None:
    path = operation.kwargs.get("path")
    if not isinstance(path, str) or not path or len(operation.args) != 1:
        raise PackageError(f"a call of module {str(path)[:100]!r} is malformed")
    if operation.context is not None:
        raise PackageError(f"module {path[:100]!r} is called in a context")
    if operation.kwargs.keys() - {"path", "tensors"}:
        raise PackageError(f"module {path[:100]!r} is called with unknown keywords")
