"""From `torch.export`'s nested graph to our flat list of operators.

Scopes (`no_grad`, autocast) arrive as operators that call a sub-graph: they are inlined and each
operator inside is tagged with its scope. Assertions about shapes are dropped. Writes to buffers,
which export puts at the very end, move up behind their source, so that they stay on its stage.
"""

import operator
from collections import Counter, defaultdict
from typing import Any

import msgspec
import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from ravnest.errors import CaptureError
from ravnest.planning.capture.functions import joined
from ravnest.planning.capture.program import Held, HeldTensor, Op, Program, Value
from ravnest.planning.capture.sources import TRANSFORMS_REMEDY, place_of
from ravnest.planning.capture.unrolling import unroll_recurrent
from ravnest.planning.capture.writes import is_mutating, written_at
from ravnest.stage import structure
from ravnest.stage.graph import Argument, Context
from ravnest.stage.operators import GRADIENT, dtype_name, is_allowed, operator_name

_DROPPED = {
    "aten::_assert_tensor_metadata",
    "aten::_assert_scalar",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
    "aten::_functional_assert_async",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
}
_OF_TRANSFORMS = ("vmap", "batch_dim", "dual", "jvp", "_nesting", "lazy_load_decompositions")
"""Parts of the names of what torch calls when a function is transformed."""
_PREFIX = "model."


def lower(
    exported: ExportedProgram,
    *,
    arguments: tuple[Argument, ...],
    result: structure.Structure,
    held: dict[str, HeldTensor],
    dynamic: bool,
    batch_size: int,
) -> Program:
    """Flatten, simplify and number one exported program."""
    flattener = _Flattener(exported, held)
    outputs = flattener.run()
    outputs = [flattener.as_value(output) for output in outputs]
    _write_without_grad(flattener.ops)
    ops = unroll_recurrent(joined(flattener.ops), flattener.fresh)
    ops = _drop_unused(ops, [value.number for value in outputs])
    ops = _move_buffer_writes(ops)
    _share_casts(ops)
    program = Program(
        arguments=arguments,
        inputs=flattener.inputs,
        ops=ops,
        result=structure.relabel(result, lambda leaf: outputs[leaf].number),
        held=_canonical(held),
        dynamic=dynamic,
        batch_size=batch_size,
        written={name for _, names in written_at(ops) for name in names},
    )
    _refuse_unknown_operators(program)
    return program


def _canonical(held: dict[str, HeldTensor]) -> dict[str, HeldTensor]:
    return {entry.name: entry for entry in held.values()}


class _Flattener:
    """Walks the exported graph and its sub-graphs in execution order."""

    def __init__(self, exported: ExportedProgram, held: dict[str, HeldTensor]) -> None:
        self.exported = exported
        self.held = held
        self.inputs: list[torch.Tensor] = []
        self.ops: list[Op] = []
        self._next = 0
        self._regions = 0

    def run(self) -> list[Any]:
        signature = self.exported.graph_signature
        for spec in signature.output_specs:
            if spec.kind is not OutputKind.USER_OUTPUT:
                raise CaptureError(f"the model has an output of kind {spec.kind.name}")
        environment: dict[torch.fx.Node, Any] = {}
        specs = {spec.arg.name: spec for spec in signature.input_specs}
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                environment[node] = self._placeholder(node, specs[node.name])
        module = self.exported.graph_module
        return list(self._walk(module, environment, context=None, region=None, path=""))

    def fresh(self) -> int:
        """A value number that nobody has yet."""
        self._next += 1
        return self._next - 1

    def as_value(self, output: Any) -> Value:
        """A result as a value; a tensor of the model itself is returned through an alias."""
        if isinstance(output, Value):
            return output
        if not isinstance(output, Held):
            raise CaptureError(f"the model returns an object of type {type(output).__name__}")
        uses = [index for index, op in enumerate(self.ops) if output.name in op.held()]
        place = max(uses, default=len(self.ops) - 1) + 1
        alias = Op(
            out=self.fresh(),
            target=torch.ops.aten.alias.default,
            args=(output,),
            kwargs={},
            example=self.held[output.name].tensor,
            context=None,
            path="",
            source="",
        )
        self.ops.insert(place, alias)
        return Value(alias.out)

    def _placeholder(self, node: torch.fx.Node, spec: Any) -> Any:
        if spec.kind is InputKind.USER_INPUT:
            self.inputs.append(node.meta["val"])
            return Value(self.fresh())
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            return Held(self.held[spec.target.removeprefix(_PREFIX)].name)
        raise CaptureError(
            f"the model's forward uses {spec.target!r}, an object of kind {spec.kind.name} (a "
            "random generator or a custom class), which cannot travel; use torch's own generator, "
            "and tensors for everything else"
        )

    def _walk(
        self,
        module: Any,
        environment: dict[torch.fx.Node, Any],
        *,
        context: Context | None,
        region: int | None,
        path: str,
    ) -> Any:
        def known(argument: Any) -> Any:
            return torch.fx.map_arg(argument, lambda node: environment[node])

        for node in module.graph.nodes:
            if node.op == "get_attr":
                environment[node] = getattr(module, node.target)
            elif node.op == "output":
                return known(node.args[0])
            elif node.op == "call_function":
                if _is_dropped(node.target):
                    continue
                args, kwargs = known(node.args), known(node.kwargs)
                if isinstance(node.target, HigherOrderOperator):
                    environment[node] = self._inline(node, args, context, region)
                elif node.target is operator.getitem and isinstance(args[0], list | tuple):
                    environment[node] = args[0][args[1]]
                else:
                    environment[node] = self._append(node, args, kwargs, context, region, path)
        raise AssertionError("a graph without output")

    def _append(
        self,
        node: torch.fx.Node,
        args: Any,
        kwargs: Any,
        context: Context | None,
        region: int | None,
        path: str,
    ) -> Value:
        stack = node.meta.get("nn_module_stack")
        where = next(reversed(stack.values()))[0] if stack else path
        op = Op(
            out=self.fresh(),
            target=node.target,
            args=_plain(args),
            kwargs=dict(_plain(kwargs)),
            example=node.meta.get("val"),
            context=context,
            path=where.removeprefix("model").removeprefix("."),
            source=place_of(node.meta.get("stack_trace")),
            region=region,
        )
        self.ops.append(op)
        return Value(op.out)

    def _inline(
        self, node: torch.fx.Node, args: Any, context: Context | None, region: int | None
    ) -> Any:
        name = getattr(node.target, "_name", str(node.target))
        outer = context or Context()
        if name == "wrap_with_set_grad_enabled":
            inner = Context(
                grad=bool(args[0]),
                autocast_dtype=outer.autocast_dtype,
                autocast_enabled=outer.autocast_enabled,
            )
            body, rest = args[1], args[2:]
        elif name == "wrap_with_autocast":
            inner = Context(
                grad=outer.grad,
                autocast_dtype=dtype_name(args[1]) if args[1] else "bfloat16",
                autocast_enabled=bool(args[2]),
            )
            body, rest = args[4], args[5:]
        else:
            raise CaptureError(
                f"the model uses {name} {place_of(node.meta.get('stack_trace'))}: "
                "control flow operators cannot be cut; use torch.where or unroll the loop"
            )
        placeholders = [n for n in body.graph.nodes if n.op == "placeholder"]
        environment = dict(zip(placeholders, rest, strict=True))
        if region is None:
            self._regions += 1
            region = self._regions
        return self._walk(body, environment, context=inner, region=region, path="")


def _plain(argument: Any) -> Any:
    """fx keeps its own immutable containers; ours are ordinary ones."""
    if isinstance(argument, dict):
        return {key: _plain(item) for key, item in argument.items()}
    if isinstance(argument, tuple):
        return tuple(_plain(item) for item in argument)
    if isinstance(argument, list):
        return [_plain(item) for item in argument]
    return argument


def _is_dropped(target: Any) -> bool:
    return isinstance(target, OpOverload) and target._schema.name in _DROPPED


def _drop_unused(ops: list[Op], results: list[int]) -> list[Op]:
    """Without operators whose result nobody reads, except those that write to something.

    Assertions stay, that values are such as the capture has relied on. Random draws stay too:
    dropping one would shift every later draw, and with equal seeds the stages would no longer do
    what the model does.
    """
    live = set(results)
    kept = []
    for op in reversed(ops):
        if op.out in live or is_mutating(op) or _draws(op) or _asserts(op):
            kept.append(op)
            live.update(op.values())
    return kept[::-1]


def _draws(op: Op) -> bool:
    return isinstance(op.target, OpOverload) and (
        torch.Tag.nondeterministic_seeded in op.target.tags
    )


def _asserts(op: Op) -> bool:
    return isinstance(op.target, OpOverload) and op.target._schema.name == "aten::_assert_async"


def _write_without_grad(ops: list[Op]) -> None:
    """`buffer.copy_(new.detach())` becomes a copy of `new` itself, outside autograd.

    The detach sits at the end of the graph; without it the copy is free to move up.
    """
    by_number = {op.out: op for op in ops}
    for op in ops:
        if _is_buffer_copy(op) and isinstance(op.args[1], Value):
            source = by_number.get(op.args[1].number)
            if source is not None and operator_name(source.target) == "aten.detach.default":
                op.args = (op.args[0], source.args[0], *op.args[2:])
            op.context = Context(grad=False)


def _share_casts(ops: list[Op]) -> None:
    """Have tensors that an autocast region reads several times cast once, as the model does."""
    casting = [op for op in ops if op.context is not None and op.context.autocast_enabled]
    reads = Counter((op.region, name) for op in casting for name in set(op.held()))
    shared = {region for (region, _), times in reads.items() if times > 1}
    for op in casting:
        if op.region in shared and op.context is not None:
            op.context = msgspec.structs.replace(op.context, cast_once=op.region)


def _move_buffer_writes(ops: list[Op]) -> list[Op]:
    """Each trailing `buffer.copy_(new)` goes right behind `new` and the last reader of the old."""
    order = [op for op in ops if not _is_buffer_copy(op)]
    readers: defaultdict[str, int] = defaultdict(lambda: -1)
    position: dict[int, int] = {}
    views: dict[int, set[str]] = {}
    for index, op in enumerate(order):
        position[op.out] = index
        names = set(op.held()).union(*(views.get(number, ()) for number in op.values()))
        for name in names:
            readers[name] = index
        if _may_be_view(op):
            views[op.out] = names
    inserted: defaultdict[int, list[Op]] = defaultdict(list)
    for op in ops:
        if _is_buffer_copy(op):
            source = max((position.get(value, -1) for value in op.values()), default=-1)
            inserted[max(source, readers[op.args[0].name])].append(op)
    result = list(inserted[-1])
    for index, op in enumerate(order):
        result.append(op)
        result.extend(inserted[index])
    return result


def _may_be_view(op: Op) -> bool:
    """Can the result show a buffer's memory? Whoever reads it then reads the buffer."""
    if not isinstance(op.target, OpOverload):
        return True
    return any(result.alias_info is not None for result in op.target._schema.returns)


def _is_buffer_copy(op: Op) -> bool:
    return (
        isinstance(op.target, OpOverload)
        and op.target._schema.name == "aten::copy_"
        and isinstance(op.args[0], Held)
    )


def _refuse_unknown_operators(program: Program) -> None:
    for op in program.ops:
        name = operator_name(op.target)
        if name == GRADIENT:
            continue  # joined() has looked at its operators
        if not is_allowed(name) and any(word in name for word in _OF_TRANSFORMS):
            raise CaptureError(
                f"the model uses a transform of torch.func ({op.source or 'unknown line'}). "
                f"{TRANSFORMS_REMEDY}."
            )
        if not is_allowed(name):
            where = f"module {op.path!r}" if op.path else "the model"
            raise CaptureError(
                f"{where} uses the operator {name!r} ({op.source or 'unknown line'}), which is not "
                "on the allow-list of stage packages. Replace it with ordinary tensor operations, "
                "or call ravnest.stage.operators.allow_operator(name) here and let the owners of "
                f"server and providers start them with --allow-operator {name}."
            )
