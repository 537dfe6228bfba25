"""Hand-written `autograd.Function`s: stages compute the backward they have, or they are refused."""

import math
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from traps import assert_equal_in_stages, linear_inputs

from ravnest.errors import CaptureError, PackageError
from ravnest.planning.study import study
from ravnest.stage.checking import Limits, check_graph
from ravnest.stage.graph import StageGraph
from ravnest.stage.operators import GRADIENT

ROOT = math.sqrt(2 / math.pi)


class Function(torch.autograd.Function):
    """With gradients that no derivative of its forward gives, so that a lost backward shows."""


class Gelu(Function):
    """As some language models have it, but for a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 0.5 * (1 + torch.tanh(ROOT * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        t = torch.tanh(ROOT * x * (1 + 0.044715 * x * x))
        slope = 0.5 * x * (1 - t * t) * (ROOT + 0.1070322243 * x * x) + 0.5 * (1 + t)
        return 1.5 * slope * grad


class Rounded(Function):
    """Straight through, and what is kept is the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = (x * 8).round() / 8
        ctx.save_for_backward(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * (ctx.saved_tensors[0].abs() < 1)


class Reversed(Function):
    """The result shows the memory of the input; a number is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return -ctx.factor * grad, None


class Affine(Function):
    """Takes parameters, asks which gradients are needed, keeps a size of the batch."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        result = x @ weight.t()
        return result if bias is None else result + bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)
        ctx.rows = x.shape[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        given = grad @ weight if wanted[0] else None
        return given, grad.t() @ x / ctx.rows, grad.sum(0) if wanted[2] else None


class Sorted(Function):
    """Two results of which one has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, order = x.sort(1)
        ctx.mark_non_differentiable(order)
        ctx.order = order
        return values, order

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        return torch.zeros_like(grad).scatter(1, ctx.order, 2 * grad)


class Halves(Function):
    """Two results with gradients; one of them may never be used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :3] * 2, x[:, 3:] * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return torch.cat([first, second * 5], 1)


class Cast(Function):
    """Asks for the type that it has: the operator returns its argument itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.float()
        result = (2 * x.float()).float()
        ctx.save_for_backward(x, result.float())
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, result = ctx.saved_tensors
        return grad.float() * result.cos().float() * x.float()


class Softmax(Function):
    """Calls what torch itself calls in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = x.softmax(1)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return 3 * torch._softmax_backward_data(grad, result, 1, grad.dtype)


class Net(nn.Module):
    def __init__(self, middle: Any, frozen: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(5))
        self.middle = middle
        self.layers[0].requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = layer(self.middle(self, x)).tanh()
        return x


BOUND_BEFORE = Gelu.apply


def in_place_afterwards(net: Net, x: Tensor) -> Tensor:
    return Gelu.apply(x).mul_(2).add_(x)


def without_gradients(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        return Gelu.apply(x) + 1


def in_half_precision(net: Net, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return Gelu.apply(net.layers[0](x)).float()


CALLS = {
    "an activation": lambda net, x: Gelu.apply(x),
    "bound before": lambda net, x: BOUND_BEFORE(x),
    "straight through": lambda net, x: Rounded.apply(x),
    "reversed": lambda net, x: Reversed.apply(x, 0.3) + x,
    "of parameters": lambda net, x: Affine.apply(x, net.layers[0].weight, net.layers[0].bias),
    "without one of them": lambda net, x: Affine.apply(x, net.layers[1].weight, None),
    "two results": lambda net, x: Sorted.apply(x)[0] + Sorted.apply(x)[1],
    "casts that are none": lambda net, x: Cast.apply(x) + x,
    "torch's backward": lambda net, x: Softmax.apply(x),
    "halves": lambda net, x: torch.cat(Halves.apply(x), 1),
    "half of it": lambda net, x: Halves.apply(x)[1].repeat(1, 2),
    "in another": lambda net, x: Reversed.apply(Gelu.apply(x), 2.0),
    "in place afterwards": in_place_afterwards,
    "without gradients": without_gradients,
    "in half precision": in_half_precision,
}


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "behind a frozen layer"])
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_stages_have_the_backward_that_was_written(tmp_path, call, frozen):
    torch.manual_seed(0)
    assert_equal_in_stages(Net(call, frozen), tmp_path, stages=(3,))


def test_what_a_function_keeps_and_its_backward_have_their_price():
    functions, without = (
        study(Net(CALLS[name]), linear_inputs(4)[0]).costs
        for name in ("an activation", "without gradients")
    )
    # Of the four inputs three are what tanh keeps anyway.
    assert functions.activation_bytes[0, -1] == without.activation_bytes[0, -1] + 4 * 6 * 4
    assert functions.calls[-1] > without.calls[-1] + 4 * 10


class Dropping(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return nn.functional.dropout(grad, 0.5)


class Branching(Dropping):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad if grad.sum() > 0 else -grad


class Writing(Dropping):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ctx.saved_tensors[0].mul_(grad)


class Nested(Dropping):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        with torch.enable_grad():
            x = grad.detach().requires_grad_()
            return torch.autograd.grad(x.sin().sum(), x)[0]


class Odd(Dropping):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.nextafter(grad, grad + 1)


REFUSED = {
    "random": (Dropping, r"draws random numbers"),
    "depends on values": (Branching, r"depends on the values of a tensor"),
    "writes": (Writing, r"writes to what it was given, by 'aten.mul_"),
    "differentiates": (Nested, r"Nested .*computes gradients inside its forward"),
    "unknown operator": (Odd, r"nextafter.default', which is not on the allow-list"),
}


@pytest.mark.parametrize(("kind", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_other_backwards_are_refused(kind, reason):
    with pytest.raises(CaptureError, match=reason):
        study(Net(lambda net, x: kind.apply(x)), linear_inputs(4)[0])


# ---- foreign ones ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph() -> StageGraph:
    (whole,) = study(Net(CALLS["an activation"]), linear_inputs(4)[0]).stages(())
    check_graph(whole, Limits())
    return whole


def changed(graph: StageGraph, **change: Any) -> StageGraph:
    """With a part of its first hand-written gradient replaced."""
    operations = list(graph.train.operations)
    at = next(i for i, one in enumerate(operations) if one.op == GRADIENT)
    args = change.pop("args", operations[at].args)
    kwargs = operations[at].kwargs | change
    operations[at] = msgspec.structs.replace(operations[at], args=args, kwargs=kwargs)
    train = msgspec.structs.replace(graph.train, operations=tuple(operations))
    return msgspec.structs.replace(graph, train=train)


def one(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"operations": [[name, list(args), kwargs]], "returns": [0]}


X = {"v": 0}
HOSTILE = {
    "a file": (one("aten.from_file.default", "/etc/passwd"), "not on the allow-list"),
    "another gradient": (one(GRADIENT, [X], [X], []), "not on the allow-list"),
    "a module": (one("ravnest.module", X), "not on the allow-list"),
    "memory around": (one("aten.as_strided.default", X, [9], [1]), "no place"),
    "a tensor of the stage": (one("aten.neg.default", {"t": 0}), "speaks of t 0"),
    "a value of the stage": (one("aten.neg.default", {"v": 9}), "speaks of v 9"),
    "a gradient that it writes to": (one("aten.mul_.Scalar", X, 2.0), "given, by 'aten.mul_"),
    "what is kept, by a view": (
        {"operations": [["aten.unbind.int", [{"v": 1}], {}], ["getitem", [{"v": 2}, 0], {}],
                        ["aten.fill_.Scalar", [{"v": 3}, 9], {}]]},
        "given, by 'aten.fill_",
    ),
    "too large": (one("aten.new_zeros.default", X, [2**39, 2]), "elements"),
    "a keyword": (one("aten.neg.default", X, **{"x=1": 2}), "takes no keyword"),
    "no operator": ({"operations": [["aten.neg.default", X]], "returns": [0]}, "is no operator"),
    "no list": ({"operations": "neg", "returns": [0]}, "malformed"),
    "no gradient": ({"returns": [77]}, "speaks of v 77"),
    "a flag": ({"returns": [True]}, "is no gradient"),
    "one too many": ({"returns": [0, 0]}, "too few gradients, or too many"),
    "something else": ({"more": 1}, "lacks its operators"),
    "no results": ({"args": ([], [X], [])}, "no value"),
    "a number": ({"args": ([1], [X], [])}, "no value"),
    "one list": ({"args": ([X],)}, "lacks its results"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), HOSTILE.values(), ids=list(HOSTILE))
def test_a_backward_that_does_not_hold_together_is_refused(graph, change, reason):
    with pytest.raises(PackageError, match=reason):
        check_graph(changed(graph, **change), Limits())


def test_a_backward_may_write_to_what_it_has_made(graph):
    operations = [["aten.mul.Tensor", [X, X], {}], ["aten.mul_.Scalar", [{"v": 2}, 2.0], {}]]
    check_graph(changed(graph, operations=operations, returns=[3]), Limits())


def test_operators_of_a_backward_count(graph):
    many = [["aten.neg.default", [X], {}]] * 1000
    limits = Limits(arguments=900)
    check_graph(graph, limits)
    with pytest.raises(PackageError, match="arguments are more than"):
        check_graph(changed(graph, operations=many), limits)
