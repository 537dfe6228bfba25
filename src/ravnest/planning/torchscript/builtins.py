"""What TorchScript computes with lists, strings, numbers and sizes, as Python functions.

TorchScript has C++ operators for these. While `torch.export` traces, a size may be a symbol, and a
C++ operator would turn it into the number of the example batch; Python functions keep the symbol.

Knows nothing about graphs and nodes: see `ravnest.planning.torchscript.ops`, which looks up here.
"""

import builtins
import functools
import math
import operator
import warnings
from typing import Any, NoReturn

import torch

from ravnest.planning.torchscript.numbers import (
    ARITHMETIC,
    CODE_OF_DTYPE,
    CODE_OF_LAYOUT,
    COMPARISON,
    Function,
    NumberTensor,
    from_number,
    materialise,
    to_number,
    torch_dtype,
)
from ravnest.planning.torchscript.traced import TRACED


def _method(name: str, result: str = "value") -> Function:
    """A method of a list, dict or string; TorchScript's `append` returns the list itself."""

    def call(receiver: Any, *inputs: Any) -> Any:
        value = getattr(receiver, name)(*inputs)
        return receiver if result == "receiver" else value

    return call


def _listed(name: str) -> Function:
    return lambda receiver: list(getattr(receiver, name)())


def _sort(items: list[Any], reverse: bool = False) -> None:
    items.sort(reverse=reverse)


def _set_item(container: Any, key: Any, value: Any) -> Any:
    container[key] = value
    return container


def _slice(items: Any, start: int | None, end: int | None, step: int) -> Any:
    return items[start:end:step]


def _range_length(start: Any, end: Any, step: Any) -> Any:
    if step == 0:
        raise ValueError("range() arg 3 must not be zero")
    if step > 0:
        return (end - start + step - 1) // step if start < end else 0
    return (start - end - step - 1) // -step if start > end else 0


def _extreme(function: Function) -> Function:
    """min and max of two numbers, or of one list; the symbolic form keeps sizes dynamic."""

    def call(*inputs: Any) -> Any:
        items = inputs[0] if len(inputs) == 1 else inputs
        if any(isinstance(item, list) for item in items):
            return (min if function is torch.sym_min else max)(items)
        return functools.reduce(function, items)

    return call


def _warn(message: str, stacklevel: int = 2) -> None:
    warnings.warn(message, stacklevel=stacklevel)


def _format(template: str, *items: Any) -> str:
    """TorchScript knows `{}` only; `str.format` would also read attributes, as the file says."""
    first_part, *parts = template.split("{}")
    if len(parts) > len(items):
        raise RuntimeError(f"too few arguments for format string {template!r}")
    return first_part + "".join(str(item) + part for item, part in zip(items, parts, strict=False))


def _unwrap(value: Any) -> Any:
    if value is None:
        raise RuntimeError("the model unwraps an optional value that is None")
    return value


def _raise(message: str, class_name: str | None = None) -> NoReturn:
    """Raise what the user's code raises. Only built-in classes: a file must not choose others."""
    found = getattr(builtins, (class_name or "").removeprefix("builtins."), None)
    if isinstance(found, type) and issubclass(found, Exception):
        raise found(message)
    raise RuntimeError(message)


def first(value: Any, *_: Any) -> Any:
    return value


def _make_tensor(
    data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> torch.Tensor:
    """torch.tensor, which cannot hold a symbolic number."""
    dtype = torch_dtype(dtype)
    if isinstance(data, list):
        return torch.tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)
    number = data if isinstance(data, NumberTensor) else from_number(to_number(data))
    default = torch.get_default_dtype() if number.dtype == torch.float64 else number.dtype
    made = torch.scalar_tensor(number.value, dtype=dtype or default, device=device)
    return made.requires_grad_() if requires_grad else made


def _as_tensor(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    if isinstance(data, torch.Tensor):
        return data.to(device=device or data.device, dtype=torch_dtype(dtype) or data.dtype)
    return _make_tensor(data, dtype, device)


def _to_device_and_dtype(
    tensor: torch.Tensor, device: Any, dtype: Any, non_blocking: bool, copy: bool
) -> torch.Tensor:
    return tensor.to(
        device=device or tensor.device,
        dtype=torch_dtype(dtype) or tensor.dtype,
        non_blocking=non_blocking,
        copy=copy,
    )


def _property(name: str) -> Function:
    return lambda tensor: getattr(materialise(tensor), name)


SPECIAL: dict[str, Function] = {
    **TRACED,
    "prim::NumToTensor": from_number,
    "aten::Int": lambda value: torch.sym_int(to_number(value)),
    "aten::Float": lambda value: torch.sym_float(to_number(value)),
    "aten::Bool": lambda value: bool(to_number(value)),
    "aten::item": to_number,
    "aten::ScalarImplicit": to_number,
    "aten::IntImplicit": lambda value: torch.sym_int(to_number(value)),
    "aten::FloatImplicit": lambda value: torch.sym_float(to_number(value)),
    "aten::size": lambda tensor: list(materialise(tensor).shape),
    "aten::size.int": lambda tensor, dim: materialise(tensor).shape[dim],
    "aten::stride": lambda tensor: list(tensor.stride()),
    "aten::stride.int": lambda tensor, dim: tensor.stride()[dim],
    "aten::dim": lambda tensor: materialise(tensor).dim(),
    "aten::len": len,
    "aten::numel": lambda tensor: materialise(tensor).numel(),
    "aten::tensor": _make_tensor,
    "aten::as_tensor": _as_tensor,
    "aten::dict": dict,
    "aten::split.": lambda tensor, sizes, dim: list(tensor.split(sizes, dim)),
    "aten::split.str": lambda text, separator, limit: text.split(separator, limit),
    "aten::to.prim_Device": _to_device_and_dtype,
    "aten::to.prim_dtype": lambda tensor, *rest: _to_device_and_dtype(tensor, None, *rest),
    "aten::to.prim_other": lambda tensor, *rest: _to_device_and_dtype(tensor, None, None, *rest),
    "prim::dtype": lambda tensor: CODE_OF_DTYPE[tensor.dtype],
    "prim::layout": lambda tensor: CODE_OF_LAYOUT[materialise(tensor).layout],
    "prim::data": lambda tensor: materialise(tensor).detach(),
    **{
        f"prim::{name}": _property(name)
        for name in (
            *("device", "requires_grad", "is_cpu", "is_cuda", "is_xpu", "is_mps", "is_meta"),
            *("is_sparse", "is_sparse_csr", "is_mkldnn", "is_nested", "is_quantized"),
            *("itemsize", "nbytes"),
        )
    },
}

PLAIN: dict[str, Function] = {
    **{f"aten::{name}": function for name, function in ARITHMETIC.items()},
    **{f"aten::{name}": function for name, function in COMPARISON.items()},
    **{
        f"aten::{name}": getattr(math, name)
        for name in (
            *("ceil", "floor", "fabs", "gcd", "fmod", "exp", "expm1", "log", "log1p", "log10"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh"),
            *("erf", "isnan", "isinf", "isfinite", "copysign", "degrees", "radians", "factorial"),
        )
    },
    "aten::sqrt": torch.sym_sqrt,
    "aten::neg": operator.neg,
    "aten::pow": operator.pow,
    "aten::round": round,
    "aten::floordiv": operator.floordiv,
    "aten::__round_to_zero_floordiv": lambda a, b: torch.sym_int(a / b),
    "aten::divmod": divmod,
    "prim::abs": abs,
    "prim::min": _extreme(torch.sym_min),
    "prim::max": _extreme(torch.sym_max),
    "aten::sum": sum,
    "aten::any": any,
    "aten::all": all,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__xor__": operator.xor,
    "aten::__lshift__": operator.lshift,
    "aten::__rshift__": operator.rshift,
    "aten::__not__": operator.not_,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__contains__": operator.contains,
    "aten::__getitem__": operator.getitem,
    "aten::select": operator.getitem,
    "prim::StringIndex": operator.getitem,
    "aten::_set_item": _set_item,
    "aten::Delete": operator.delitem,
    "aten::slice": _slice,
    "aten::list": list,
    "aten::Size": list,
    "prim::rangelist": lambda length: list(range(length)),
    "aten::__range_length": _range_length,
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::add_": _method("__iadd__"),
    "aten::mul_": _method("__imul__"),
    **{
        f"aten::{name}": _method(name, result="receiver")
        for name in ("append", "extend", "insert", "reverse", "clear", "remove", "update")
    },
    **{
        f"aten::{name}": _method(name)
        for name in (
            *("pop", "popitem", "copy", "count", "index", "get", "setdefault"),
            *("lower", "upper", "strip", "lstrip", "rstrip", "join", "replace", "find"),
            *("startswith", "endswith", "splitlines", "isdigit", "capitalize", "title"),
        )
    },
    **{f"aten::{name}": _listed(name) for name in ("keys", "values", "items")},
    "aten::sort": _sort,
    "aten::sorted": sorted,
    "aten::str": str,
    "aten::format": _format,
    "aten::percentFormat": operator.mod,
    "aten::device": torch.device,
    "prim::type": lambda device: device.type,
    "prim::index": lambda device: device.index,
    "aten::broadcast_shapes": lambda a, b: list(torch.broadcast_shapes(a, b)),
    "aten::_infer_size": lambda a, b: list(torch.broadcast_shapes(a, b)),
    "aten::warn": _warn,
    "aten::_unwrap_optional": _unwrap,
    "prim::unchecked_unwrap_optional": first,
    "prim::unchecked_cast": first,
    "prim::EnumName": lambda member: member.name,
    "prim::EnumValue": lambda member: member.value,
    "prim::Uninitialized": lambda: None,
    "prim::RaiseException": _raise,
    "prim::Print": print,
    "aten::is_scripting": lambda: True,
    "aten::has_torch_function": lambda *_: False,
    "aten::_get_tracing_state": lambda: False,
    "aten::is_grad_enabled": torch.is_grad_enabled,
    # The function behind torch.no_grad(): the one whose calls torch.export records.
    "aten::set_grad_enabled": torch._C._set_grad_enabled,
    "aten::is_autocast_enabled": torch.is_autocast_enabled,
    "aten::is_autocast_cpu_enabled": lambda: torch.is_autocast_enabled("cpu"),
}
