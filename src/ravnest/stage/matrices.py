"""Which parameters of a model are hidden matrices, told by the operators that use them.

A hidden matrix is multiplied with what the model computes, and its product goes on to another
matrix. So a head, after which there is none, is not one; nor is what rows are looked up in
(embeddings, also where a head is tied to one), what is added (positions, biases) or scales (norms).
A stage by itself cannot tell what others do with a product, so the planner looks at the whole model
and notes it with each tensor. In older packages what is sent counts as going on to a matrix.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ravnest.stage.gradients import values_of
from ravnest.stage.graph import Operation, StageGraph, TensorSpec

_CONVOLUTIONS = frozenset(
    {
        *("conv1d", "conv2d", "conv3d", "convolution", "_convolution"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    }
)
_MULTIPLY = _CONVOLUTIONS | {
    *("linear", "addmm", "mm", "matmul", "bmm", "baddbmm", "addbmm", "einsum", "bilinear"),
    *("tensordot", "inner", "_grouped_mm", "grouped_mm", "lstm", "gru", "rnn_tanh", "rnn_relu"),
}
_LOOK_UP = frozenset({"embedding", "embedding_bag", "_embedding_bag", "index", "index_select"})

MATRIX, STACK = "matrix", "stack"
"""One matrix, with what is behind the first dimension in a row; or one for each first index."""


def hidden_matrices(graph: StageGraph) -> dict[str, str]:
    """Names of the trainable ones among its tensors; each is a MATRIX or a STACK of them."""
    if any(spec.hidden is not None for spec in graph.tensors):
        return {spec.name: spec.hidden for spec in graph.tensors if spec.hidden in (MATRIX, STACK)}
    uses = _Uses(graph)
    found: dict[str, str] = {}
    for number, name in uses.hidden.items():
        spec = graph.tensors[number]
        if number not in uses.looked_up and number not in uses.heads and _is_large(spec):
            is_stack = len(spec.shape) == 3 and name not in _CONVOLUTIONS
            found[spec.name] = STACK if is_stack else MATRIX
    return found


def noted(graph: StageGraph, kinds: Mapping[str, str]) -> StageGraph:
    """With what `hidden_matrices` has found in the whole model."""
    tensors = tuple(
        msgspec.structs.replace(spec, hidden=kinds.get(spec.name, "no")) if spec.trainable else spec
        for spec in graph.tensors
    )
    return msgspec.structs.replace(graph, tensors=tensors)


def _is_large(spec: TensorSpec) -> bool:
    """No vector in the shape of a matrix, and no kernel that treats each channel by itself."""
    return spec.trainable and len(spec.shape) >= 2 and min(spec.shape[:2]) > 1


class _Uses:
    """What is done with the tensors of a stage, by their place in its table."""

    def __init__(self, graph: StageGraph) -> None:
        self.looked_up: set[int] = set()
        self.hidden: dict[int, str] = {}
        """With the operator that multiplies by it."""
        self.heads: set[int] = set()
        self._made_of: dict[int, frozenset[int]] = {}
        """Values that are made of tensors of the table and nothing else, such as transposes."""
        operations = graph.train.operations
        multiplied = [self._multiplied(operation) for operation in operations]
        goes_on = {wire.value for wire in graph.train.sends}
        for operation, matrices in zip(reversed(operations), reversed(multiplied), strict=True):
            if matrices and operation.out not in goes_on:
                self.heads |= matrices
            elif matrices:
                self.hidden |= dict.fromkeys(matrices, _name(operation))
            if matrices or operation.out in goes_on:
                goes_on |= self._computed(operation)

    def _multiplied(self, operation: Operation) -> frozenset[int]:
        """The tensors that it multiplies something with; learns what its result is made of."""
        values, tensors = _references(operation)
        for value in values:
            tensors |= self._made_of.get(value, frozenset())
        name = _name(operation)
        if name in _LOOK_UP:
            self.looked_up |= tensors
        elif not self._computed(operation):
            self._made_of[operation.out] = tensors
        elif name in _MULTIPLY:
            return tensors
        return frozenset()

    def _computed(self, operation: Operation) -> set[int]:
        """Its arguments that depend on the batch."""
        return {value for value in _references(operation)[0] if value not in self._made_of}


def _name(operation: Operation) -> str:
    """Without namespace and overload."""
    return operation.op.split(".")[1] if operation.op.count(".") >= 2 else operation.op


def _references(operation: Operation) -> tuple[set[int], frozenset[int]]:
    """Numbers of the values and tensors among its arguments."""
    values, tensors = set(), set()
    for argument in _flat(values_of(operation)):
        if isinstance(argument.get("v"), int):
            values.add(argument["v"])
        elif isinstance(argument.get("t"), int):
            tensors.add(argument["t"])
    return values, frozenset(tensors)


def _flat(arguments: Iterable[Any]) -> Iterable[dict[str, Any]]:
    for argument in arguments:
        if isinstance(argument, dict):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _flat(argument)
