"""A differential fuzzer for the operators of the allow-list.

Every operator is called with hostile arguments, forward and backward, through the guards of a
stage, in child processes whose heaps are filled with two different patterns. A finding is

    crash       the process ended by a signal
    hang        a call did not end in time
    difference  a result, a gradient or an error text depends on what freed memory held
    silent      an operand was written to, or would be by a write to the result, and autograd is not
                told: backwards of other operators would trust indices that have changed since they
                were checked

Three kinds of calls are made. Random ones (cases from 0 on) change one to three arguments of a
sample call. Shape calls (cases below 0) are all there are: of each sample call, each tensor in turn
gets another rank and a size of 0, under each value of an enumeration, with contents that every
check of values lets pass, so that the kernel itself is reached. And each tensor that could be one
is once the gradient that the operator is handed in a hand-written backward, behind an embedding
whose gradient torch makes sparse and whose indices another node has overwritten meanwhile. Number
calls (below NUMBERS) are all there are, too: of a sample call, each number in turn is one at which
arithmetic of integers ends, as an integer and as a float, alone and with -1 for another number;
and all tensors of floats are integers, each in turn the least ones and the others -1.

A child announces each call before it makes it, so that the parent knows which one was the last and
goes on behind it. Calls follow from the seed and the operator alone.

    python tests/stage/fuzzing.py [--seconds S] [--seed N] [--only TEXT]

makes all shape and number calls, and then rounds with growing seeds until the time is over
(`python3 dev.py soak fuzzing`).
"""

import argparse
import functools
import hashlib
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEAPS = (85, 170)
"""glibc fills what it hands out with the complement of this byte, and what it gets back with it."""
CALL_S = 60.0
MEMORY_BYTES = 3 << 30
FAR = 1 << 40
"""An index outside of any table."""
NUMBERS = -(1 << 20)
"""Cases from here downwards are number calls."""
MOST_ELEMENTS = 1 << 20
"""Of a result that is compared; a larger one is only looked at by its shape."""
SAMPLES = Path(__file__).with_name("sample_calls.json")

ENUMERATIONS = {"reduction", "interpolation_mode", "padding_mode", "mode"}
SMALL = (0, 1, 2, 3, 4, 5, -1, -2, 7)
EXTREME = (
    2**63 - 1, -(2**63), 2**62, -(2**62), 2**48, 2**40 - 1, 2**33, 2**32, 2**31, 2**31 - 1,
    -(2**31), 2**24 - 1, 2**20 - 1, 65537, 1000,
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 0.5, 1.0, -1.0, 2.0, math.inf, -math.inf, math.nan, 1e-300, 1e300, 1e9, -1e9,
    2.0**63, -(2.0**63), -(2.0**31),
)  # fmt: skip
ENDS = {
    "int": (-1, 0, -(2**63), 2**63 - 1),
    "number": (-1, 0, -(2**63), -1.0, -(2.0**63), 2.0**63, {"float": "nan"}),
    "float": (-1.0, 0.0, -(2.0**63), 1e300, 1e-300, {"float": "inf"}, {"float": "nan"}),
}
"""Numbers at which arithmetic of integers ends, by the kind of their parameter."""
INTEGERS = ("int64", "int32", "int8")
WORDS = (
    "floor", "trunc", "mean", "sum", "prod", "amax", "amin", "none", "tanh", "reflect", "constant",
    "replicate", "circular", "valid", "same", "ij", "xy", "ortho", "forward", "linear", "nearest",
    "fro", "nuc", "left", "ab,bc->ac", "abc->a", "ii->i", "x",
)  # fmt: skip
SHAPES = (
    (2, 3), (4, 4), (6,), (), (1,), (0,), (2, 0, 3), (2, 3, 4), (1, 4, 8, 8), (2, 1, 1, 1),
    (1, 2, 4, 4, 4), (1, 1, 1, 1, 1), (3, 1), (1, 0, 2, 2), (64, 3), (2, 4, 0, 0),
)  # fmt: skip
DTYPES = (
    "float32", "float32", "float32", "float64", "float16", "bfloat16", "int64", "int64", "int32",
    "int16", "int8", "uint8", "bool", "complex64", "complex128", "float8_e4m3fn",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    kind: str
    operator: str
    case: int
    seed: int
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.operator} (seed {self.seed}, case {self.case}): {self.detail}"


# ---- calls, described as data ------------------------------------------------------------------


@functools.cache
def samples() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = json.loads(SAMPLES.read_text())
    return found


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a call there are tensors."""
    if isinstance(value, dict) and "tensor" in value:
        yield path
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(item, (*path, key))


def _other_shapes(shape: list[int]) -> list[list[int]]:
    """Of another rank, or with a size of 0 in each place."""
    found = [[2, *shape], [0, *shape], [*shape, 2], [*shape, 0], [1, *shape]]
    if shape:
        found += [shape[1:], shape[:-1], [1, *shape[1:]], []]
    found += [[*shape[:at], 0, *shape[at + 1 :]] for at in range(len(shape))]
    return [list(each) for each in dict.fromkeys(map(tuple, found)) if list(each) != shape]


def _tame(value: Any) -> Any:
    """The sample's value, with tensors given contents that no check of values refuses."""
    if isinstance(value, list):
        return [_tame(item) for item in value]
    if isinstance(value, dict) and "tensor" in value:
        return {**value, "contents": "tame", "layout": "plain", "grad": True, "seed": 1}
    if isinstance(value, dict):
        return {key: _tame(item) for key, item in value.items()}
    return value


@functools.cache
def shape_calls(operator: Any, name: str) -> list[Any]:
    """All calls of this operator in which the shape of one tensor, or the number of rows of all of
    them, is not what the others expect."""
    positional = [a for a in operator._schema.arguments if not a.kwarg_only]
    numbered = [
        index
        for index, argument in enumerate(positional)
        if argument.name in ENUMERATIONS and str(argument.real_type) == "int"
    ]
    alike = name.split(".")[1]
    known = samples().get(name) or [
        call for other, calls in samples().items() if other.split(".")[1] == alike for call in calls
    ]
    found: dict[str, Any] = {}
    for sample in known:
        args, kwargs = _tame(sample)
        # With all defaults, among which there are enumerations.
        args += [a.default_value for a in positional[len(args) :] if a.has_default_value()]
        call = [args[: len(positional)], kwargs]
        for one in _with_other_shapes(call):
            for index in numbered if one[0] else ():
                for number in range(3):
                    one[0][index] = number
                    found[json.dumps(one)] = json.loads(json.dumps(one))
            found[json.dumps(one)] = one
    return list(found.values())


def _with_other_shapes(call: Any) -> Iterator[Any]:
    places = list(_places(call))
    for place in places:
        for shape in _other_shapes(_at(call, place)["tensor"][1]):
            one = json.loads(json.dumps(call))
            _at(one, place)["tensor"][1] = shape
            yield one
        dtype, shape = _at(call, place)["tensor"]
        if dtype == "float32" and len(shape) == 2:
            one = json.loads(json.dumps(call))
            _at(one, place)["layout"] = "rows"
            yield one
    if places:
        empty = json.loads(json.dumps(call))
        for place in places:
            _at(empty, place)["tensor"][1][:1] = [0]
        yield empty


def _at(value: Any, path: Sequence[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


@functools.cache
def number_calls(operator: Any, name: str) -> list[Any]:
    """All calls of this operator in which a number, or all elements of a tensor, are such at which
    arithmetic of integers ends."""
    found: dict[str, Any] = {}
    for sample in samples().get(name, [])[:2]:
        call = _with_defaults(operator, sample)
        for base in (call, *_with_least_integers(call)):
            found[json.dumps(base)] = base
            for one in _with_ends(operator, base):
                found[json.dumps(one)] = one
    return list(found.values())


def _with_defaults(operator: Any, sample: Any) -> Any:
    args, kwargs = _tame(sample)
    positional = [a for a in operator._schema.arguments if not a.kwarg_only]
    args += [a.default_value for a in positional[len(args) :] if a.has_default_value()]
    return [args[: len(positional)], kwargs]


def _with_least_integers(call: Any) -> Iterator[Any]:
    """In place of all floats: the least ones, or a single one, divide and are divided worst."""
    places = [place for place in _places(call) if "float" in _at(call, place)["tensor"][0]]
    for dtype, contents, chosen in itertools.product(INTEGERS, ("least", "one least"), places):
        one = json.loads(json.dumps(call))
        for place in places:
            described = _at(one, place)
            described["tensor"][0] = dtype
            described["contents"] = contents if place == chosen else "negative one"
        yield one


def _with_ends(operator: Any, call: Any) -> Iterator[Any]:
    numbers = []
    for index, argument in enumerate(operator._schema.arguments):
        kind = re.sub(r"Optional\[|List\[|\]", "", str(argument.real_type))
        path = (1, argument.name) if argument.kwarg_only else (0, index)
        is_there = argument.kwarg_only or index < len(call[0])
        if kind in ENDS and is_there:
            numbers.append((path, kind, "List" in str(argument.real_type)))
    for path, kind, is_list in numbers:
        for end in ENDS[kind]:
            one = json.loads(json.dumps(call))
            _put(one, path, end, is_list)
            yield one
            for other, kind_of_other, is_other_list in numbers if _is_far(end) else ():
                if other != path:
                    two = json.loads(json.dumps(one))
                    _put(two, other, ENDS[kind_of_other][0], is_other_list)
                    yield two


def _is_far(number: Any) -> bool:
    return not isinstance(number, dict) and abs(number) >= 2**62


def _put(call: Any, path: Sequence[Any], number: Any, is_list: bool) -> None:
    container, key = _at(call, path[:-1]), path[-1]
    known = container[key] if isinstance(container, list) else container.get(key)
    container[key] = [number] * (len(known or ()) or 1) if is_list else number


def call_of(operator: Any, name: str, seed: int, case: int) -> Any:
    if case <= NUMBERS:
        return number_calls(operator, name)[NUMBERS - case]
    if case < 0:
        return shape_calls(operator, name)[-1 - case]
    return Maker(operator, name, seed, case).call()


class Maker:
    """One hostile call of an operator: a sample call with some arguments replaced, or one made
    from the schema alone. Tensors are described, so that a call can be shown and made again."""

    def __init__(self, operator: Any, name: str, seed: int, case: int) -> None:
        self.schema = operator._schema
        self.name = name
        self.draw = random.Random(f"{seed}:{name}:{case}")
        self.shape = self.draw.choice(SHAPES)

    def call(self) -> tuple[list[Any], dict[str, Any]]:
        known = samples().get(self.name)
        if known and self.draw.random() < 0.8:
            return self._changed(self.draw.choice(known))
        return self._made()

    def _made(self) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in self.schema.arguments:
            if argument.has_default_value() and self.draw.random() < 0.5:
                if not argument.kwarg_only:
                    break
                continue
            value = self._value(argument)
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        return args, kwargs

    def _changed(self, sample: Any) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs = json.loads(json.dumps(sample))
        positional = [a for a in self.schema.arguments if not a.kwarg_only]
        for index, value in enumerate(args):
            args[index] = self._dressed(value)
        for key, value in kwargs.items():
            kwargs[key] = self._dressed(value)
        for _ in range(self.draw.choice((0, 1, 1, 1, 2, 3))):
            argument = self.draw.choice(self.schema.arguments)
            if argument in positional:
                index = positional.index(argument)
                for missing in range(len(args), index + 1):
                    args.append(self._value(positional[missing]))
                args[index] = self._near(argument, args[index])
            else:
                kwargs[argument.name] = self._near(argument, kwargs.get(argument.name))
        return args, kwargs

    def _dressed(self, value: Any) -> Any:
        """The sample's value, with tensors given contents and a layout."""
        if isinstance(value, list):
            return [self._dressed(item) for item in value]
        if isinstance(value, dict) and "tensor" in value:
            dtype, shape = value["tensor"]
            return self._tensor(dtype, shape, hostile=0.25)
        return value

    def _near(self, argument: Any, value: Any) -> Any:
        """A value of the same kind as the one given, with one thing wrong; or any."""
        if isinstance(value, list) and value and self.draw.random() < 0.7:
            index = self.draw.randrange(len(value))
            if isinstance(value[index], int) and not isinstance(value[index], bool):
                return [*value[:index], self._int(), *value[index + 1 :]]
            return [*value[:index], *value[index + 1 :]]
        if isinstance(value, dict) and "tensor" in value and self.draw.random() < 0.8:
            dtype, shape = value["tensor"]
            kind = self.draw.choice(
                ("shape", "size", "dtype", "contents", "contents", "layout", "number")
            )
            if kind == "number":  # of one type, cut to that of the other operands
                return self._tensor(self.draw.choice(DTYPES), [], hostile=1.0)
            if kind == "shape":
                return self._tensor(dtype, self.draw.choice(SHAPES))
            if kind == "size" and shape:
                place = self.draw.randrange(len(shape))
                size = self.draw.choice((0, 1, 2, shape[place] + 1, max(shape[place] - 1, 0), 9))
                return self._tensor(dtype, [*shape[:place], size, *shape[place + 1 :]])
            if kind == "dtype":
                return self._tensor(self.draw.choice(DTYPES), shape)
            return self._tensor(dtype, shape, hostile=1.0)
        return self._value(argument)

    def _value(self, argument: Any) -> Any:
        kind = str(argument.real_type)
        if kind.startswith("Optional["):
            if self.draw.random() < 0.3:
                return None
            kind = kind[9:-1]
        if kind.startswith("List["):
            inner = kind[5:-1].removeprefix("Optional[").rstrip("]")
            if inner == "int" and self.draw.random() < 0.3:
                return list(self.shape)
            return [self._plain(inner, argument.name) for _ in range(self.draw.randrange(6))]
        return self._plain(kind, argument.name)

    def _plain(self, kind: str, name: str) -> Any:
        if kind == "Tensor":
            wants_integers = re.search("ind|repeats|offset|target|pos|bins", name)
            usual = "int64" if wants_integers else "float32"
            dtype = usual if self.draw.random() < 0.7 else self.draw.choice(DTYPES)
            shape = self.shape if self.draw.random() < 0.7 else self.draw.choice(SHAPES)
            return self._tensor(dtype, shape)
        if kind == "int":
            return self._int()
        if kind in ("float", "number"):
            integral = kind == "number" and self.draw.random() < 0.4
            number = self._int() if integral else self.draw.choice(FLOATS)
            return number if math.isfinite(number) else {"float": repr(number)}
        if kind == "bool":
            return self.draw.random() < 0.5
        if kind == "str":
            return self.draw.choice(WORDS)
        if kind == "ScalarType":
            return {"dtype": self.draw.choice(DTYPES)}
        if kind == "MemoryFormat":
            return {"memory": self.draw.choice(("contiguous_format", "channels_last"))}
        return None

    def _int(self) -> int:
        return self.draw.choice(SMALL if self.draw.random() < 0.65 else EXTREME)

    def _tensor(self, dtype: str, shape: Sequence[int], hostile: float = 0.4) -> Any:
        contents = "plain"
        if self.draw.random() < hostile:
            contents = self.draw.choice(("extreme", "one extreme", "special", "negative"))
        usual = self.draw.random() < 0.75
        layout = (
            "plain" if usual else self.draw.choice(("expanded", "transposed", "gaps", "aliased"))
        )
        return {
            "tensor": [dtype, list(shape)],
            "contents": contents,
            "layout": layout,
            "grad": self.draw.random() < 0.6,
            "seed": self.draw.randrange(1 << 30),
        }


# ---- in the child ------------------------------------------------------------------------------


def _contents(torch: Any, described: Any) -> Any:
    name, shape = described["tensor"]
    dtype = getattr(torch, name)
    generator = torch.Generator().manual_seed(described["seed"])
    kind = described["contents"]
    if dtype.is_floating_point or dtype.is_complex:
        real = torch.randn(shape, generator=generator, dtype=torch.float64)
        if kind == "negative":
            real = -real.abs()
        if kind == "tame":
            real = real.sigmoid()
        odd = torch.tensor([math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-320, 2.0**31, 2.0**63])
    else:
        real = torch.randint(0, 4, shape, generator=generator)
        if kind == "negative":
            real = -real - 1
        if kind == "tame":
            real = torch.zeros_like(real)
        if kind == "negative one":
            real = torch.full_like(real, -1)
        info = None if dtype == torch.bool else torch.iinfo(dtype)
        ends = (
            [0, 1, -1]
            if info is None
            else [
                info.min,
                info.max,
                info.max // 2,
                -1,
                1000,
                min(2**31, info.max),
                min(2**32 - 1, info.max),
            ]
        )
        odd = torch.tensor(ends)
        if kind in ("least", "one least"):
            real = torch.zeros_like(real)
            (real if kind == "least" else real.view(-1)[:1]).fill_(ends[0])
    if kind in ("extreme", "one extreme", "special") and real.numel():
        chosen = odd[torch.randint(0, len(odd), shape, generator=generator)].to(real.dtype)
        spots = torch.rand(shape, generator=generator) < (1.0 if kind == "extreme" else 0.3)
        if kind == "one extreme":
            spots = torch.zeros(real.numel(), dtype=torch.bool)
            spots[described["seed"] % real.numel()] = True
            spots = spots.view(real.shape)
        real = torch.where(spots, chosen, real)
    return real.to(dtype)


def _laid_out(torch: Any, tensor: Any, layout: str) -> Any:
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "gaps" and tensor.dim():
        return tensor.repeat_interleave(2, dim=-1)[..., ::2]
    if layout == "expanded" and tensor.dim() and tensor.shape[0]:
        return tensor[:1].expand(tensor.shape)
    return tensor


def _built(torch: Any, value: Any, cache: list[Any]) -> Any:
    if isinstance(value, list):
        return [_built(torch, item, cache) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" not in value:
        from ravnest.stage.operators import decode

        return decode(value, torch.device("cpu"), lambda *_: None)
    if value["layout"] == "aliased" and cache:
        return cache[-1]
    tensor = _laid_out(torch, _contents(torch, value), value["layout"])
    differentiable = tensor.is_floating_point() or tensor.is_complex()
    if value["grad"] and differentiable and tensor.dtype.itemsize > 1:
        # Not a leaf, because in-place operators refuse those.
        leaf = tensor.detach().requires_grad_()
        tensor = leaf.view_as(leaf) if value["layout"] != "plain" else leaf * 1
        tensor.retain_grad()
    cache.append(tensor)
    return tensor


def _digest(torch: Any, value: Any, into: Any) -> None:
    if isinstance(value, list | tuple):
        for item in value[:1000]:
            _digest(torch, item, into)
    elif isinstance(value, torch.Tensor):
        into.update(f"{value.dtype}{list(value.shape)}".encode())
        if value.is_sparse:
            value = value.to_dense()
        if 0 < value.numel() <= MOST_ELEMENTS:
            value = value.detach().resolve_conj().resolve_neg()
            if value.is_floating_point() and value.dtype.itemsize > 1:
                value = torch.where(value.isnan(), math.nan, value)  # of any sign
            into.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    else:
        into.update(repr(value).encode())


def _digested(torch: Any, tensor: Any) -> bytes:
    into = hashlib.sha256()
    _digest(torch, tensor, into)
    return into.digest()


def run_call(name: str, operator: Any, call: Any, *, guarded: bool = True) -> str:
    """What came of it, as a short text: refused, an error with its text, or a digest."""
    import torch

    from ravnest.errors import PackageError
    from ravnest.stage.operators import resolve

    torch.manual_seed(0)
    if any(_at(call, place)["layout"] == "rows" for place in _places(call)):
        return _run_in_backward(name, call, guarded=guarded)
    tensors: list[Any] = []
    into = hashlib.sha256()
    try:
        args = [_built(torch, item, tensors) for item in call[0]]
        kwargs = {key: _built(torch, item, tensors) for key, item in call[1].items()}
    except Exception as error:
        return f"not built: {type(error).__name__}"
    try:
        before = [(tensor._version, _digested(torch, tensor)) for tensor in tensors]
        result = (resolve(name) if guarded else operator)(*args, **kwargs)
        for tensor, (version, digest) in zip(tensors, before, strict=True):
            if tensor._version == version and _digested(torch, tensor) != digest:
                return f"silent write to {tensor.dtype}{list(tensor.shape)}"
        _digest(torch, result, into)
        parts = result if isinstance(result, list | tuple) else [result]
        wanted = [p for p in parts[:50] if isinstance(p, torch.Tensor) and p.requires_grad]
        small = [p for p in wanted if p.numel() <= MOST_ELEMENTS]
        # A result that autograd refuses has been handed out all the same.
        failed = _backward(small)
        for tensor in tensors:
            _digest(torch, tensor.grad, into)
            _digest(torch, tensor, into)
        if (unseen := _unseen_alias(torch, parts[:50], tensors)) is not None:
            return f"silent alias of {unseen.dtype}{list(unseen.shape)}"
    except PackageError:
        return "refused"
    except Exception as error:
        return _failure(error)
    return "no memory" if failed == "no memory" else f"done {into.hexdigest()[:16]} {failed}"


def _unseen_alias(torch: Any, results: Sequence[Any], operands: Sequence[Any]) -> Any:
    """An operand that lies in the memory of a result and does not count what is written there."""
    for result in results:
        if not isinstance(result, torch.Tensor) or result.is_sparse or not result.numel():
            continue
        for operand in operands:
            place = operand.untyped_storage().data_ptr()
            if operand.numel() and place == result.untyped_storage().data_ptr():
                before = operand._version
                result.detach()[:0].zero_() if result.dim() else result.detach().zero_()
                if operand._version == before:
                    return operand
    return None


def _run_in_backward(name: str, call: Any, *, guarded: bool) -> str:
    """The operator is all there is of a hand-written backward. The tensor marked `rows` is the
    gradient, which an embedding has made; the others are what the forward has kept."""
    import torch

    from ravnest.errors import PackageError
    from ravnest.stage.gradients import HandWritten
    from ravnest.stage.operators import resolve

    shape: list[int] = []
    kept: list[Any] = []

    def encoded(value: Any) -> Any:
        if isinstance(value, list):
            return [encoded(item) for item in value]
        if not isinstance(value, dict) or "tensor" not in value:
            return value
        if value["layout"] == "rows":
            shape[:] = value["tensor"][1]
            return {"v": 0}
        kept.append(_built(torch, {**value, "grad": False}, []))
        return {"v": len(kept)}

    kwargs = {key: encoded(item) for key, item in call[1].items()}
    backward = {"operations": [[name, encoded(call[0]), kwargs]], "returns": [None]}
    table, rows = torch.ones(shape, requires_grad=True), torch.zeros(2, dtype=torch.int64)

    sparse: list[bool] = []

    def overwrite(gradient: Any) -> None:
        sparse.append(gradient.layout is not torch.strided)
        rows.fill_(FAR)

    try:
        (result,) = HandWritten(backward, torch.device("cpu"))([table * 1], [table], kept)
        result.register_hook(overwrite)
        look = "aten.embedding.default"
        embedding = resolve(look) if guarded else torch.ops.aten.embedding.default
        (embedding(result, rows, -1, False, True) * 2).sum().backward()
        outcome = "done"
    except PackageError:
        outcome = "refused"
    except Exception as error:
        outcome = _failure(error)
    return "sparse gradient" if any(sparse) else outcome


def _backward(results: Sequence[Any]) -> str:
    """Of all results together; how it failed, if it did."""
    if not results:
        return ""
    try:
        sums = [p.abs().float().sum() if p.is_complex() else p.float().sum() for p in results]
        sum(sums).backward()
    except Exception as error:
        return _failure(error)
    return ""


def _failure(error: Exception) -> str:
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return "no memory"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def child(seed: int, *, guarded: bool) -> None:
    """Makes the calls that come as lines, `operator case`, and answers each when it begins and
    when it ended."""
    import resource
    import warnings

    import torch

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    from ravnest.stage.operators import tensor_operator

    for line in sys.stdin:
        name, case = line.split()
        print(f"begin {name} {case}", flush=True)
        operator = tensor_operator(name)
        call = call_of(operator, name, seed, int(case))
        print(f"end {name} {case} {run_call(name, operator, call, guarded=guarded)}", flush=True)


# ---- in the parent -----------------------------------------------------------------------------


def _outcomes(
    wanted: list[tuple[str, int]], options: Sequence[str], heap: int
) -> dict[tuple[str, int], str]:
    """What came of each call in children with this heap, each started behind the last crash."""
    found: dict[tuple[str, int], str] = {}
    tunables = f"glibc.malloc.perturb={heap}:glibc.malloc.tcache_count=0"
    environment = {**os.environ, "GLIBC_TUNABLES": tunables, "OMP_NUM_THREADS": "1"}
    crashed: set[str] = set()
    """Without guards it is enough to know that an operator does."""
    while left := [call for call in wanted if call not in found and call[0] not in crashed]:
        lines = "".join(f"{name} {case}\n" for name, case in left)
        outcome = _one_child(options, environment, lines, found)
        if outcome is None:
            break
        (current, how) = outcome
        if current is None:
            raise RuntimeError(f"the fuzzer's child does not start: {how}")
        found[current] = how
        if "--unguarded" in options:
            crashed.add(current[0])
    return found


def _one_child(
    options: Sequence[str],
    environment: dict[str, str],
    lines: str,
    found: dict[tuple[str, int], str],
) -> tuple[tuple[str, int] | None, str] | None:
    """None if it made all calls; else the call it did not come back from, and how."""
    import selectors
    import tempfile

    with tempfile.TemporaryFile("w+") as asked:
        asked.write(lines)
        asked.seek(0)
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--child", *options],
            stdin=asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
    assert process.stdout is not None
    current: tuple[str, int] | None = None
    pending = b""
    with selectors.DefaultSelector() as selector, process.stdout as stdout:
        selector.register(stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(CALL_S if current else 300.0):
                process.kill()
                process.wait()
                return current, "hang"
            piece = os.read(stdout.fileno(), 1 << 16)
            if not piece:
                break
            *complete, pending = (pending + piece).split(b"\n")
            for line in complete:
                if not line.startswith((b"begin aten.", b"end aten.")):
                    continue  # MKL says its own errors there
                word, name, case, *rest = line.decode(errors="replace").split(" ", 3)
                current = (name, int(case)) if word == "begin" else None
                if word == "end":
                    found[name, int(case)] = rest[0]
    code = process.wait()
    if code == 0 and current is None:
        return None
    return current, f"signal {-code}" if code < 0 else f"exit {code}"


def _in_text(outcome: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", outcome)


def fuzz(operators: Sequence[str], cases: range, seed: int) -> Iterator[Finding]:
    """All findings for these operators and cases, each call made once for each heap."""
    yield from _compared([(name, case) for case in cases for name in operators], seed)


def fuzz_shapes(
    operators: Sequence[str], share: int = 1, *, guarded: bool = True
) -> Iterator[Finding]:
    """All findings among the shape calls of these operators, or every so many-th of them. Without
    the guards it is torch itself that is looked at."""
    yield from _fuzz_all(shape_calls, -1, operators, share, guarded=guarded)


def fuzz_numbers(
    operators: Sequence[str], share: int = 1, *, guarded: bool = True
) -> Iterator[Finding]:
    """The same of the number calls."""
    yield from _fuzz_all(number_calls, NUMBERS, operators, share, guarded=guarded)


def _fuzz_all(
    calls: Callable[[Any, str], list[Any]],
    first: int,
    operators: Sequence[str],
    share: int,
    *,
    guarded: bool,
) -> Iterator[Finding]:
    from ravnest.stage.operators import tensor_operator

    wanted = [
        (name, first - number)
        for name in operators
        for number in range(len(calls(tensor_operator(name), name)))
    ]
    yield from _compared(wanted[::share], 0, () if guarded else ("--unguarded",))


def _compared(
    wanted: list[tuple[str, int]], seed: int, more: Sequence[str] = ()
) -> Iterator[Finding]:
    options = ("--seed", str(seed), *more)
    first, second = (_outcomes(wanted, options, heap) for heap in HEAPS)
    for (name, case), one in first.items():
        other = second.get((name, case), "")
        for outcome in (one, other):
            if outcome.startswith(("signal", "exit", "hang", "silent", "sparse")):
                told = outcome.startswith(("hang", "silent", "sparse"))
                kind = outcome.split()[0] if told else "crash"
                yield Finding(kind, name, case, seed, outcome)
                break
        else:
            if _in_text(one) != _in_text(other) and "no memory" not in (one, other):
                yield Finding("difference", name, case, seed, f"{one} | {other}")


def soak(seconds: float, seed: int, only: str) -> int:
    """Rounds over the whole list until the time is over; returns how many findings there were."""
    from ravnest.stage.operators import allowed_operators

    names = sorted(name for name in allowed_operators() if only in name)
    count, end = 0, time.monotonic() + seconds
    for finding in itertools.chain(fuzz_shapes(names), fuzz_numbers(names)):
        count += 1
        print(finding, flush=True)
    while time.monotonic() < end:
        for start in range(0, len(names), 100):
            if time.monotonic() >= end:
                break
            for finding in fuzz(names[start : start + 100], range(20), seed):
                count += 1
                print(finding, flush=True)
        seed += 1
    print(f"{count} findings, last seed {seed - 1}", flush=True)
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument(
        "--show", type=int, help="print this case of the operator --only and run it"
    )
    parser.add_argument("--unguarded", action="store_true", help="torch itself, with --show")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.seed, guarded=not options.unguarded)
        return 0
    if options.show is not None:
        from ravnest.stage.operators import tensor_operator

        operator = tensor_operator(options.only)
        call = call_of(operator, options.only, options.seed, options.show)
        print(json.dumps(call), flush=True)
        print(run_call(options.only, operator, call, guarded=not options.unguarded))
        return 0
    return 1 if soak(options.seconds, options.seed, options.only) else 0


if __name__ == "__main__":
    sys.exit(main())
