"""Cut at module boundaries: the way out for models that cannot be captured as a graph.

It is right only for a pure chain, `x = self.a(x); x = self.b(x); …`, where each module takes one
tensor and returns one. That is proved, not guessed: either the model is an `nn.Sequential`, whose
forward is known, or its own forward is traced symbolically with every child as a black box, which
fails on any branch that depends on data. What happens inside a module does not matter then: it runs
as the user's own code, on the provider that has it. Such a stage carries module names and weights;
a provider can only run it with the model itself at hand.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from ravnest.planning.capture.borrowing import switched_to, unchanged, values_restored
from ravnest.planning.capture.call import Call
from ravnest.planning.capture.hooks import has_global_hooks, has_hooks
from ravnest.planning.capture.program import Held, HeldTensor, ModuleCall, Op, Program, Value
from ravnest.planning.capture.tensors import held_tensors
from ravnest.stage.module import named_tensors


def chain_program(model: nn.Module, call: Call) -> Program | None:
    """The model as a chain of its modules, or None if it is not one."""
    if len(call.leaves) != 1 or len(call.arguments) != 1 or call.leaves[0].is_meta:
        return None
    if any(tensor.is_meta for tensor in model.parameters()):
        return None
    with values_restored(model), unchanged(model), switched_to(model, "train"):
        paths = _chain_paths(model)
    if paths is None or len(paths) < 2:
        return None
    held = held_tensors(model)
    inside = {
        held[f"{path}.{name}"].name
        for path in paths
        for name, _ in named_tensors(model.get_submodule(path))
    }
    if inside != {entry.name for entry in held.values()}:
        return None  # a parameter outside the chain could take part in ways nobody sees
    try:
        calls = _observe(model, paths, call, held)
    except Exception:  # the model fails on these inputs: whoever asked knows a better error
        return None
    return None if calls is None else _as_program(calls, call, held)


def _chain_paths(model: nn.Module) -> list[str] | None:
    """Paths of the modules in the order they run."""
    if has_global_hooks() or not _is_called_plainly(model):
        return None
    if _is_sequence(model):
        return [path for name, child in model._modules.items() for path in _expand(name, child)]
    try:
        graph = _ChildTracer().trace(model)
    except Exception:  # symbolic tracing fails in many ways; each means "not a plain chain"
        return None
    nodes = [node for node in graph.nodes if node.op != "placeholder" or node.users]
    first, *calls, output = nodes
    if first.op != "placeholder" or output.op != "output":
        return None
    previous = first
    paths: list[str] = []
    for node in calls:
        chained = node.op == "call_module" and node.args == (previous,) and not node.kwargs
        if not chained or len(previous.users) != 1:
            return None
        paths.extend(_expand(str(node.target), model.get_submodule(str(node.target))))
        previous = node
    repeated = len(set(paths)) != len(paths)
    return None if output.args != (previous,) or repeated else paths


class _ChildTracer(torch.fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _expand(path: str, module: nn.Module | None) -> Iterator[str]:
    if module is not None and _is_sequence(module) and _is_called_plainly(module):
        for name, child in module._modules.items():  # named_children() leaves repetitions out
            yield from _expand(f"{path}.{name}", child)
    else:
        yield path


def _is_sequence(module: nn.Module) -> bool:
    """Does running its children one after the other do the same as its forward?"""
    return (
        isinstance(module, nn.Sequential)
        and len(module) > 0
        and type(module).forward is nn.Sequential.forward
        and type(module).__iter__ is nn.Sequential.__iter__
    )


def _is_called_plainly(module: nn.Module) -> bool:
    """Does calling it run its forward and nothing else?"""
    kind = type(module)
    return (
        kind.__call__ is nn.Module.__call__
        and not {"forward", "_call_impl"} & vars(module).keys()
        and not has_hooks(module)
    )


@dataclass
class _Observed:
    call: ModuleCall
    input: torch.Tensor
    output: torch.Tensor


def _observe(
    model: nn.Module, paths: list[str], call: Call, held: dict[str, HeldTensor]
) -> list[_Observed] | None:
    """Run the chain once for real, watching what each module does to its input."""
    observed = []
    with values_restored(model), unchanged(model), switched_to(model, "train"), torch.no_grad():
        value = call.leaves[0].clone()
        for path in paths:
            module = model.get_submodule(path)
            version, storage = value._version, value.untyped_storage().data_ptr()
            result = module(value)
            if not isinstance(result, torch.Tensor):
                return None
            seen = ModuleCall(
                path,
                module,
                buffers=frozenset(held[f"{path}.{n}"].name for n, _ in module.named_buffers()),
                writes_input=value._version != version,
                shares_input=result.untyped_storage().data_ptr() == storage,
            )
            observed.append(_Observed(seen, value.to("meta"), result.to("meta")))
            value = result
    return observed


def _as_program(calls: list[_Observed], call: Call, held: dict[str, HeldTensor]) -> Program:
    ops = []
    for number, seen in enumerate(calls):
        path = seen.call.path
        names = [held[f"{path}.{name}"].name for name, _ in named_tensors(seen.call.module)]
        ops.append(
            Op(
                out=number + 1,
                target=seen.call,
                args=(Value(number),),
                kwargs={"path": path, "tensors": [Held(name) for name in dict.fromkeys(names)]},
                example=seen.output,
                context=None,
                path=path,
                source="",
            )
        )
    batch = call.batch_size
    shapes = {0: _open_shape(calls[0].input, batch)}
    shapes.update((op.out, _open_shape(op.example, batch)) for op in ops)
    canonical = {entry.name: entry for entry in held.values()}
    return Program(
        arguments=call.arguments,
        inputs=[calls[0].input],
        ops=ops,
        result={"leaf": len(ops)},
        held=canonical,
        dynamic=True,
        batch_size=batch,
        written={name for name, entry in canonical.items() if entry.kind == "buffer"},
        wire_shapes=shapes,
    )


def _open_shape(tensor: torch.Tensor, batch: int) -> tuple[int, ...]:
    """Rows follow the batch; the self-check at another batch size would notice if they did not."""
    first, *rest = tensor.shape if tensor.dim() else (0,)
    return (-1 if first == batch else first, *rest) if tensor.dim() else ()
