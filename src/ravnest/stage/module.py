"""A stage graph turned into an `nn.Module` that computes.

The operators become a `torch.fx` graph, from which torch generates code: it calls them without an
interpreter in between and drops each intermediate value after its last use. Every identifier in
it is made here, except the keyword names of operators. Those are spelled out as the package has
them, and are safe because the loader checks them against the operator's own schema.

Knows nothing about files, neighbours or schedules: values in, values out.
"""

import contextlib
import copy
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ravnest.errors import PackageError, RavnestError
from ravnest.stage.context import casts_kept, in_context
from ravnest.stage.failures import failed_call
from ravnest.stage.gradients import HandWritten, values_of
from ravnest.stage.graph import Context, Mode, ModeGraph, Operation, StageGraph, TensorSpec
from ravnest.stage.guarded import reads_whole_storage, with_own_storage
from ravnest.stage.operators import (
    DTYPES,
    GRADIENT,
    MODULE_CALL,
    decode,
    dtype_name,
    resolve_call,
)
from ravnest.stage.structure import result_values


class StageModule(nn.Module):
    """One stage, ready to run: `forward` maps received values to the values it must hand on."""

    def __init__(
        self,
        graph: StageGraph,
        weights: Mapping[str, torch.Tensor],
        device: torch.device | str = "cpu",
        model: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.device = torch.device(device)
        # Only then may a tensor not be part of a larger one, of which the stage knows nothing.
        self._reads_storage = _reads_storage(graph)
        self._shares_casts = any(context.cast_once is not None for context in graph.contexts)
        self._tensors: dict[str, torch.Tensor] = {}
        self._adopted: list[tuple[nn.Module, dict[str, str]]] = []
        self._flags: dict[nn.Module, bool] = {}
        modules = _module_paths(graph)
        if modules:
            self._adopt_modules(modules, weights, model)
        for number, spec in enumerate(graph.tensors):
            if spec.name in self._tensors:
                continue
            tensor = weights[spec.name].to(self.device)
            if self._reads_storage:
                tensor = with_own_storage(tensor)
            if spec.kind == "parameter":
                tensor = nn.Parameter(tensor, spec.trainable)
                self.register_parameter(f"t{number}", tensor)
            else:
                self.register_buffer(f"t{number}", tensor)
            self._tensors[spec.name] = tensor
        self._attribute_of_module = {path: f"m{i}" for i, path in enumerate(modules)}
        # Kept in a plain dict: each program shares this module's tensors, it does not own copies.
        self._programs: dict[Mode, torch.fx.GraphModule] = {
            "train": _Builder(self, graph.train).build(),
            "eval": _Builder(self, graph.eval).build(),
        }
        self._run: dict[Mode, Callable[..., Any]] = dict(self._programs)

    def _adopt_modules(
        self, paths: Sequence[str], weights: Mapping[str, torch.Tensor], model: nn.Module | None
    ) -> None:
        """Copy the named modules out of the provider's own model and give them these weights."""
        if model is None:
            raise PackageError(
                f"this stage runs modules of your own program (the first is {paths[0][:100]!r}), "
                "because its model cannot be captured as a graph: pass the model itself, model=…"
            )
        known = dict(model.named_modules(remove_duplicate=False))
        if missing := [path for path in paths if path not in known]:
            raise PackageError(f"the model given has no module {missing[0][:100]!r}")
        originals = [known[path] for path in paths]
        names = _canonical_names(model)
        copies = copy.deepcopy(nn.ModuleList(originals)).to(self.device)  # together: ties survive
        self._flags = {module: module.training for module in copies.modules()}
        self._adopted = [
            (module, {name: names[f"{path}.{name}"] for name, _ in named_tensors(module)})
            for path, module in zip(paths, copies, strict=True)
        ]
        for number, module in enumerate(copies):
            self.add_module(f"m{number}", module)
        self._refresh_adopted()
        specs = {spec.name: spec for spec in self.graph.tensors}
        for name, tensor in self._tensors.items():
            _fill(tensor, name, specs.get(name), weights)

    def _refresh_adopted(self) -> None:
        """The user's modules may put new tensors in place of their buffers while they run."""
        for module, names in self._adopted:
            self._tensors.update((names[name], tensor) for name, tensor in named_tensors(module))

    @property
    def mode(self) -> Mode:
        return "train" if self.training else "eval"

    def train(self, mode: bool = True) -> "StageModule":
        """Switch the mode; modules that the user froze with `.eval()` stay frozen."""
        super().train(mode)
        if mode:
            for module, flag in self._flags.items():
                module.training = flag
        return self

    def receives(self, mode: Mode) -> tuple[int, ...]:
        """Value numbers `forward` takes, in order."""
        wires = self.graph.inputs if self.graph.is_first else self.graph.mode(mode).receives
        return tuple(wire.value for wire in wires)

    def returns(self, mode: Mode) -> tuple[int, ...]:
        """Value numbers `forward` gives back, in order."""
        return returned_values(self.graph.mode(mode))

    def forward(self, *values: Any) -> tuple[Any, ...]:
        if self._reads_storage:
            values = tuple(with_own_storage(value) for value in values)
        try:
            with casts_kept() if self._shares_casts else contextlib.nullcontext():
                return tuple(self._run[self.mode](*values))
        except RavnestError:
            raise
        except Exception as error:
            if (failure := failed_call(self._programs[self.mode], error)) is None:
                raise
            raise failure from error

    def compile(self, **options: Any) -> None:
        """Let `torch.compile` fuse the operators; worth it where call overhead dominates."""
        options.setdefault("dynamic", self.graph.static_batch is None)
        for mode, program in self._programs.items():
            self._run[mode] = torch.compile(program, **options)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and constants under the user's own names."""
        self._refresh_adopted()
        return dict(self._tensors)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "StageModule":
        raise TypeError(
            "a stage is built for its device and types, which its operators name: "
            "make another one with StageModule(graph, weights, device=…)"
        )


def _fill(
    tensor: torch.Tensor, name: str, spec: TensorSpec | None, weights: Mapping[str, torch.Tensor]
) -> None:
    """Give a tensor of the provider's model the value and the role it has in the stage."""
    if spec is None:
        raise PackageError(f"the model given has a tensor {name!r} that the stage does not know")
    if tuple(tensor.shape) != spec.shape or dtype_name(tensor.dtype) != spec.dtype:
        found = f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
        raise PackageError(
            f"the model given is not the one that was planned: {name!r} is {found}, "
            f"the stage has {spec.dtype}{list(spec.shape)}"
        )
    with torch.no_grad():
        tensor.copy_(weights[name])
    if isinstance(tensor, nn.Parameter):
        tensor.requires_grad_(spec.trainable)


def _module_paths(graph: StageGraph) -> list[str]:
    calls = [op for op in graph.train.operations if op.op == MODULE_CALL]
    return list(dict.fromkeys(str(op.kwargs.get("path")) for op in calls))


def _reads_storage(graph: StageGraph) -> bool:
    operations = (*graph.train.operations, *graph.eval.operations)
    return any(reads_whole_storage(operation.op) for operation in operations)


def named_tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers under all their names, tied ones several times."""
    return [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of a tensor → the first of its names."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in named_tensors(model)}


def returned_values(graph: ModeGraph) -> tuple[int, ...]:
    """What a stage hands on, then what the model's result is made of, each value once."""
    found = dict.fromkeys(wire.value for wire in graph.sends)
    if graph.result is not None:
        found.update(dict.fromkeys(result_values(graph.result)))
    return tuple(found)


class _Builder:
    """Translates one mode's operations into an fx graph over the stage's tensors."""

    def __init__(self, stage: StageModule, mode: ModeGraph) -> None:
        self.stage = stage
        self.mode = mode
        self.fx = torch.fx.Graph()
        self.values: dict[int, torch.fx.Node] = {}
        self.tensors: dict[int, torch.fx.Node] = {}
        self.casts: int | None = None

    def build(self) -> torch.fx.GraphModule:
        graph = self.stage.graph
        for wire in graph.inputs if graph.is_first else self.mode.receives:
            self.values[wire.value] = self.fx.placeholder(f"v{wire.value}")
        for number in self._used_tensors():
            self.tensors[number] = self.fx.get_attr(f"t{number}")
        for operation in self.mode.operations:
            self._add(operation)
        self.fx.output([self._value(number) for number in returned_values(self.mode)])
        module = torch.fx.GraphModule(self.stage, self.fx, class_name="Stage")
        # Not copies: an optimizer step on the stage must be seen by both modes' programs.
        module.__dict__["_parameters"] = self.stage._parameters
        module.__dict__["_buffers"] = self.stage._buffers
        return module

    def _used_tensors(self) -> Sequence[int]:
        used: set[int] = set()

        def note(tag: str, number: int) -> None:
            if tag == "t":
                name = f"t{number}"
                if name not in self.stage._parameters and name not in self.stage._buffers:
                    raise PackageError(f"tensor {number} does not exist outside of modules")
                used.add(number)

        for operation in self.mode.operations:
            if operation.op != MODULE_CALL:
                for argument in values_of(operation):
                    decode(argument, self.stage.device, note)
        return sorted(used)

    def _value(self, number: int) -> torch.fx.Node:
        try:
            return self.values[number]
        except KeyError:
            raise PackageError(f"value {number} is used before it exists") from None

    def _reference(self, tag: str, number: int) -> torch.fx.Node:
        return self._value(number) if tag == "v" else self.tensors[number]

    def _decode(self, argument: Any) -> Any:
        return decode(argument, self.stage.device, self._reference)

    def _add(self, operation: Operation) -> None:
        if operation.op == MODULE_CALL:
            self.values[operation.out] = self._module_call(operation)
            return
        # The loader knows the operator's own keywords. This is for whoever comes without it, since
        # keywords are the one thing from outside that generated code spells out.
        if any(not key.isidentifier() or keyword.iskeyword(key) for key in operation.kwargs):
            raise PackageError(f"operator {operation.op!r} has an unusable keyword")
        args = [self._decode(item) for item in operation.args]
        kwargs: dict[str, Any] = {}
        function: Callable[..., Any]
        if operation.op == GRADIENT:
            function = HandWritten(operation.kwargs, self.stage.device)
        else:
            kwargs = {key: self._decode(item) for key, item in operation.kwargs.items()}
            function = resolve_call(operation.op, args, kwargs)
        if operation.context is not None:
            context = self._context(operation.context)
            if context.cast_once not in (None, self.casts):
                self.fx.call_function(torch.clear_autocast_cache)
                self.casts = context.cast_once
            function = in_context(function, context, self.stage.device.type)
        node = self.fx.call_function(function, tuple(args), kwargs)
        node.meta["operator"] = operation.op
        self.values[operation.out] = node

    def _module_call(self, operation: Operation) -> torch.fx.Node:
        attribute = self.stage._attribute_of_module.get(str(operation.kwargs.get("path")))
        if attribute is None or len(operation.args) != 1:
            raise PackageError("a module call is malformed")
        result = self.fx.call_module(attribute, (self._decode(operation.args[0]),))
        if self.stage._reads_storage:
            result = self.fx.call_function(with_own_storage, (result,))
        return result

    def _context(self, number: int) -> Context:
        if not 0 <= number < len(self.stage.graph.contexts):
            raise PackageError(f"context {number} does not exist in this stage")
        context = self.stage.graph.contexts[number]
        if context.autocast_dtype is not None and context.autocast_dtype not in DTYPES:
            raise PackageError(f"unknown dtype {context.autocast_dtype[:50]!r}")
        return context
