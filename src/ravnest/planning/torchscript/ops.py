"""Which Python callable stands for a node of a TorchScript graph: one lookup per node.

Operators on tensors are called through the dispatcher, in exactly the overload that the node names,
if a stage may use them too: a file from others must not reach further than a package does.
Operators on everything else come from `ravnest.planning.torchscript.builtins`.

Knows nothing about modules, parameters or control flow: that is
`ravnest.planning.torchscript.graph`.
"""

import collections
import functools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ravnest.planning.torchscript.builtins import PLAIN, SPECIAL, first
from ravnest.planning.torchscript.numbers import (
    Function,
    NumberTensor,
    materialise,
    on_numbers,
    torch_dtype,
    torch_layout,
    torch_memory_format,
)
from ravnest.stage.operators import is_allowed

# A node, value, type or schema of TorchScript. They are C++ objects whose stubs lack most methods.
ScriptNode = Any
ScriptBlock = Any
ScriptType = Any
ScriptSchema = Any

# Not for stages, because they return no tensor: a graph has the branch that the answer selects.
_QUESTIONS = frozenset(
    {
        "aten.is_floating_point.default",  # asked before a conversion, and by many a loss
        "aten.is_complex.default",  # the same
        "aten.is_contiguous.default",  # asked before a view
        "aten.is_contiguous.memory_format",  # the same, by convolutional networks
        # nn.TransformerEncoder asks it about its padding mask; in a trace nobody reads the answer.
        "aten._nested_tensor_from_mask_left_aligned.default",
    }
)


def resolve(node: ScriptNode) -> Function | None:
    """The function from the node's input values to its output value (a sequence if several).

    None means that the node's kind is not supported.
    """
    kind = node.kind()
    if kind in _STRUCTURAL:
        return _STRUCTURAL[kind](node)
    schema = schema_of(node)
    if schema is None:
        return None
    special = SPECIAL.get(f"{kind}.{schema.overload_name}") or SPECIAL.get(kind)
    if _mentions_tensor(schema):
        return special or _dispatched(schema)
    plain = special or PLAIN.get(kind)
    return _with_declared_result(plain, schema) if plain else None


def schema_of(node: ScriptNode) -> ScriptSchema | None:
    """The exact overload that the node calls; None for a node without a schema."""
    text = str(node.schema())
    return next((schema for schema in _schemas(node.kind()) if str(schema) == text), None)


@functools.cache
def _schemas(kind: str) -> Sequence[ScriptSchema]:
    return tuple(torch._C._jit_get_schemas_for_operator(kind))


def _mentions_tensor(schema: ScriptSchema) -> bool:
    return any("Tensor" in str(it.real_type) for it in (*schema.arguments, *schema.returns))


# --- operators of the dispatcher -------------------------------------------------------------

_ADAPTORS = {
    "ScalarType": torch_dtype,
    "Layout": torch_layout,
    "MemoryFormat": torch_memory_format,
    "Tensor": materialise,
}


@dataclass(frozen=True)
class _Dispatched:
    """One overload of a registered operator, called with a node's inputs in schema order."""

    overload: Any
    schema: ScriptSchema
    adaptors: tuple[Function | None, ...]
    keywords: tuple[str | None, ...]

    def __call__(self, *inputs: Any) -> Any:
        if inputs and isinstance(inputs[0], NumberTensor):
            number = on_numbers(self.schema, inputs)
            if number is not None:
                return number
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for value, adapt, keyword in zip(inputs, self.adaptors, self.keywords, strict=True):
            adapted = adapt(value) if adapt else value
            if keyword is None:
                positional.append(adapted)
            else:
                named[keyword] = adapted
        return self.overload(*positional, **named)


def _dispatched(schema: ScriptSchema) -> Function | None:
    namespace, name = schema.name.split("::")
    overload_name = schema.overload_name or "default"
    qualified = f"{namespace}.{name}.{overload_name}"
    if not is_allowed(qualified) and qualified not in _QUESTIONS:
        return None
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overload = getattr(packet, overload_name, None)
    if overload is None:
        return None
    arguments = overload._schema.arguments
    return _Dispatched(
        overload,
        schema,
        adaptors=tuple(_adaptor(str(argument.real_type)) for argument in arguments),
        keywords=tuple(argument.name if argument.kwarg_only else None for argument in arguments),
    )


def _adaptor(type_name: str) -> Function | None:
    return next((adapt for part, adapt in _ADAPTORS.items() if part in type_name), None)


def _with_declared_result(function: Function, schema: ScriptSchema) -> Function:
    """`pow` and `round` of integers are floats in TorchScript."""
    if [str(it.real_type) for it in schema.returns] != ["float"]:
        return function
    return lambda *inputs: torch.sym_float(function(*inputs))


# --- nodes whose meaning is in their attributes ----------------------------------------------


def _tuple_maker(node: ScriptNode) -> Function:
    type_ = node.output().type()
    fields = _field_names(type_.str())
    if len(fields) != len(type_.elements()):
        return lambda *items: items
    make = _named_tuple(type_.annotation_str.split(".")[-1], fields)
    return lambda *items: make(*items)


def _field_names(type_text: str) -> tuple[str, ...]:
    """("a", "b") of `NamedTuple(a : Tensor, b : (int, int))`; nothing for another type."""
    if not type_text.startswith("NamedTuple("):
        return ()
    inner = type_text.removeprefix("NamedTuple(").removesuffix(")")
    while re.search(r"[(\[][^()\[\]]*[)\]]", inner):  # drop the innermost parentheses, repeatedly
        inner = re.sub(r"[(\[][^()\[\]]*[)\]]", "", inner)
    return tuple(field.partition(":")[0].strip() for field in inner.split(","))


@functools.cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """One class per name and fields, so that two captures of a model agree on its output type."""
    make: Any = collections.namedtuple  # mypy wants a literal name; it is known only here
    return make(name, fields)


def _isinstance_test(node: ScriptNode) -> Function:
    types = node.tys("types")
    return lambda value: any(_matches(value, type_) for type_ in types)


_PYTHON_TYPES: dict[str, Any] = {
    "TensorType": (torch.Tensor, NumberTensor),
    "FloatType": (float, torch.SymFloat),
    "BoolType": (bool, torch.SymBool),
    "StringType": str,
    "NoneType": type(None),
    "DeviceObjType": torch.device,
    "ComplexType": complex,
}


def _matches(value: Any, type_: ScriptType) -> bool:
    kind = type_.kind()
    if kind == "IntType":
        return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)
    if kind == "ListType":
        element = type_.getElementType()
        return isinstance(value, list) and all(_matches(item, element) for item in value)
    if kind == "DictType":
        key, item = type_.getKeyType(), type_.getValueType()
        return isinstance(value, dict) and all(
            _matches(k, key) and _matches(v, item) for k, v in value.items()
        )
    if kind == "TupleType":
        elements = type_.elements()
        return (
            isinstance(value, tuple)
            and len(value) == len(elements)
            and all(map(_matches, value, elements))
        )
    if kind in ("OptionalType", "UnionType"):
        return any(_matches(value, option) for option in type_.containedTypes())
    if kind in _PYTHON_TYPES:
        return isinstance(value, _PYTHON_TYPES[kind])
    raise TypeError(f"cannot test whether a value is a {type_.annotation_str}")


def _tuple_slicer(node: ScriptNode) -> Function:
    begin, end = node.i("beg"), node.i("end")
    return lambda items: items[begin:end]


_STRUCTURAL: dict[str, Callable[[ScriptNode], Function]] = {
    "prim::ListConstruct": lambda node: lambda *items: list(items),
    "prim::TupleConstruct": _tuple_maker,
    "prim::DictConstruct": lambda node: (
        lambda *items: dict(zip(items[::2], items[1::2], strict=True))
    ),
    "prim::ListUnpack": lambda node: first,
    "prim::TupleUnpack": lambda node: first,
    "prim::TupleIndex": lambda node: operator.getitem,
    "prim::TupleSlice": _tuple_slicer,
    "prim::isinstance": _isinstance_test,
    "prim::tolist": lambda node: lambda tensor, *_: materialise(tensor).tolist(),
}
