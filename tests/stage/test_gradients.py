"""What a hand-written backward is handed, and what it may do with it, while it runs."""

from typing import Any

import pytest
import torch

from ravnest.errors import PackageError
from ravnest.stage.gradients import HandWritten


def behind(operations: list[Any], returned: int, kept: list[Any]) -> tuple[Any, torch.Tensor]:
    """A tensor with such a backward, and the one that it gives a gradient to. In the operators 0 is
    the gradient, then comes what is kept."""
    given = torch.ones(4, 3, requires_grad=True)
    backward = {"operations": operations, "returns": [returned]}
    (result,) = HandWritten(backward, torch.device("cpu"))([given * 1], [given], kept)
    return result, given


def test_a_sparse_gradient_arrives_dense():
    """As a module of the provider's own program may make it."""
    result, given = behind([["aten.mul.Scalar", [{"v": 0}, 2.0], {}]], 1, [])
    torch.nn.functional.embedding(torch.tensor([2, 2]), result, sparse=True).sum().backward()
    assert given.grad.layout is torch.strided
    assert given.grad.sum(1).tolist() == [0.0, 0.0, 12.0, 0.0]


@pytest.mark.parametrize("value", [0, 1], ids=["a gradient", "what is kept"])
def test_a_write_of_which_no_schema_tells_ends_the_backward(value):
    """Outside of training `dropout` returns what it was given; its schema says it is another."""
    operations = [
        ["aten.dropout.default", [{"v": value}, 0.5, False], {}],
        ["aten.mul_.Scalar", [{"v": 2}, 2.0], {}],
    ]
    result, _ = behind(operations, 0, [torch.ones(4, 3)])
    with pytest.raises(PackageError, match="written to what it was given"):
        (result * 2).sum().backward()
