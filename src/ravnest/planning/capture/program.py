"""A captured model as a flat list of operators: what every later step of planning works on.

Plain data about one mode (training or evaluation) of one model. Values are numbered: first the
leaves of the user's inputs, then the results of operators in the order they run.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import free_symbols

from ravnest.stage.graph import Argument, Context, TensorKind
from ravnest.stage.operators import ModuleTarget
from ravnest.stage.structure import Structure, result_values


def is_open(size: int | torch.SymInt) -> bool:
    """Does this size follow the batch? A symbol that capture has fixed to a number does not."""
    return isinstance(size, torch.SymInt) and bool(free_symbols(size))


@dataclass(frozen=True, slots=True)
class Value:
    """Refers to an input leaf or to the result of an operator."""

    number: int


@dataclass(frozen=True, slots=True)
class Held:
    """Refers to a parameter, buffer or constant by its canonical name."""

    name: str


@dataclass(frozen=True, eq=False)
class ModuleCall(ModuleTarget):
    """Stands where an operator would, in a model cut at module boundaries: runs one module."""

    path: str
    module: nn.Module
    buffers: frozenset[str]
    writes_input: bool
    shares_input: bool

    def __call__(self, value: torch.Tensor, **_: object) -> torch.Tensor:
        result: torch.Tensor = self.module(value)
        return result


@dataclass(slots=True)
class Op:
    """One operator call; `args` and `kwargs` hold `Value`, `Held` and plain constants."""

    out: int
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    example: Any
    """Fake tensors (or numbers) with the symbolic shapes seen at capture."""
    context: Context | None
    path: str
    source: str
    region: int | None = None
    """Operators of one region share a grad or autocast scope and stay on one stage."""

    def references(self) -> Iterator[Value | Held]:
        for argument in (*self.args, *self.kwargs.values()):
            yield from _references(argument)

    def values(self) -> Iterator[int]:
        for reference in self.references():
            if isinstance(reference, Value):
                yield reference.number

    def held(self) -> Iterator[str]:
        for reference in self.references():
            if isinstance(reference, Held):
                yield reference.name


def _references(argument: Any) -> Iterator[Value | Held]:
    if isinstance(argument, Value | Held):
        yield argument
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from _references(item)


def map_references(argument: Any, change: Any) -> Any:
    """The same argument with every reference replaced by `change(reference)`."""
    if isinstance(argument, Value | Held):
        return change(argument)
    if isinstance(argument, list | tuple):
        return type(argument)(map_references(item, change) for item in argument)
    return argument


@dataclass(frozen=True)
class HeldTensor:
    """A tensor the model owns. Tied names are one entry under the first of them."""

    name: str
    kind: TensorKind
    tensor: torch.Tensor
    trainable: bool


@dataclass
class Program:
    """One mode of the model."""

    arguments: tuple[Argument, ...]
    inputs: list[torch.Tensor]
    """Example leaves as symbolic fake tensors; input leaf i is value i."""
    ops: list[Op]
    result: Structure
    """Structure of the output over value numbers."""
    held: dict[str, HeldTensor]
    dynamic: bool
    batch_size: int
    rows: tuple[int, int | None] = (1, None)
    """Fewest and most rows for which the model takes the captured way."""
    changed_attributes: list[str] = field(default_factory=list)
    """Plain Python attributes that the model sets in its forward, and that a graph freezes."""
    assumed: list[str] = field(default_factory=list)
    """Where the model looks for values out of order, of which there shall be none."""
    read_early: set[str] = field(default_factory=set)
    """Canonical names of buffers whose values the capture has relied on."""
    remade: set[str] = field(default_factory=set)
    """Buffers, by any of their names, that each call makes anew in another shape."""
    written: set[str] = field(default_factory=set)
    """Canonical names of tensors that the forward pass writes to."""
    wire_shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Shapes with -1 for open sizes, where the examples do not tell by themselves."""

    def result_values(self) -> list[int]:
        return result_values(self.result)

    @cached_property
    def examples(self) -> dict[int, Any]:
        """Value number → what was seen there at capture."""
        return dict(enumerate(self.inputs)) | {op.out: op.example for op in self.ops}
