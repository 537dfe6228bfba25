"""What TorchScript computes outside the dispatcher has to mean the same in Python.

Each function below is compiled by TorchScript and run twice: by TorchScript, and by the adaptor.
"""

import io
import math
from collections.abc import Callable
from typing import Any, List, Union  # noqa: UP035 - see `kinds`

import pytest
import torch
from torch import Tensor, nn
from torch.export import export

from ravnest.planning.torchscript import as_module
from ravnest.planning.torchscript.builtins import PLAIN
from ravnest.planning.torchscript.numbers import NumberTensor, on_numbers

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)


def lists(x: Tensor) -> tuple[Tensor, list[int], list[int]]:
    a = [1, 2, 3]
    a.append(4)
    a.extend([5, 6])
    a.insert(0, 9)
    a.reverse()
    a.remove(2)
    a[0] = 7
    a.sort()
    a.sort(True)
    del a[1]
    b = a.copy()
    b.clear()
    b += [3]
    c = b * 2 + a[1:3]
    found = a.index(9) if 9 in a else 100
    flags = int(any([False, True])) + 2 * int(all([True, False]))
    return x * sum(c) + max(c) + min(c) + found + flags, c, [a.pop(), a.count(1), len(c)]


def dicts(x: Tensor) -> tuple[Tensor, dict[str, int]]:
    d = {"a": 1, "b": 2}
    d["c"] = 3
    d.update({"z": 5})
    e = d.copy()
    del e["a"]
    total = d.get("q", 7) + d.setdefault("w", 4) + d.pop("a")
    for key in e.keys():  # noqa: SIM118 - TorchScript cannot iterate over a dict itself
        total += len(key)
    for value in e.values():
        total += value
    for key, value in d.items():
        total += value * len(key)
    missing = d.get("nope")
    if missing is not None:
        total += missing
    if "b" in d:
        total += 1
    return x * total, e


def strings(x: Tensor) -> tuple[str, list[str], int]:
    text = "Hello, {}".format(x.dim()) + str(3) + "%d-%s" % (4, "q")  # noqa: UP031, UP032
    parts = [text.upper(), text[1:3], text[0], ",".join(["a", "b"]), text.replace("l", "LL")]
    number = text.find("l") + 10 * int(text.startswith("He")) + 100 * int(text.endswith("o"))
    return text.lower().strip(), parts + text.split(","), number


def formats(x: Tensor) -> list[str]:
    """TorchScript replaces `{}` and nothing else."""
    found: list[str] = []
    for template in ["{0.__class__}", "{1}", "{:>20}", "{{}}", "{x} {}"]:
        found.append(template.format(2))
    return found


def numbers(x: Tensor) -> tuple[list[int], list[float], list[bool]]:
    a = x.dim() + 5
    b = 2.5 * x.dim()
    quotient, rest = divmod(a, 3)
    integers = [a // 2, a % 3, -a, a & 3, a | 8, a ^ 1, a << 1, a >> 1, abs(-a), quotient, rest]
    integers += [int(b), math.floor(b), math.ceil(b), min(a, 3), max(a, 3), -a // 2, -a % 3]
    reals = [a / 2, a**2, b // 2, b % 2, float(a), math.sqrt(a), math.exp(b), math.log(a), a**-1]
    reals += [round(b), round(a), min(b, 3.0), max(b, 3.0), math.pow(2, -1), a * b, a - b]
    return integers, reals, [a > 3 and b < 3, a == 7 or not b > 5.0, a >= b, a <= b, bool(a)]


def shapes(x: Tensor) -> tuple[Tensor, list[int], float]:
    count = x.size(0) * x.size(1)
    made = torch.zeros([count // 2 + 1, x.shape[-1]], dtype=x.dtype, device=x.device)
    return made, list(x.shape) + list(x.stride()) + [x.numel(), len(x), max(count, 3)], count / 2


def make_tensors(x: Tensor) -> list[Tensor]:
    return [
        torch.tensor(3) + torch.tensor([1.5, 2.0]),
        torch.tensor(x.size(0)),
        torch.tensor(2.5, dtype=torch.float64),
        torch.tensor(True),
        torch.tensor([[1, 2], [3, 4]]),
        torch.as_tensor(3),
        torch.as_tensor(x, dtype=torch.float64),
        torch.full([2], 3),
        torch.arange(0, 10, 3),
    ]


def convert(x: Tensor) -> list[Tensor]:
    return [
        x.to(torch.float64),
        x.to("cpu"),
        x.to(x),
        x.to(x.device),
        x.to(device=x.device, dtype=torch.half),
        x.int(),
        x.type_as(x),
        x.reshape(1, 1, 2, -1).contiguous(memory_format=torch.channels_last),
        torch.zeros_like(x, dtype=torch.bool, memory_format=torch.preserve_format),
        torch.zeros([2], dtype=torch.int64, layout=torch.strided),
    ]


def properties(x: Tensor) -> list[bool]:
    return [
        x.is_cuda,
        x.requires_grad,
        x.dtype == torch.float32,
        x.device.type == "cpu",
        x.device == torch.device("cpu"),
        x.layout == torch.strided,
        x.is_floating_point(),
        x.is_contiguous(),
        x.is_sparse or x.is_quantized,
        torch.is_grad_enabled(),
        torch.jit.is_scripting(),
    ]


def indices(x: Tensor) -> list[Tensor]:
    x = x.clone()
    x[0, 1:] = 5.0
    x[:, 0] += 1
    mask = x > 0
    rows = torch.tensor([0, 0])
    return [x[..., None, 1:], x[mask], x[rows], x[-1, ::2], torch.where(mask, x, -x)]


def loops(x: Tensor) -> int:
    total = 0
    index = 0
    while index < 10:
        index += 1
        if index == 3:
            continue
        if index > 6:
            break
        total += index
    for a, b in zip([1, 2], [3, 4]):  # noqa: B905 - TorchScript's zip has no `strict`
        total += a * b
    for place, text in enumerate(["a", "bb"]):
        total += place * len(text)
    for step in range(10, 0, -3):
        total += step
    for row in x:
        total += row.numel()
    return total


def tuples(x: Tensor) -> tuple[tuple[int, str], Tensor, list[Tensor]]:
    three = (x, 2, "s")
    first, second, _ = three
    values, places = x.max(dim=1)
    left, right = torch.chunk(x, 2, 1)
    pieces = torch.split(x, [1, x.size(1) - 1], 1)
    return three[1:], first * second, [values, places, left, right, pieces[1]]


def data(x: Tensor) -> tuple[float, list[list[float]]]:
    number = int(x.sum()) + float(x.max()) + x.argmax().item()
    if x.mean() > -100:
        number = number + 1
    listed: list[list[float]] = x.tolist()
    return float(number), listed


def kinds(x: Tensor) -> List[bool]:  # noqa: UP006
    # `list[int]` and `int | str` do not work as run-time types in TorchScript.
    values: List[Union[int, str, List[int], Tensor]] = [1, "a", [1, 2], x]  # noqa: UP006, UP007
    found: List[bool] = []  # noqa: UP006
    for value in values:
        found.append(isinstance(value, int))
        found.append(isinstance(value, str))
        found.append(isinstance(value, (List[int], Tensor)))  # noqa: UP006
    return found


def optionals(x: Tensor) -> Tensor:
    chosen: Tensor | None = None
    if x.size(0) > 1:
        chosen = x * 2
    if chosen is None:
        chosen = x
    assert chosen is not None, "unreachable"
    return torch.jit._unwrap_optional(chosen)


def mixed(x: Tensor) -> list[Tensor]:
    a, b = torch.meshgrid([torch.arange(2), torch.arange(3)], indexing="ij")
    return [torch.einsum("ij,kj->ik", x, x), a, b, torch.pow(2, x), 1 - x, 1 / (x * x + 1), x**2]


FUNCTIONS = [
    lists,
    dicts,
    strings,
    formats,
    numbers,
    shapes,
    make_tensors,
    convert,
    properties,
    indices,
    loops,
    tuples,
    data,
    kinds,
    optionals,
    mixed,
]


def _script(function: Callable[[Tensor], Any]) -> torch.jit.ScriptModule:
    """A saved and loaded module whose forward calls the function."""

    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.function = torch.jit.script(function)

        def forward(self, x: Tensor):  # TorchScript infers what the function returns
            return self.function(x)

    file = io.BytesIO()
    torch.jit.save(torch.jit.script(Calls()), file)
    file.seek(0)
    return torch.jit.load(file)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_means_the_same_in_python(function: Callable[[Tensor], Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    script = _script(function)
    expected, actual = script(x), as_module(script)(x)
    _assert_same(actual, expected)


def _assert_same(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for ours, theirs in zip(actual, expected, strict=True):
            _assert_same(ours, theirs)
    elif isinstance(expected, Tensor | float):
        torch.testing.assert_close(actual, expected)
    else:
        assert actual == expected


def test_too_few_arguments_for_a_format_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="too few arguments"):
        PLAIN["aten::format"]("{} {}", 1)


# --- sizes in a trace ------------------------------------------------------------------------


class SizeArithmetic(nn.Module):
    """Tracing turns all of this into operators on tensors of one element."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.shape
        half = (columns + 1) // 2 - columns % 2
        rows = torch.floor((rows.float() * torch.tensor(self.factor)).float()).int()
        return torch.zeros(rows, half * 2) + columns / 4


@pytest.mark.parametrize("rows", [3, 7, 10])
def test_sizes_are_rounded_as_the_tensors_of_a_trace_would(rows: int) -> None:
    """10 * 2.1 is 21 in float32 and 20.999999 in double precision."""
    script = torch.jit.trace(SizeArithmetic(2.1), torch.randn(5, 4), check_trace=False)
    x = torch.randn(rows, 6)
    adapted = as_module(script)
    torch.testing.assert_close(adapted(x), script(x))
    program = export(adapted, (x,), strict=False)
    torch.testing.assert_close(program.module()(x), script(x))
    assert "aten.item" not in str(program.graph)


NUMBERS = [
    NumberTensor(7, torch.int64),
    NumberTensor(-7, torch.int64),
    NumberTensor(2, torch.int32),
    NumberTensor(2.5, torch.float32),
    NumberTensor(0.1, torch.float64),
    NumberTensor(0, torch.int64),
]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "floor_divide", "remainder", "lt"])
@pytest.mark.parametrize("left", NUMBERS, ids=str)
@pytest.mark.parametrize("right", [*NUMBERS, 3, 1.5], ids=str)
def test_arithmetic_on_numbers_equals_tensors(name: str, left: NumberTensor, right: Any) -> None:
    is_tensor = isinstance(right, NumberTensor)
    operator = getattr(torch.ops.aten, name)
    overload = "Tensor" if is_tensor else "Scalar"
    overload = "default" if name == "floor_divide" and is_tensor else overload
    schema = getattr(operator, overload)._schema
    number = on_numbers(schema, [left, right])
    if number is None:
        assert right == 0 or right.value == 0
        return
    expected = operator(left.tensor(), right.tensor() if is_tensor else right)
    assert number.dtype == expected.dtype
    torch.testing.assert_close(number.tensor(), expected)


@pytest.mark.parametrize("rounding", [None, "floor", "trunc"])
@pytest.mark.parametrize("left", NUMBERS, ids=str)
def test_division_with_rounding_equals_tensors(rounding: str | None, left: NumberTensor) -> None:
    right = NumberTensor(2, torch.int64)
    operator = torch.ops.aten.div.Tensor_mode
    number = on_numbers(operator._schema, [left, right, rounding])
    if number is None:
        assert left.value < 0
        return
    expected = operator(left.tensor(), right.tensor(), rounding_mode=rounding)
    assert number.dtype == expected.dtype
    torch.testing.assert_close(number.tensor(), expected)
