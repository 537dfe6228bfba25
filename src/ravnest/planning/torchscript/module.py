"""Turn a TorchScript model into an ordinary module that `torch.export` can capture.

A model that comes from `torch.jit.load` has no Python code left, and `torch.export` refuses it. Its
graph is still there: `as_module` builds a tree of plain modules that own the parameters and buffers
under their original names (sharing memory with the script), and gives the outermost one a `forward`
that walks the graph (`ravnest.planning.torchscript.graph`).

Knows nothing about plans, stages or export itself, and is never used for training: the walk is
slow and runs only during the capture and its check. Methods other than `forward` are dropped.
"""

import functools
import inspect
from collections.abc import Hashable, Iterator
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ravnest.errors import CaptureError
from ravnest.planning.torchscript.graph import REMEDY, Compiler, Scope, TensorRef, WithTensors
from ravnest.planning.torchscript.numbers import NumberTensor
from ravnest.planning.torchscript.ops import ScriptBlock, ScriptNode, ScriptSchema, schema_of


def is_script(model: object) -> TypeGuard[torch.jit.ScriptModule]:
    """Whether the model is TorchScript (scripted, traced or loaded from a file)."""
    return isinstance(model, torch.jit.ScriptModule)


def as_module(script: torch.jit.ScriptModule) -> nn.Module:
    """An ordinary module with the script's parameters, buffers, modes and forward signature.

    The parameters and buffers share their memory with the script. Raises `CaptureError` for a
    model without a `forward`; an unsupported node raises it when `forward` reaches the node.
    """
    core: Any = script._c
    if not core._has_method("forward"):
        raise CaptureError(f"The TorchScript model has no forward method. {REMEDY}")
    if core._get_forward_hooks() or core._get_forward_pre_hooks():
        raise CaptureError(
            "The TorchScript model has hooks on its outermost module, which are not part of its "
            "graph. Move what they do into forward and save the file again."
        )
    tree = _Tree(script, _class_with_forward(core._get_method("forward").schema))
    tree.compile(tree.root, script, "forward")
    tree.import_attributes()
    return tree.root


def mode_is_baked(script: torch.jit.ScriptModule) -> bool:
    """Whether `train()` and `eval()` no longer change what the model computes.

    That is so after `torch.jit.trace`: dropout and batch norm get the mode of the example run as a
    constant, and nothing asks for the module's own. A model without such layers answers False: its
    mode does not matter. `if self.training` in traced Python code leaves no mark to find.
    """
    graph = script.inlined_graph
    nodes = list(_all_nodes(graph))
    if any(_reads_mode(node) for node in nodes):
        return False
    return any(_has_constant_mode(node) for node in nodes)


def _reads_mode(node: ScriptNode) -> bool:
    # A method call that could not be inlined may read it; only scripted code contains one.
    kind: str = node.kind()
    return kind == "prim::CallMethod" or (kind == "prim::GetAttr" and node.s("name") == "training")


def _has_constant_mode(node: ScriptNode) -> bool:
    schema = schema_of(node)
    names = [argument.name for argument in schema.arguments] if schema else []
    return any(
        name in ("train", "training") and value.node().kind() == "prim::Constant"
        for name, value in zip(names, node.inputs(), strict=False)  # a `...` has no name
    )


def _all_nodes(block: ScriptBlock) -> Iterator[ScriptNode]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _all_nodes(inner)


# --- forward ---------------------------------------------------------------------------------


def _class_with_forward(schema: ScriptSchema) -> type[Scope]:
    """A module class whose forward has the script's argument names and defaults."""
    signature = inspect.Signature(
        [_parameter(index, argument) for index, argument in enumerate(schema.arguments)]
    )

    def forward(self: Scope, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        grad_mode = torch.is_grad_enabled()
        try:
            (output,) = self._script_methods["forward"].run({}, [*bound.arguments.values()])
        except BaseException:
            torch._C._set_grad_enabled(grad_mode)  # the graph of `with no_grad()` has no `finally`
            raise
        return pytree.tree_map_only(NumberTensor, NumberTensor.tensor, output)

    forward.__signature__ = signature  # type: ignore[attr-defined]  # inspect.signature reads it
    return type("ScriptAdaptor", (Scope,), {"forward": forward})


def _parameter(index: int, argument: Any) -> inspect.Parameter:
    empty, positional = inspect.Parameter.empty, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(
        argument.name if argument.name.isidentifier() else f"argument_{index}",
        kind=inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else positional,
        default=argument.default_value if argument.has_default_value() else empty,
    )


# --- modules ---------------------------------------------------------------------------------


class _Tree:
    """Builds the modules of one adaptor; thrown away afterwards."""

    def __init__(self, script: torch.jit.ScriptModule, root_class: type[Scope]) -> None:
        self._persistent = frozenset(script.state_dict())
        self._pairs: dict[int, tuple[Scope, Any]] = {}
        self._parameters: dict[Hashable, nn.Parameter] = {}
        self._buffers: dict[Hashable, torch.Tensor] = {}
        self._refs: dict[Hashable, TensorRef] = {}
        self._attributes: set[str] = set()
        self._held = 0
        self.root = self._scope(script, "", root_class)

    def _scope(self, script: Any, prefix: str, scope_class: type[Scope] = Scope) -> Scope:
        if id(script) in self._pairs:
            return self._pairs[id(script)][0]
        scope = scope_class(script.original_name, bool(getattr(script, "training", True)))
        self._pairs[id(script)] = (scope, script)
        for name, tensor in script._parameters.items():
            self._register_parameter(scope, name, tensor)
        for name, tensor in script._buffers.items():
            self._register_buffer(scope, name, tensor, prefix + name in self._persistent)
        for name, child in script._modules.items():
            scope.add_module(name, self._scope(child, f"{prefix}{name}."))
        return scope

    def _register_parameter(self, scope: Scope, name: str, tensor: torch.Tensor) -> None:
        key = _identity(tensor)
        if key not in self._parameters:
            self._parameters[key] = nn.Parameter(tensor.detach(), tensor.requires_grad)
            self._refs[key] = TensorRef(scope, name)
        scope.register_parameter(name, self._parameters[key])

    def _register_buffer(
        self, scope: Scope, name: str, tensor: torch.Tensor, persistent: bool
    ) -> None:
        key = _identity(tensor)
        buffer = self._buffers.setdefault(key, tensor.detach())
        scope.register_buffer(name, buffer, persistent=persistent)
        self._refs.setdefault(key, TensorRef(scope, name))

    def compile(self, scope: Scope, script: Any, method: str) -> None:
        """Give the module a program for the method, and all modules one for what that calls."""
        compiler = Compiler(hold=functools.partial(self._hold, scope))
        graph = script._c._get_method(method).inlined_graph
        scope._script_methods[method] = compiler.method(graph)
        self._attributes |= compiler.attributes
        for called in compiler.methods:
            for other, other_script in self._pairs.values():
                if called not in other._script_methods and other_script._c._has_method(called):
                    self.compile(other, other_script, called)

    def import_attributes(self) -> None:
        """Copy what the programs read besides parameters, buffers, children and the mode."""
        for scope, script in self._pairs.values():
            known = {"training", *scope._parameters, *scope._buffers, *scope._modules}
            for name in sorted(self._attributes - known):
                if script._c.hasattr(name):
                    self._set_attribute(scope, name, script._c.getattr(name))

    def _set_attribute(self, scope: Scope, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor) and _identity(value) not in self._refs:
            self._register_buffer(scope, name, value, persistent=False)
            return
        leaves = pytree.tree_leaves(value)
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            refer = functools.partial(self._ref, scope)
            value = WithTensors(pytree.tree_map_only(torch.Tensor, refer, value))
        scope._script_attributes[name] = value

    def _ref(self, scope: Scope, tensor: torch.Tensor) -> TensorRef:
        key = _identity(tensor)
        if key not in self._refs:
            self._hold(scope, tensor)
        return self._refs[key]

    def _hold(self, scope: Scope, value: Any) -> str:
        """Make the module own a constant with tensors in it; the attribute to read it from."""
        self._held += 1
        name = f"_constant_{self._held}"
        self._set_attribute(scope, name, value)
        return name


def _identity(tensor: torch.Tensor) -> Hashable:
    """Equal for two tensor objects that are one tensor: loading makes an object per name."""
    if tensor.layout != torch.strided:
        return id(tensor)
    memory = tensor.untyped_storage()._cdata, tensor.storage_offset()
    # A detached alias of a parameter is another tensor: no gradient flows through it.
    return memory, tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad
