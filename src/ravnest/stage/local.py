"""All stages of a model, one after another in one process, exactly as a pipeline would run them.

Values are cut off from autograd at every stage border and gradients are carried back by hand, so
what this computes is what separate providers compute. The planner checks its own cuts with it.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ravnest.errors import InputError
from ravnest.stage import structure
from ravnest.stage.graph import Argument, Mode, ModeGraph, StageGraph, Wire
from ravnest.stage.module import StageModule
from ravnest.stage.operators import dtype_name
from ravnest.stage.structure import result_values

Call = tuple[tuple[Any, ...], Mapping[str, Any]]


def bind_inputs(
    arguments: Sequence[Argument], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[int, torch.Tensor]:
    """Value number → tensor for a call made the way the model itself is called."""
    names = [argument.name for argument in arguments]
    if len(args) > len(names):
        raise InputError(f"{len(args)} positional inputs given, the model was planned with {names}")
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            raise InputError(f"input {name!r} is given twice")
        given[name] = value
    if unknown := set(given) - set(names):
        raise InputError(f"unknown input {min(unknown)!r}; the model was planned with {names}")
    values: dict[int, torch.Tensor] = {}
    for argument in arguments:
        if argument.name not in given:
            raise InputError(
                f"input {argument.name!r} is missing; the model was planned with {names}"
            )
        value = given[argument.name]
        values.update(structure.match_leaves(argument.structure, value, f"input {argument.name!r}"))
    return values


class LocalPipeline:
    """The stages of one model in order, each with its own parameters."""

    def __init__(self, stages: Sequence[StageModule]) -> None:
        self.stages = list(stages)

    def train(self, mode: bool = True) -> None:
        for stage in self.stages:
            stage.train(mode)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Forward without gradients, in whatever mode the stages are."""
        with torch.no_grad():
            values = self._values(args, kwargs)
            for stage in self.stages:
                self._forward(stage, values, grad=False)
        return self._result(values)

    def step(self, call: Call, loss: Callable[[Any], torch.Tensor]) -> tuple[torch.Tensor, Any]:
        """Forward, loss and backward. Gradients are added to those in the parameters; copies of
        a tied one get the sum over all stages."""
        tied = self._tied()
        earlier = [copy.grad for copies in tied for copy in copies]
        for copies in tied:
            for copy in copies:
                copy.grad = None
        values = self._values(*call)
        borders = [self._forward(stage, values, grad=True) for stage in self.stages]
        result_leaves = {
            value: _cut_off(values[value]) for value in self._result_numbers(self.stages[-1].mode)
        }
        result = self._result({**values, **result_leaves})
        scalar = loss(result)
        gradients: dict[int, torch.Tensor] = {}
        if scalar.requires_grad:
            scalar.backward()
        _collect(gradients, result_leaves)
        for inputs, outputs in reversed(borders):
            _backward(inputs, outputs, gradients)
            _collect(gradients, inputs)
        _share_sums(tied, earlier)
        return scalar.detach(), result

    def _tied(self) -> list[list[torch.Tensor]]:
        """Parameters that several stages hold, each with all its copies."""
        holders: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
        for stage in self.stages:
            tensors = stage.tensors()
            for spec in stage.graph.tensors:
                if spec.trainable and len(spec.stages) > 1:
                    holders[spec.name].append(tensors[spec.name])
        return list(holders.values())

    def _values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, Any]:
        first = self.stages[0]
        values: dict[int, Any] = dict(bind_inputs(first.graph.arguments, args, kwargs))
        check_batch(first.graph, values, first.mode)
        return values

    def _forward(
        self, stage: StageModule, values: dict[int, Any], *, grad: bool
    ) -> tuple[dict[int, Any], dict[int, Any]]:
        wires: Sequence[Wire] = (
            stage.graph.inputs if stage.graph.is_first else stage.graph.mode(stage.mode).receives
        )
        inputs = {
            wire.value: _cut_off(values[wire.value], grad=grad and wire.grad) for wire in wires
        }
        results = stage(*inputs.values())
        outputs = dict(zip(stage.returns(stage.mode), results, strict=True))
        values.update(outputs)
        return inputs, outputs

    def _result_numbers(self, mode: Mode) -> list[int]:
        return structure.result_values(self.stages[-1].graph.mode(mode).result)

    def _result(self, values: Mapping[int, Any]) -> Any:
        last = self.stages[-1]
        return structure.rebuild(last.graph.mode(last.mode).result, values.__getitem__)


def added(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The sum of two gradients of one parameter, of which `nn.Embedding(sparse=True)` makes sparse
    ones: torch adds those to dense ones, but not the other way round."""
    return other + one if one.is_sparse else one + other


def _share_sums(
    tied: Sequence[Sequence[torch.Tensor]], earlier: Sequence[torch.Tensor | None]
) -> None:
    """Give every copy the sum of this step's gradients, on top of what it had before."""
    before = iter(earlier)
    for copies in tied:
        gradients = [copy.grad for copy in copies if copy.grad is not None]
        total = functools.reduce(added, gradients) if gradients else None
        for copy in copies:
            had = next(before)
            if total is None:
                copy.grad = had
            else:
                copy.grad = total.clone() if had is None else added(had, total)


def check_batch(graph: StageGraph, values: Mapping[int, Any], mode: Mode) -> None:
    """Refuse inputs for which the captured graph would silently compute something else."""
    rows: int | None = None
    for wire in graph.inputs:
        given, planned = values[wire.value], list(wire.shape)
        label, shape = _label(graph, wire), list(given.shape)
        if dtype_name(given.dtype) != wire.dtype:
            raise InputError(
                f"{label} is {dtype_name(given.dtype)}, but this model was planned for "
                f"{wire.dtype}, and may do something else with another type: convert it "
                f"(.to(torch.{wire.dtype}), or inputs_dtype of Trainer), or plan again"
            )
        if graph.static_batch is not None and planned[:1] == [-1]:
            planned[0] = graph.static_batch
        fits = len(shape) == len(planned) and all(
            wanted in (-1, size) for size, wanted in zip(shape, planned, strict=True)
        )
        if not fits:
            reason = (
                "it treats the batch size as a constant. Use batches of that size only "
                "(drop_last=True in the DataLoader)."
                if graph.static_batch is not None
                else "sizes other than the batch's (-1) are fixed. Pad or crop every batch to "
                "them, or plan again with the size you train with."
            )
            raise InputError(
                f"{label} has shape {shape}, but this model could only be planned for {planned}: "
                f"{reason}"
            )
        if planned[:1] == [-1]:
            _check_rows(graph.mode(mode), shape[0])
            if rows not in (None, shape[0]):
                raise InputError(
                    f"the inputs of a batch have different numbers of rows: {rows} and, in "
                    f"{label}, {shape[0]}"
                )
            rows = shape[0]


def _label(graph: StageGraph, wire: Wire) -> str:
    """An input by the name that the model's forward gives it."""
    names = [a.name for a in graph.arguments if wire.value in result_values(a.structure)]
    return f"the input {names[0]!r}" if names else "an input"


def _check_rows(graph: ModeGraph, rows: int) -> None:
    most = graph.most_rows
    if rows < graph.least_rows or (most is not None and rows > most):
        limits = f"at least {graph.least_rows}" + ("" if most is None else f" and at most {most}")
        raise InputError(
            f"a batch has {rows} rows, but this model was planned for {limits}: with others it "
            "does something else, or has not been shown not to. Use such batches only "
            "(drop_last=True in the DataLoader)."
        )


def _cut_off(value: Any, *, grad: bool | None = None) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    wanted = value.requires_grad if grad is None else grad
    return value.detach().requires_grad_(wanted)


def _collect(gradients: dict[int, torch.Tensor], leaves: Mapping[int, Any]) -> None:
    for number, leaf in leaves.items():
        if isinstance(leaf, torch.Tensor) and leaf.grad is not None:
            known = gradients.get(number)
            gradients[number] = leaf.grad if known is None else known + leaf.grad


def _backward(
    inputs: Mapping[int, Any], outputs: Mapping[int, Any], gradients: Mapping[int, torch.Tensor]
) -> None:
    """Push the gradients of a stage's outputs back to its parameters and inputs.

    An operator may hand its argument through (dropout with p=0), so an output can be an input leaf
    under another number: its gradient must still arrive. A value that is merely passed on under its
    own number already has its gradient in the table.
    """
    pairs = [
        (value, gradients[number])
        for number, value in outputs.items()
        if number in gradients and number not in inputs and value.requires_grad
    ]
    if pairs:
        torch.autograd.backward([value for value, _ in pairs], [grad for _, grad in pairs])
