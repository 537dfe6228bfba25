"""Gradients that somebody has written by hand, as data.

`ravnest.gradient` stands behind the operators that compute the results of such a function. It hands
the results on as they are and gives them a backward: operators of the allow-list over the gradients
of the results and whatever the function has kept.

    args        [results], [inputs], [kept]: values and tensors of the stage
    operations  [[op, args, kwargs], …]: the backward. In here {"v": n} counts the gradients of the
                results, then what is kept, then what these operators make, in their order
    returns     for each input which of these values is its gradient; null if it gets none

Autograd itself makes sure that a gradient has the shape of what it belongs to.
"""

import keyword
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ravnest.errors import PackageError
from ravnest.stage.graph import Operation
from ravnest.stage.guarded import reads_whole_storage
from ravnest.stage.operators import GRADIENT, GradientTarget, decode, resolve_call
from ravnest.stage.signatures import check_call, shared_references

Tensors = Sequence[Any]
_CPU = torch.device("cpu")


def values_of(operation: Operation) -> tuple[Any, ...]:
    """Arguments that speak of values and tensors of the stage."""
    if operation.op == GRADIENT:
        return operation.args
    return (*operation.args, *operation.kwargs.values())


class HandWritten(GradientTarget):
    """Stands where an operator would stand, for one function's backward."""

    def __init__(self, backward: Mapping[str, Any], device: torch.device) -> None:
        self.backward = backward
        self.device = device
        self.__name__ = "gradient"  # fx makes the name of a generated variable from it
        self._compute: dict[int, Callable[..., Any]] = {}

    def __call__(self, results: Tensors, inputs: Tensors, kept: Tensors) -> list[Any]:
        count = len(results) + len(kept)
        if count not in self._compute:
            self._compute[count] = _built(self.backward, count, self.device)
        sizes = (len(results), len(inputs))
        apply: Callable[..., Any] = _Joined.apply
        return list(apply(self._compute[count], sizes, *results, *inputs, *kept))


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., Any], sizes: tuple[int, int], *values: Any
    ) -> tuple[Any, ...]:
        results, inputs = values[: sizes[0]], values[sizes[0] : sum(sizes)]
        kept = values[sum(sizes) :]
        ctx.compute, ctx.sizes = compute, sizes
        ctx.save_for_backward(*(k if isinstance(k, torch.Tensor) else None for k in kept))
        ctx.numbers = [None if isinstance(k, torch.Tensor) else k for k in kept]
        # The same tensors, with a past; but what shows an input's memory is handed on as a view.
        own = (r for r in results if not (r._is_view() or any(r is given for given in inputs)))
        ctx.mark_dirty(*own)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        pairs = zip(ctx.saved_tensors, ctx.numbers, strict=True)
        kept = [number if tensor is None else tensor for tensor, number in pairs]
        # Operators of a package get no sparse tensor: they would trust its indices.
        dense = (None if g is None else g.to_dense() for g in gradients)
        values = [*dense, *kept]
        versions = [v._version for v in values if isinstance(v, torch.Tensor)]
        found = ctx.compute(*values)
        # Also where the result of an operator is what it was given, of which its schema is silent.
        if versions != [v._version for v in values if isinstance(v, torch.Tensor)]:
            raise PackageError("a backward has written to what it was given")
        return (None, None, *[None] * ctx.sizes[0], *found, *[None] * len(kept))


def _built(backward: Mapping[str, Any], count: int, device: torch.device) -> Callable[..., Any]:
    """The operators as generated code, which drops each value after its last use."""
    graph = torch.fx.Graph()
    values = [graph.placeholder(f"v{number}") for number in range(count)]

    def reference(tag: str, number: int) -> torch.fx.Node:
        if tag != "v" or not 0 <= number < len(values):
            raise PackageError(f"a backward speaks of {tag} {number}, which it does not have")
        return values[number]

    for name, args, kwargs in backward["operations"]:
        if any(not key.isidentifier() or keyword.iskeyword(key) for key in kwargs):
            raise PackageError(f"operator {name!r} has an unusable keyword")
        given = [decode(item, device, reference) for item in args]
        named = {key: decode(item, device, reference) for key, item in kwargs.items()}
        function = resolve_call(name, given, named)
        values.append(graph.call_function(function, tuple(given), named))
    returns = backward["returns"]
    graph.output([None if number is None else reference("v", number) for number in returns])
    compute: Callable[..., Any] = torch.fx.GraphModule(nn.Module(), graph, "Backward").forward
    return compute


def check_gradient(operation: Operation, max_elements: int) -> Iterator[Any]:
    """Refuse a backward that does not hold together; yields the arguments of its operators."""
    lists = operation.args
    if len(lists) != 3 or not all(isinstance(item, list | tuple) for item in lists):
        raise PackageError("a hand-written gradient lacks its results, inputs or what it keeps")
    results, inputs, kept = lists
    if not all(_is_reference(item) for part in lists for item in part) or not results:
        raise PackageError("a hand-written gradient is given something that is no value")
    if operation.kwargs.keys() != {"operations", "returns"}:
        raise PackageError("a hand-written gradient lacks its operators or what they return")
    operations, returns = operation.kwargs["operations"], operation.kwargs["returns"]
    known = len(results) + len(kept)
    foreign = set(range(known))  # what it was given, and views of it

    def reference(tag: str, number: int) -> None:
        if tag != "v" or not 0 <= number < known:
            raise PackageError(f"a backward speaks of {tag} {number}, which it does not have")

    if not isinstance(operations, list | tuple) or not isinstance(returns, list | tuple):
        raise PackageError("a hand-written gradient is malformed")
    for one in operations:
        match one:
            case [str(name), [*args], dict(kwargs)] if all(isinstance(k, str) for k in kwargs):
                pass
            case _:
                raise PackageError(f"{reprlib.repr(one)} is no operator of a backward")
        if reads_whole_storage(name):
            raise PackageError(f"operator {name!r} has no place in a hand-written gradient")
        for argument in (*args, *kwargs.values()):
            decode(argument, _CPU, reference)
            yield argument
        check_call(name, args, kwargs, max_elements)
        for number, writes in shared_references(name, args, kwargs):
            if number in foreign and writes:
                raise PackageError(
                    f"a backward writes to what it was given, by {name!r}, and not to a clone of it"
                )
            foreign |= {known} if number in foreign else set()
        known += 1
    if len(returns) != len(inputs):
        raise PackageError("a hand-written gradient returns too few gradients, or too many")
    for number in returns:
        if number is not None:
            if type(number) is not int:
                raise PackageError(f"{reprlib.repr(number)} is no gradient of a backward")
            reference("v", number)


def _is_reference(item: Any) -> bool:
    return isinstance(item, dict) and len(item) == 1 and bool({"v", "t"} & item.keys())
