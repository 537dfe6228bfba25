"""The user's batch as the first stage takes it: values by number, and their rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ravnest.stage.graph import Mode, StageGraph
from ravnest.stage.local import bind_inputs, check_batch

Values = dict[int, Any]


class BatchInputs:
    """Binds what the user gives to the inputs of the model, and divides it."""

    def __init__(self, graph: StageGraph) -> None:
        self._graph = graph
        self._names = {argument.name for argument in graph.arguments}
        self._batched = {wire.value for wire in graph.inputs if wire.shape[:1] == (-1,)}

    def bind(self, tensors: Any, keywords: Mapping[str, Any], mode: Mode) -> tuple[Values, int]:
        """Values by number and how many rows they have; an error that names the input if they do
        not suit the model."""
        args: Sequence[Any]
        named = {self._plain_name(name): value for name, value in keywords.items()}
        if tensors is None:
            args = ()
        elif isinstance(tensors, Mapping):
            args, named = (), {**tensors, **named}
        elif isinstance(tensors, tuple | list) and self._are_arguments(tensors):
            args = tensors
        else:
            args = (tensors,)
        values: Values = dict(bind_inputs(self._graph.arguments, args, named))
        check_batch(self._graph, values, mode)
        batched = [value for number, value in values.items() if number in self._batched]
        sized = batched or [v for v in values.values() if isinstance(v, torch.Tensor) and v.dim()]
        return values, int(sized[0].shape[0]) if sized else 1

    def rows(self, values: Values, first: int, last: int, rows: int) -> Values:
        """Rows `first` up to `last` of a batch that has `rows` of them."""
        if first == 0 and last == rows:
            return values
        # `.data`: a part of its own to autograd, which would hold it against the other parts if the
        # model writes to one.
        return {
            number: value[first:last].data if number in self._batched else value
            for number, value in values.items()
        }

    def _plain_name(self, name: str) -> str:
        """`l_<name>_` is an older spelling of `<name>`."""
        older = name.startswith("l_") and name.endswith("_") and name not in self._names
        return name[2:-1] if older else name

    def _are_arguments(self, tensors: Sequence[Any]) -> bool:
        """A sequence is the model's arguments unless its only argument is a sequence itself."""
        arguments = self._graph.arguments
        if len(arguments) != 1 or len(tensors) == 1:
            return True
        return isinstance(arguments[0].structure, int)
