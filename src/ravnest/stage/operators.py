"""Which operators a stage may name, and how their arguments are written as JSON.

The allow-list is a file that names every operator one by one, because namespaces are not safe:
`aten::save` and `aten::from_file` sit beside `aten::add`. Python arithmetic on sizes has a short
list of its own (arithmetic.py). Everything else is refused, unless the provider's own program has
allowed it. Whether a call fits its operator is decided in signatures.py.

What the list keeps out is access to files, to the process and to foreign memory. It does not bound
what operators together cost: a package can ask for more memory or time than there is, and then the
process that runs it fails. A provider that serves strangers runs it under limits of the system.

JSON form of an argument: null, true, 1, 0.5, "text" and lists stand for themselves;
    {"v": 17} a value   {"t": 3} entry 3 of the stage's tensors
    {"float": "inf"}   {"complex": [0.0, 1.0]}
    {"dtype": "float32"}   {"layout": "strided"}   {"memory": "channels_last"}
    {"device": 1} wherever this stage runs   {"cudnn": 1} whether this machine uses cuDNN
"""

import cmath
import functools
import importlib.resources
import math
import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from ravnest.api.work import ALLOWED_OPERATORS
from ravnest.errors import PackageError
from ravnest.stage.argument_rules import check_numbers, with_bounds
from ravnest.stage.arithmetic import ARITHMETIC, ARITHMETIC_NAMES, bounded
from ravnest.stage.guarded import guarded

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*\Z")
_MAX_DEPTH = 4
_MAX_TEXT = 200
_locally_allowed: set[str] = {
    name for name in os.environ.get(ALLOWED_OPERATORS, "").split(",") if _NAME.match(name)
}

MODULE_CALL = "ravnest.module"
"""Not an operator: runs a module of the provider's own model, for models cut at module borders."""


GRADIENT = "ravnest.gradient"
"""Nor is this: gives results of operators a backward of its own (gradients.py)."""


class ModuleTarget:
    """Marks what stands for such a module where an operator would stand."""


class GradientTarget:
    """Marks what stands for such a backward where an operator would stand."""


DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
        torch.float8_e4m3fn, torch.float8_e5m2,
    )
}  # fmt: skip
_LAYOUTS = {"strided": torch.strided}
_MEMORY_FORMATS = {
    str(form).removeprefix("torch."): form
    for form in (
        torch.contiguous_format,
        torch.preserve_format,
        torch.channels_last,
        torch.channels_last_3d,
    )
}

_TRAILING_CUDNN_FLAG = {"aten.batch_norm.default", "aten.instance_norm.default"}
"""Their last argument speaks of the machine that captured the model; the stage's own counts."""


@functools.cache
def allowed_operators() -> frozenset[str]:
    """Every tensor operator that a stage package may name, as `namespace.name.overload`."""
    text = importlib.resources.files(__package__).joinpath("allowed_operators.txt").read_text()
    return frozenset(line.split()[0] for line in text.splitlines())


def allow_operator(name: str) -> None:
    """Let packages use an operator registered by this very program, e.g. `"mylib.swish.default"`.

    Only the provider's own code can call this; nothing in a package can.
    """
    if not _NAME.match(name):
        raise ValueError(f"{name!r} is not of the form 'namespace.name.overload'")
    _locally_allowed.add(name)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def operator_name(target: Any) -> str:
    """The name under which the loader will find this operator again."""
    if isinstance(target, ModuleTarget):
        return MODULE_CALL
    if isinstance(target, GradientTarget):
        return GRADIENT
    if isinstance(target, OpOverload):
        namespace, name = target._schema.name.split("::")
        return f"{namespace}.{name}.{target._overloadname}"
    if target in ARITHMETIC_NAMES:
        return ARITHMETIC_NAMES[target]
    return str(getattr(target, "__qualname__", target))


def is_allowed(name: str) -> bool:
    return name in ARITHMETIC or name in allowed_operators() or name in _locally_allowed


def resolve(name: str) -> Callable[..., Any]:
    """The function behind an allowed name; anything else is refused."""
    if name in ARITHMETIC:
        return ARITHMETIC[name]
    operator = tensor_operator(name)
    function = guarded(operator)

    def checked(*args: Any, **kwargs: Any) -> Any:
        check_numbers(name, operator, args, kwargs)
        return function(*args, **kwargs)

    return checked


def resolve_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """The same for one call of a package that has been checked: torch's own operator wherever
    nothing is left to check while it runs. Nodes of a graph stand for what is not known yet."""
    if name in ARITHMETIC:
        return ARITHMETIC[name]
    operator = tensor_operator(name)
    return with_bounds(name, operator, guarded(operator), args, kwargs)


def tensor_operator(name: str) -> OpOverload:
    """Torch's own operator behind an allowed name."""
    if not is_allowed(name) or name in ARITHMETIC:
        raise PackageError(
            f"operator {name[:100]!r} is not on the allow-list. The owner of a machine allows it "
            "with --allow-operator NAME of `ravnest join` and `ravnest server`; a program of your "
            "own calls ravnest.stage.operators.allow_operator(name) before the stage is loaded."
        )
    namespace, function, overload = name.split(".")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), function), overload)
    except AttributeError:
        raise PackageError(
            f"operator {name!r} does not exist in torch {torch.__version__}; "
            "the package was made with another release"
        ) from None
    return _checked_operator(found, name)


def _checked_operator(found: Any, name: str) -> OpOverload:
    if not isinstance(found, OpOverload):
        raise PackageError(f"{name!r} is not an operator")
    return found


def encode(value: Any, reference: Callable[[Any], Any]) -> Any:
    """JSON for one argument. `reference` turns a value or tensor of the graph into its form."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, complex) and cmath.isfinite(value):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, list | tuple):
        return [encode(item, reference) for item in value]
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch.device):
        return {"device": 1}
    if isinstance(value, torch.layout):
        return {"layout": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory": str(value).removeprefix("torch.")}
    return reference(value)


def encode_arguments(
    target: Any, args: Sequence[Any], reference: Callable[[Any], Any]
) -> list[Any]:
    """Positional arguments, with machine-dependent flags left to the machine that will run them."""
    encoded = [encode(value, reference) for value in args]
    if operator_name(target) in _TRAILING_CUDNN_FLAG and isinstance(encoded[-1], bool):
        encoded[-1] = {"cudnn": 1}
    return encoded


def decode(
    value: Any, device: torch.device, reference: Callable[[str, int], Any], depth: int = 0
) -> Any:
    """The argument behind its JSON; `reference` finds values ("v") and tensors ("t")."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return bounded(value)
    if isinstance(value, str) and len(value) <= _MAX_TEXT:
        return value
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        return [decode(item, device, reference, depth + 1) for item in value]
    if isinstance(value, dict) and len(value) == 1:
        ((tag, content),) = value.items()
        return _decode_tagged(tag, content, device, reference)
    raise PackageError(f"unknown argument {reprlib.repr(value)}")


def _decode_tagged(
    tag: Any, content: Any, device: torch.device, reference: Callable[[str, int], Any]
) -> Any:
    if tag in ("v", "t") and type(content) is int:
        return reference(tag, content)
    if tag == "device" and content == 1:
        return device
    if tag == "cudnn" and content == 1:
        return torch.backends.cudnn.enabled and device.type == "cuda"
    match content:
        case [float(real), float(imaginary)] if tag == "complex":
            return complex(real, imaginary)
    tables: dict[str, dict[str, Any]] = {
        "float": {"inf": math.inf, "-inf": -math.inf, "nan": math.nan},
        "dtype": DTYPES,
        "layout": _LAYOUTS,
        "memory": _MEMORY_FORMATS,
    }
    if tag in tables and isinstance(content, str) and content in tables[tag]:
        return tables[tag][content]
    raise PackageError(f"unknown argument {reprlib.repr({tag: content})}")
