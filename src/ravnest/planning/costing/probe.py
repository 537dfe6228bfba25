"""Run one operator, forward and backward, and watch: FLOPs, seconds, what autograd keeps.

Works on fake tensors (shapes without data) and on real ones alike. Knows nothing about programs as
a whole or about what the figures are used for.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ravnest.planning.capture.program import Held, ModuleCall, Op, Program, Value, map_references
from ravnest.planning.capture.writes import is_mutating, written_names
from ravnest.planning.cutting.analysis import tensors_in
from ravnest.stage.context import in_context


@dataclass
class Probe:
    """What one trial run of an operator showed."""

    flops: tuple[int, int]
    kept: tuple[tuple[int, ...], bool, int]
    seconds: float
    forward_s: float
    results: Any


class Arguments:
    """An operator's arguments as tensors of their own, ready for one forward and backward."""

    def __init__(
        self,
        op: Op,
        find: Callable[[Value | Held], Any],
        gradients: set[int],
        program: Program,
    ) -> None:
        self.leaves: list[Any] = []
        self.module = op.target.module if isinstance(op.target, ModuleCall) else None
        made: dict[Value | Held, Any] = {}
        mutates = is_mutating(op) or bool(written_names(op))

        def place(reference: Value | Held) -> Any:
            if reference not in made:
                wanted = (
                    program.held[reference.name].trainable
                    if isinstance(reference, Held)
                    else reference.number in gradients
                )
                made[reference] = self._leaf(find(reference), wanted, copy=mutates)
            self.leaves.append(made[reference])
            return made[reference]

        self.args = map_references(op.args, place)
        self.kwargs = {key: map_references(value, place) for key, value in op.kwargs.items()}

    def _leaf(self, value: Any, wanted: bool, *, copy: bool) -> Any:
        if isinstance(value, torch.Tensor):
            leaf = value.detach()
            if wanted and (leaf.is_floating_point() or leaf.is_complex()):
                leaf.requires_grad_(True)
            # An in-place operator may not write to a leaf, nor to the model's own tensor.
            return leaf.clone() if copy else leaf
        if isinstance(value, list | tuple):
            return type(value)(self._leaf(item, wanted, copy=copy) for item in value)
        return value

    def differentiable(self) -> list[torch.Tensor]:
        found = {id(t): t for t in tensors_in(self.leaves) if t.requires_grad}
        if self.module is not None:  # it uses its own parameters, not the leaves made here
            found |= {id(p): p for p in self.module.parameters() if p.requires_grad}
        return list(found.values())


def run(op: Op, arguments: Arguments, *, timed: bool) -> Probe:
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    counter = FlopCounterMode(display=False)
    with (
        torch.enable_grad(),
        contextlib.nullcontext() if timed else counter,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        start = time.perf_counter()
        target = in_context(op.target, op.context, "cpu")
        results = target(*arguments.args, **arguments.kwargs)
        forward_s = time.perf_counter() - start
        forward = 0 if timed else counter.get_total_flops()
        _backward(results, arguments)
        seconds = time.perf_counter() - start
        total = 0 if timed else counter.get_total_flops()
    found = _classify(kept, arguments, results)
    return Probe((forward, total - forward), found, seconds, forward_s, _detached(results))


def _backward(results: Any, arguments: Arguments) -> None:
    outputs = [t for t in tensors_in(results) if t.requires_grad and t.grad_fn is not None]
    inputs = arguments.differentiable()
    if not outputs or not inputs:
        return
    seeds = [torch.empty_like(output) for output in outputs]
    if arguments.module is None:
        torch.autograd.grad(outputs, inputs, seeds, allow_unused=True)
        return
    # torch's FLOP counter watches modules and does not support autograd.grad through them.
    saved = [(tensor, tensor.grad) for tensor in inputs]
    try:
        torch.autograd.backward(outputs, seeds)
    finally:
        for tensor, gradient in saved:
            tensor.grad = gradient


def _detached(results: Any) -> Any:
    if isinstance(results, torch.Tensor):
        return results.detach()
    if isinstance(results, list | tuple):
        return type(results)(_detached(item) for item in results)
    return results


def _classify(
    kept: list[torch.Tensor], arguments: Arguments, results: Any
) -> tuple[tuple[int, ...], bool, int]:
    """Sort what autograd kept into arguments, results and things of the operator's own."""
    # A sparse one, which a module may have of its own, lies in no storage.
    dense = [tensor for tensor in kept if tensor.layout is torch.strided]
    storages = {_storage(tensor): tensor for tensor in dense}
    of_arguments: list[int] = []
    for index, leaf in enumerate(arguments.leaves):
        own = {_storage(tensor) for tensor in tensors_in(leaf)}
        if own & storages.keys():
            of_arguments.append(index)
    for leaf in arguments.leaves:
        for tensor in tensors_in(leaf):
            storages.pop(_storage(tensor), None)
    of_result = False
    for tensor in tensors_in(results):
        of_result |= storages.pop(_storage(tensor), None) is not None
    own_bytes = sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
    return tuple(of_arguments), of_result, own_bytes


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
