"""What every operator of a program costs, measured without the model's memory.

Each operator is run once on fake tensors (shapes without data) with autograd, which tells exactly
how many FLOPs its forward and backward take and which tensors autograd would keep. Operators that
are alike (same kind, shapes and options) are run once for all, so a deep model costs no more than
one of its layers. With real tensors the same probe measures seconds instead of predicting them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ravnest.planning.capture.program import Held, ModuleCall, Op, Program, Value, map_references
from ravnest.planning.capture.surroundings import log_silenced
from ravnest.planning.costing.costs import REFERENCE_GFLOPS
from ravnest.planning.costing.fixed import BACKWARD_CALLS, CALL_S
from ravnest.planning.costing.probe import Arguments, Probe, run
from ravnest.planning.cutting.analysis import example_bytes, size_hint
from ravnest.stage.gradients import HandWritten
from ravnest.stage.operators import operator_name

REFERENCE_MEMORY_GB_PER_S = 10.0


@dataclass(frozen=True)
class OpCost:
    """One operator at the example's batch size."""

    forward_flops: int
    backward_flops: int
    seconds: float
    """Forward and backward on the reference machine, without the calls themselves."""
    forward_s: float
    """The forward's share of them."""
    kept_arguments: tuple[int, ...]
    """Which of the operator's references (in order) autograd keeps alive."""
    keeps_result: bool
    kept_bytes: int
    """Further storages autograd keeps: masks, statistics, casts."""
    working_bytes: int
    calls: int = 0
    """Calls of torch, forward and backward, that take their time whatever the size."""


def profile(program: Program, *, gradients: set[int], foreign: bool = False) -> list[OpCost]:
    """Cost of every operator; `gradients` are the values through which gradients flow.

    Torch runs the kernel of an operator that has no rule for shapes, on zeros; not of a `foreign`
    program, which could ask for any amount of them.
    """
    known: dict[Any, Probe] = {}
    costs = []
    fake = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=not foreign)
    with fake, log_silenced():
        for op in program.ops:
            key = _signature(op, program, gradients)
            if key not in known:
                known[key] = _probe_fake(op, program, gradients)
            costs.append(_price(op, program, known[key], gradients))
    return costs


def profile_modules(
    program: Program, inputs: Sequence[torch.Tensor], *, gradients: set[int]
) -> list[OpCost]:
    """Cost of every module of a chain, by running it: fake tensors fail on what it may contain."""
    values: dict[int, Any] = dict(enumerate(inputs))
    scale = measure_gflops() / REFERENCE_GFLOPS
    costs = []
    with torch.random.fork_rng(devices=[]):
        for op in program.ops:
            find = _finder(program, values)
            counted = run(op, Arguments(op, find, gradients, program), timed=False)
            timed = run(op, Arguments(op, find, gradients, program), timed=True)
            values[op.out] = timed.results
            costs.append(
                replace(
                    _price(op, program, counted, gradients),
                    calls=0,  # those inside of it are not known; their time is in the seconds
                    seconds=timed.seconds * scale,
                    forward_s=timed.forward_s * scale,
                )
            )
    return costs


def _finder(program: Program, values: dict[int, Any]) -> Callable[[Value | Held], Any]:
    def find(reference: Value | Held) -> Any:
        if isinstance(reference, Held):
            return program.held[reference.name].tensor
        return values[reference.number]

    return find


def refine(
    costs: Sequence[OpCost],
    program: Program,
    inputs: Sequence[torch.Tensor],
    *,
    gradients: set[int],
) -> list[OpCost]:
    """The same after a real pass: seconds measured here (scaled to the reference machine) and the
    tensors that autograd really kept."""
    values: dict[int, Any] = dict(enumerate(inputs))
    remaining = _use_counts(program)
    scale = measure_gflops() / REFERENCE_GFLOPS
    refined = []
    with torch.random.fork_rng(devices=[]):
        for op, cost in zip(program.ops, costs, strict=True):
            find = _finder(program, values)
            # Twice, because the first run of a kind of operator pays for torch's own set-up.
            run(op, Arguments(op, find, gradients, program), timed=True)
            probe = run(op, Arguments(op, find, gradients, program), timed=True)
            values[op.out] = probe.results
            arguments, keeps_result, own = probe.kept
            refined.append(
                replace(
                    cost,
                    seconds=max(probe.seconds - cost.calls * CALL_S, 0.0) * scale,
                    forward_s=max(probe.forward_s - min(cost.calls, 1) * CALL_S, 0.0) * scale,
                    kept_arguments=arguments,
                    keeps_result=keeps_result,
                    kept_bytes=own,
                )
            )
            for number in set(op.values()):
                remaining[number] -= 1
                if remaining[number] == 0:
                    del values[number]
    return refined


def measure_gflops(size: int = 512, repeats: int = 5) -> float:
    """Sustained speed of this machine on a plain matrix product."""
    left, right = torch.ones(size, size), torch.ones(size, size)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(left, right)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9


def _use_counts(program: Program) -> dict[int, int]:
    counts = dict.fromkeys(program.result_values(), 1)
    for op in program.ops:
        for number in set(op.values()):
            counts[number] = counts.get(number, 0) + 1
    return counts


def _concrete(example: Any) -> Any:
    """A stand-in for a value: (shape, stride, dtype) for tensors, the number itself otherwise."""
    if isinstance(example, torch.Tensor):
        shape = tuple(map(size_hint, example.shape))
        stride = tuple(map(size_hint, example.stride()))
        return ("tensor", shape, stride, example.dtype)
    if isinstance(example, list | tuple):
        return tuple(_concrete(item) for item in example)
    if isinstance(example, torch.SymInt):
        return size_hint(example)
    if isinstance(example, torch.SymFloat | torch.SymBool):
        hint = getattr(example.node, "hint", None)
        return 1.0 if hint is None else hint
    return example


def _signature(op: Op, program: Program, gradients: set[int]) -> Any:
    def describe(reference: Value | Held) -> Any:
        if isinstance(reference, Held):
            held = program.held[reference.name]
            return ("held", _concrete(held.tensor), held.trainable)
        number = reference.number
        return ("value", _concrete(program.examples[number]), number in gradients)

    repeated = [list(op.references()).index(reference) for reference in op.references()]
    described = map_references([list(op.args), sorted(op.kwargs.items())], describe)
    own = id(op.target) if isinstance(op.target, HandWritten) else 0
    return (operator_name(op.target), own, repr(described), op.context, tuple(repeated))


def _probe_fake(op: Op, program: Program, gradients: set[int]) -> Probe:
    def make(described: Any) -> Any:
        match described:
            case ("tensor", shape, stride, dtype):
                return torch.empty_strided(shape, stride, dtype=dtype)
            case tuple():
                return tuple(make(item) for item in described)
        return described

    def find(reference: Value | Held) -> Any:
        if isinstance(reference, Held):
            return make(_concrete(program.held[reference.name].tensor))
        return make(_concrete(program.examples[reference.number]))

    try:
        return run(op, Arguments(op, find, gradients, program), timed=False)
    except Exception:  # data-dependent results and the like: fall back to sizes alone
        everything = tuple(range(len(list(op.references()))))
        return Probe((0, 0), (everything, True, 0), 0.0, 0.0, None)


def _price(op: Op, program: Program, probe: Probe, gradients: set[int]) -> OpCost:
    forward, backward = probe.flops
    arguments, keeps_result, own = probe.kept
    moved = 0 if _is_view(op) else _touched_bytes(op, program)
    seconds = forward_s = _roofline(forward, moved)
    if arguments or keeps_result or own or backward:
        seconds += _roofline(backward, 2 * moved)
    return OpCost(
        forward_flops=forward,
        backward_flops=backward,
        seconds=seconds,
        forward_s=forward_s,
        kept_arguments=arguments,
        keeps_result=keeps_result,
        kept_bytes=own,
        working_bytes=moved,
        calls=_calls(op, gradients),
    )


def _calls(op: Op, gradients: set[int]) -> int:
    """Of torch, in forward and backward; views are called too, Python's own functions are not."""
    if isinstance(op.target, HandWritten):
        return 1 + len(op.target.backward["operations"])
    if getattr(op.target, "_schema", None) is None:
        return 0
    return 1 + (BACKWARD_CALLS if op.out in gradients else 0)


def _roofline(flops: float, moved: float) -> float:
    """The slower of computing and moving bytes decides; both at the reference machine."""
    return max(flops / (REFERENCE_GFLOPS * 1e9), moved / (REFERENCE_MEMORY_GB_PER_S * 1e9))


def _is_view(op: Op) -> bool:
    if isinstance(op.target, ModuleCall | HandWritten):
        return False
    schema = getattr(op.target, "_schema", None)
    if schema is None:
        return True
    returned = schema.returns[0].alias_info if schema.returns else None
    return returned is not None and not returned.is_write


def _touched_bytes(op: Op, program: Program) -> int:
    values = sum(example_bytes(program.examples[number]) for number in set(op.values()))
    held = sum(example_bytes(program.held[name].tensor) for name in set(op.held()))
    return values + held + example_bytes(op.example)
