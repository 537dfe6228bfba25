"""Numbers that TorchScript writes as something else, and things it writes as numbers.

`torch.jit.trace` computes sizes with tensors of one element. Read back with `.item()`, such a size
is data to `torch.export` and no longer a dimension. So a `NumberTensor` stays a number, symbolic or
not, until an operator really needs a tensor. The other way round, TorchScript writes a dtype, a
layout and a memory format as an integer.

Knows nothing about graphs and nodes: see `ravnest.planning.torchscript.ops`.
"""

import ctypes
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Function = Callable[..., Any]

# --- how TorchScript writes dtypes and layouts ------------------------------------------------

# c10/core/ScalarType.h, Layout.h and MemoryFormat.h: part of the file format, so never renumbered.
_DTYPES: dict[int, torch.dtype] = {
    **dict(enumerate((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))),
    **dict(enumerate((torch.float16, torch.float32, torch.float64), start=5)),
    **dict(enumerate((torch.complex32, torch.complex64, torch.complex128, torch.bool), start=8)),
    **dict(enumerate((torch.qint8, torch.quint8, torch.qint32, torch.bfloat16), start=12)),
    **dict(enumerate((torch.float8_e5m2, torch.float8_e4m3fn), start=23)),
    **dict(enumerate((torch.float8_e5m2fnuz, torch.float8_e4m3fnuz), start=25)),
    **dict(enumerate((torch.uint16, torch.uint32, torch.uint64), start=27)),
}
_LAYOUTS = dict(enumerate((torch.strided, torch.sparse_coo, torch.sparse_csr)))
_MEMORY_FORMATS = {
    0: torch.contiguous_format,
    1: torch.preserve_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
}
CODE_OF_DTYPE = {dtype: code for code, dtype in _DTYPES.items()}
CODE_OF_LAYOUT = {layout: code for code, layout in _LAYOUTS.items()}


def torch_dtype(code: Any) -> Any:
    return _DTYPES[code] if isinstance(code, int) else code


def torch_layout(code: Any) -> Any:
    return _LAYOUTS[code] if isinstance(code, int) else code


def torch_memory_format(code: Any) -> Any:
    return _MEMORY_FORMATS[code] if isinstance(code, int) else code


# --- numbers that TorchScript calls tensors --------------------------------------------------


@dataclass(frozen=True)
class NumberTensor:
    """A tensor of one element and no dimensions, kept as a number (possibly symbolic)."""

    value: Any
    dtype: torch.dtype

    def tensor(self) -> torch.Tensor:
        return torch.scalar_tensor(self.value, dtype=self.dtype)


# In the order of type promotion: the result of two numbers has the later dtype.
_NUMBER_DTYPES = (torch.bool, torch.int32, torch.int64, torch.float32, torch.float64)
ARITHMETIC: dict[str, Function] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
}
COMPARISON: dict[str, Function] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_UNARY: dict[str, Function] = {
    "neg": operator.neg,
    "floor": math.floor,
    "ceil": math.ceil,
    "detach": lambda value: value,
    "clone": lambda value: value,
}


def number_constant(tensor: torch.Tensor) -> NumberTensor | None:
    """A constant tensor of the graph as a number, if it is one."""
    if tensor.dim() or tensor.dtype not in _NUMBER_DTYPES or tensor.device.type != "cpu":
        return None
    return NumberTensor(tensor.item(), tensor.dtype)


def materialise(value: Any) -> Any:
    """The value as operators on tensors expect it."""
    if isinstance(value, NumberTensor):
        return value.tensor()
    if isinstance(value, list) and any(isinstance(item, NumberTensor) for item in value):
        return [materialise(item) for item in value]
    return value


def on_numbers(schema: Any, arguments: Sequence[Any]) -> NumberTensor | None:
    """The operator's result as a number; None if it has to be computed with tensors."""
    number, *rest = arguments
    if any(isinstance(value, torch.device) and value.type != "cpu" for value in rest):
        return None
    name = schema.name.removeprefix("aten::").removesuffix("_")
    if name == "to" and schema.overload_name in ("dtype", "device"):
        dtype = rest[0] if schema.overload_name == "dtype" else rest[1]
        return _rounded(number.value, torch_dtype(dtype))
    if name in _UNARY:
        return _rounded(_UNARY[name](number.value), number.dtype)
    if name in ARITHMETIC | COMPARISON and _is_number(rest[0]):
        return _of_two(name, number, rest[0], rest[1:])
    return None


def _of_two(name: str, left: NumberTensor, other: Any, options: list[Any]) -> NumberTensor | None:
    """`options` is the `alpha` of a sum or the `rounding_mode` of a division."""
    right = other if isinstance(other, NumberTensor) else _beside(left, other)
    if name in COMPARISON:
        return NumberTensor(COMPARISON[name](left.value, right.value), torch.bool)
    if not {left.dtype, right.dtype} <= set(_NUMBER_DTYPES):
        return None
    dtype = max(left.dtype, right.dtype, key=_NUMBER_DTYPES.index)
    if name == "div" and options in ([], [None]):
        dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    elif name == "div" and left.value >= 0 and right.value > 0:
        name = "floor_divide"  # "floor" and "trunc" agree on sizes
    elif options not in ([], [1]):
        return None
    if name in ("div", "floor_divide", "remainder") and right.value == 0:
        return None  # infinite or an error: leave it to the tensors
    return _rounded(ARITHMETIC[name](left.value, right.value), dtype)


def _beside(tensor: NumberTensor, number: Any) -> NumberTensor:
    """A plain number, in a dtype that promotes the tensor only from integer to float."""
    promotes = isinstance(number, float | torch.SymFloat) and not tensor.dtype.is_floating_point
    return NumberTensor(number, torch.get_default_dtype() if promotes else torch.bool)


def _is_number(value: Any) -> bool:
    symbolic = (torch.SymInt, torch.SymFloat)
    return isinstance(value, (NumberTensor, int, float, *symbolic)) and not isinstance(value, bool)


def _rounded(value: Any, dtype: torch.dtype) -> NumberTensor | None:
    """The number as a tensor of this dtype would hold it: 10 * 2.1 is 21.0 in float32 only."""
    if dtype not in _NUMBER_DTYPES or dtype == torch.bool:
        return None
    if not dtype.is_floating_point:
        return NumberTensor(torch.sym_int(value), dtype)
    value = torch.sym_float(value)
    if dtype == torch.float32 and isinstance(value, float):
        value = ctypes.c_float(value).value
    return NumberTensor(value, dtype)


def from_number(value: Any) -> NumberTensor:
    if isinstance(value, bool | torch.SymBool):
        return NumberTensor(value, torch.bool)
    is_integer = isinstance(value, int | torch.SymInt)
    return NumberTensor(value, torch.int64 if is_integer else torch.float64)


def to_number(value: Any) -> Any:
    if isinstance(value, NumberTensor):
        return value.value
    return value.item() if isinstance(value, torch.Tensor) else value
