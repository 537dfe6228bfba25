"""Which operators capture makes of a sample model: the measure of the allow-list."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from zoo import ZOO
from zoo_models.layers import PROGRAMS

from ravnest.planning.capture.call import bind_call
from ravnest.planning.capture.exporting import capture
from ravnest.planning.capture.program import Held, Value, is_open
from ravnest.planning.study import Study, study
from ravnest.stage.operators import encode, operator_name

Call = tuple[list[Any], dict[str, Any]]


def operators_of(studied: Study) -> set[str]:
    """Of both modes."""
    programs = (studied.train, studied.evaluation)
    return {operator_name(op.target) for program in programs for op in program.ops}


def operators_of_model(name: str) -> set[str]:
    entry = ZOO[name]
    torch.manual_seed(0)
    model = entry.build()
    torch.manual_seed(1)
    args, kwargs = entry.inputs(4)
    return operators_of(study(model, args, kwargs))


def operators_of_layers(name: str) -> set[str]:
    build, makers = PROGRAMS[name]
    torch.manual_seed(0)
    model: nn.Module = build()
    call = bind_call(model, tuple(make(4) for make in makers), {})
    found = [capture(model, call, mode).ops for mode in ("train", "eval")]
    return {operator_name(op.target) for ops in found for op in ops}


def _number(size: int | torch.SymInt) -> int:
    """A size that depends on data has no hint: any will do."""
    return int(size) if not is_open(size) or size.node.has_hint() else 3


def calls_of_layers(name: str) -> Iterator[tuple[str, Call]]:
    """Each operator call of a program, with tensors described by dtype and shape."""
    build, makers = PROGRAMS[name]
    torch.manual_seed(0)
    model = build()
    bound = bind_call(model, tuple(make(4) for make in makers), {})
    for mode in ("train", "eval"):
        program = capture(model, bound, mode)
        known: dict[int, Any] = {op.out: op.example for op in program.ops}
        known |= dict(enumerate(bound.with_several_rows().leaves))

        def described(value: Any, known: dict[int, Any] = known, held: Any = program.held) -> Any:
            if isinstance(value, Value):
                value = known[value.number]
            if isinstance(value, Held):
                value = held[value.name].tensor
            if isinstance(value, torch.Tensor):
                shape = [_number(size) for size in value.shape]
                return {"tensor": [str(value.dtype).removeprefix("torch."), shape]}
            if isinstance(value, torch.SymInt):
                return _number(value)
            if isinstance(value, list | tuple):
                return [described(item) for item in value]
            return encode(value, lambda _: None)

        for op in program.ops:
            args = [described(item) for item in op.args]
            kwargs = {key: described(item) for key, item in op.kwargs.items()}
            yield operator_name(op.target), (args, kwargs)
