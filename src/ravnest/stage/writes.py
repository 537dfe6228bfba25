"""What operators do to memory that is not their own: which arguments they write to, and whose
memory their results show. Schemas tell, and what is known of operators whose schemas keep quiet.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch._ops import OpOverload

from ravnest.stage.arithmetic import ARITHMETIC
from ravnest.stage.graph import ModeGraph, Operation
from ravnest.stage.operators import GRADIENT, MODULE_CALL, tensor_operator

Reference = tuple[str, int]
"""("v", 17) is a value, ("t", 3) a tensor of the stage."""

_MAY_RETURN_ITS_INPUT = {
    "aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout",
    "aten::type_as", "aten::broadcast_tensors", "aten::atleast_1d", "aten::atleast_2d",
    "aten::atleast_3d", "aten::meshgrid", "aten::einsum", "aten::sum_to_size",
    "aten::cartesian_prod",
}  # fmt: skip
"""Operators whose schema does not admit that their result can share memory with an argument."""

_STATISTICS = "running_"
"""Arguments of normalisations that are updated where one of these others is not false: nor do their
schemas admit that."""
_UPDATES_STATISTICS = ("training", "use_input_stats")


def written(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Arguments whose memory the operator may change."""
    found = list(_arguments(operator, args, kwargs))
    flags = [given for described, given in found if described.name in _UPDATES_STATISTICS]
    updates = all(flag is not False for flag in flags)
    for described, given in found:
        writes = described.alias_info is not None and described.alias_info.is_write
        if writes or (updates and described.name.startswith(_STATISTICS)):
            yield given


def shown(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], *, certain: bool = False
) -> Iterator[Any]:
    """Arguments whose memory the operator's result may show; only those of which its schema says
    so, if it is to be `certain`."""
    unsaid = not certain and operator._schema.name in _MAY_RETURN_ITS_INPUT
    for described, given in _arguments(operator, args, kwargs):
        if described.alias_info is not None or unsaid:
            yield given


def _arguments(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    for position, described in enumerate(operator._schema.arguments):
        yield described, args[position] if position < len(args) else kwargs.get(described.name)


def written_in(graph: ModeGraph) -> set[Reference]:
    """Values and tensors whose memory this part of a model may write to, directly or through what
    shows it."""
    sources: dict[Reference, set[Reference]] = {}
    found: set[Reference] = set()
    for operation in graph.operations:
        shows, writes = (_memory(given, sources) for given in _effects(operation))
        sources["v", operation.out] = {("v", operation.out)} | shows
        found |= writes
    return found


def _effects(operation: Operation) -> tuple[Any, Any]:
    """Arguments that the result may show, and those that are written to."""
    args, kwargs = operation.args, operation.kwargs
    if operation.op == MODULE_CALL:  # code of the user's own
        return args, args
    if operation.op == GRADIENT:
        return args[:1], ()
    if operation.op in ARITHMETIC:  # picks one of several views
        return args, ()
    operator = tensor_operator(operation.op)
    return list(shown(operator, args, kwargs)), list(written(operator, args, kwargs))


def _memory(given: Any, sources: Mapping[Reference, set[Reference]]) -> set[Reference]:
    """All that an argument, as it stands in a package, may show the memory of."""
    match given:
        case {"v": int(number)}:
            return sources.get(("v", number), {("v", number)})
        case {"t": int(number)}:
            return {("t", number)}
        case list() | tuple():
            return set[Reference]().union(*(_memory(item, sources) for item in given))
    return set()
