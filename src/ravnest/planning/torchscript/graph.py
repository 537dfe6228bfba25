"""A TorchScript graph as a program of Python steps over a tree of plain modules.

The graph is compiled once into steps that hold no tensors and no C++ objects. Running it walks the
steps; every tensor is read from the modules at that moment, because loading, moving, copying and
capturing a module all replace its tensors. Conditions and loop counts are Python values, decided
while `torch.export` traces, exactly as for Python code.

Knows nothing about where the modules come from (`ravnest.planning.torchscript`) nor what the single
operators do (`ravnest.planning.torchscript.ops`).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ravnest.errors import CaptureError
from ravnest.planning.torchscript.numbers import materialise, number_constant
from ravnest.planning.torchscript.ops import ScriptBlock, ScriptNode, resolve

REMEDY = (
    "Hand over the original Python model instead of the TorchScript file, or rewrite this line "
    "with ordinary tensor operators and save the file again."
)
_NOTE = "In the TorchScript model:\n"

# What the graph's values hold at run time, by the number TorchScript gave each value.
_Values = dict[int, Any]


# --- a graph, ready to run -------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """One node: what it does to the values, and where the user wrote it."""

    run: Callable[[_Values], None]
    place: str


@dataclass(frozen=True)
class Program:
    """A graph or a block as a list of steps. Holds no tensors, so copies of a module share it."""

    inputs: tuple[int, ...]
    steps: tuple[_Step, ...]
    outputs: tuple[int, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Program":
        return self

    def run(self, values: _Values, inputs: Sequence[Any] = ()) -> list[Any]:
        values.update(zip(self.inputs, inputs, strict=True))
        for step in self.steps:
            try:
                step.run(values)
            except Exception as error:
                if not any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
                    error.add_note(_NOTE + step.place)
                raise
        return [values[output] for output in self.outputs]


@dataclass(frozen=True)
class _Call:
    """A node that computes its outputs from its inputs."""

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    unpacks: bool = False

    def __call__(self, values: _Values) -> None:
        result = self.function(*(values[value] for value in self.inputs))
        if self.unpacks:
            values.update(zip(self.outputs, result, strict=True))
        elif self.outputs:
            values[self.outputs[0]] = result


@dataclass(frozen=True)
class _If:
    condition: int
    then: Program
    otherwise: Program
    outputs: tuple[int, ...]

    def __call__(self, values: _Values) -> None:
        # bool() of a size adds a guard; bool() of data makes torch.export name the problem.
        branch = self.then if values[self.condition] else self.otherwise
        values.update(zip(self.outputs, branch.run(values), strict=True))


@dataclass(frozen=True)
class _Loop:
    """`for` and `while` in one: at most `trips` rounds, as long as the condition holds."""

    inputs: tuple[int, ...]
    body: Program
    outputs: tuple[int, ...]

    def __call__(self, values: _Values) -> None:
        trips, condition, *carried = (values[value] for value in self.inputs)
        index = 0
        while index < trips and condition:
            condition, *carried = self.body.run(values, [index, *carried])
            index += 1
        values.update(zip(self.outputs, carried, strict=True))


class Compiler:
    """Turns the graph of one method into a program, and notes what the program will ask for.

    `hold` makes the method's module own a constant, and returns the attribute to read it from.
    """

    def __init__(self, hold: Callable[[Any], str]) -> None:
        self.attributes: set[str] = set()
        self.methods: set[str] = set()
        self._hold = hold
        self._self = -1

    def method(self, graph: ScriptBlock) -> Program:
        self._self = next(graph.inputs()).unique()
        return self._block(graph)

    def _block(self, block: ScriptBlock) -> Program:
        return Program(
            inputs=_ids(block.inputs()),
            steps=tuple(_Step(self._action(node), _place(node)) for node in block.nodes()),
            outputs=_ids(block.outputs()),
        )

    def _action(self, node: ScriptNode) -> Callable[[_Values], None]:
        kind, inputs, outputs = node.kind(), _ids(node.inputs()), _ids(node.outputs())
        if kind == "prim::Constant":
            return self._constant(node)
        if kind == "prim::If":
            then, otherwise = (self._block(block) for block in node.blocks())
            return _If(inputs[0], then, otherwise, outputs)
        if kind == "prim::Loop":
            (body,) = (self._block(block) for block in node.blocks())
            return _Loop(inputs, body, outputs)
        function = self._on_objects(node) or resolve(node) or _refusal(node)
        unpacks = len(outputs) > 1 or kind in ("prim::ListUnpack", "prim::TupleUnpack")
        return _Call(function, inputs, outputs, unpacks)

    def _constant(self, node: ScriptNode) -> Callable[[_Values], None]:
        outputs = _ids(node.outputs())
        if node.output().type().kind() == "FunctionType":
            return _Call(lambda: None, (), outputs)  # left over from an inlined call
        value = node.output().toIValue() if node.hasAttribute("value") else None
        if isinstance(value, torch.Tensor):
            value = number_constant(value) or value
        if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value)):
            return _Call(lambda: value, (), outputs)
        # The module has to own it: a tensor inside a program would not move to another device.
        return _Call(functools.partial(_read, name=self._hold(value)), (self._self,), outputs)

    def _on_objects(self, node: ScriptNode) -> Callable[..., Any] | None:
        """Functions on modules and other objects with attributes."""
        match node.kind():
            case "prim::GetAttr":
                self.attributes.add(node.s("name"))
                return functools.partial(_read, name=node.s("name"))
            case "prim::SetAttr":
                return functools.partial(_write, node.s("name"))
            case "prim::CallMethod":
                self.methods.add(node.s("name"))
                return functools.partial(_call_method, node.s("name"))
            case "prim::ModuleContainerIndex":
                return _child
            case "prim::CreateObject":
                return _Object
            case "prim::Enter" | "prim::Exit":
                return _grad_mode_switch(node)
        return None


def _ids(values: Any) -> tuple[int, ...]:
    return tuple(value.unique() for value in values)


def _place(node: ScriptNode) -> str:
    """The user's source line, or the node itself where the file does not hold it."""
    source = str(node.sourceRange()).partition("Serialized   File")[0].rstrip()
    return source or str(node).strip().partition("\n")[0]


def _refusal(node: ScriptNode) -> Callable[..., Any]:
    """A function that raises: an unsupported node matters only if the model gets there."""
    schema = str(node.schema())
    called = node.kind() if schema.startswith("(") else schema
    message = f"TorchScript node {called} is not supported.\n{_place(node)}\n{REMEDY}"

    def refuse(*inputs: Any) -> Any:
        raise CaptureError(message)

    return refuse


# --- objects with attributes -----------------------------------------------------------------


class Scope(nn.Module):
    """One module of the script: its parameters, buffers, children and mode, but no code."""

    def __init__(self, name: str, training: bool) -> None:
        super().__init__()
        self._script_name = name
        self._script_attributes: dict[str, Any] = {}
        self._script_methods: dict[str, Program] = {}
        self.training = training

    def _get_name(self) -> str:
        return self._script_name


class _Object:
    """An instance of a scripted class, created while the graph runs."""

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}


@dataclass(frozen=True, eq=False)
class TensorRef:
    """Stands for a registered tensor inside an attribute such as the weight list of an LSTM.

    The tensor itself must not be kept there: loading, moving and capturing a module replace it.
    """

    owner: nn.Module
    name: str

    def read(self) -> torch.Tensor | None:
        owner = self.owner
        registered = owner._parameters if self.name in owner._parameters else owner._buffers
        return registered[self.name]


@dataclass(frozen=True)
class WithTensors:
    """An attribute's value (list, tuple, dict) with a `TensorRef` in place of each tensor."""

    value: Any

    def read(self) -> Any:
        return pytree.tree_map_only(TensorRef, TensorRef.read, self.value)


def _read(owner: Any, name: str) -> Any:
    if isinstance(owner, _Object):
        return owner.attributes[name]
    if not isinstance(owner, Scope):
        return getattr(owner, name)
    if name == "training":
        return owner.training
    for registered in (owner._parameters, owner._buffers, owner._modules):
        if name in registered:
            return registered[name]
    value = owner._script_attributes[name]
    return value.read() if isinstance(value, WithTensors) else value


def _write(name: str, owner: Any, value: Any) -> None:
    value = materialise(value)
    if isinstance(owner, _Object):
        owner.attributes[name] = value
    elif not isinstance(owner, Scope) or name == "training" or name in owner._buffers:
        setattr(owner, name, value)
    else:
        owner._script_attributes[name] = value


def _call_method(name: str, owner: Scope, *inputs: Any) -> Any:
    """Run a method that could not be inlined, because its module is declared as an interface."""
    (output,) = owner._script_methods[name].run({}, [owner, *inputs])
    return output


def _child(container: Scope, key: int | str) -> nn.Module:
    children = container._modules
    name = list(children)[key] if isinstance(key, int) else key
    child = children[name]
    assert child is not None
    return child


def _grad_mode_switch(node: ScriptNode) -> Callable[..., Any] | None:
    """The two ends of `with torch.no_grad():`; None for another context manager."""
    modes = {"no_grad": False, "enable_grad": True}
    module, _, name = node.input().type().qualified_name().rpartition(".")
    if not module.startswith("__torch__.torch.autograd.grad_mode") or name not in modes:
        return None

    def enter(context: _Object) -> None:
        context.attributes["prev"] = torch.is_grad_enabled()
        torch._C._set_grad_enabled(modes[name])

    def leave(context: _Object, *_: Any) -> None:
        torch._C._set_grad_enabled(context.attributes["prev"])

    return enter if node.kind() == "prim::Enter" else leave
