"""Stages run one after another compute what the whole model computes, gradients included."""

import copy
import json
import math
from typing import Any

import msgspec
import pytest
import torch
from samples import Document, calculation, op, t, v, weights, whole, wire
from torch import nn

from ravnest.stage.graph import Argument, StageGraph
from ravnest.stage.local import LocalPipeline, bind_inputs
from ravnest.stage.module import StageModule

X = torch.linspace(-1, 1, 8).view(2, 4)
WEIGHT = torch.linspace(-0.5, 1, 16).view(4, 4)


def spec(name: str, shape: list[int], *stages: int, **more: Any) -> Document:
    return {
        "name": name,
        "kind": "parameter",
        "dtype": "float32",
        "shape": shape,
        "trainable": True,
        "stages": list(stages),
        **more,
    }


def stage(number: int, of: int, mode: Document, tensors: Any = (), **more: Any) -> Document:
    return {
        "format": 1,
        "stage": number,
        "stages": of,
        "tensors": list(tensors),
        "train": mode,
        "eval": copy.deepcopy(mode),
        **more,
    }


FIRST = {
    "arguments": [{"name": "x", "structure": {"leaf": 0}, "positional": True}],
    "inputs": [wire(0, 0)],
}


def pipeline(documents: list[Document], held: dict[str, torch.Tensor]) -> LocalPipeline:
    modules = []
    for document in documents:
        graph = msgspec.json.decode(json.dumps(document).encode(), type=StageGraph)
        own = {each.name: held[each.name].clone() for each in graph.tensors}
        modules.append(StageModule(graph, own))
    return LocalPipeline(modules)


def skip_model() -> LocalPipeline:
    """Three stages; value 1 is used by all of them and is part of the result as well."""
    first = stage(
        0,
        3,
        {
            "operations": [op(1, "aten.linear.default", v(0), t(0))],
            "sends": [wire(1, 1, 2, grad=True)],
        },
        [spec("w", [4, 4], 0, 1)],
        **FIRST,
    )
    second = stage(
        1,
        3,
        {
            "operations": [op(2, "aten.linear.default", v(1), t(0))],
            "receives": [wire(1, 0, grad=True)],
            "sends": [wire(2, 2, grad=True)],
        },
        [spec("w", [4, 4], 0, 1, owner=False)],
    )
    third = stage(
        2,
        3,
        {
            "operations": [op(3, "aten.mul.Tensor", v(1), v(2))],
            "receives": [wire(1, 0, grad=True), wire(2, 1, grad=True)],
            "result": {"tuple": [{"leaf": 3}, {"leaf": 1}, {"const": "text"}]},
        },
    )
    return pipeline([first, second, third], {"w": WEIGHT})


def skip_reference(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    one = x @ w.T
    return one * (one @ w.T), one


def test_forward_gives_the_models_result():
    found = skip_model()(X)
    expected = skip_reference(WEIGHT, X)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert found[2] == "text"
    assert not found[0].requires_grad


def test_gradients_of_a_tied_weight_are_summed_on_every_stage():
    """Value 1 reaches the loss by four ways: through stage 1, twice in stage 2, and as a result."""

    def loss(result: Any) -> torch.Tensor:
        return result[0].square().sum() + 3 * result[1].sum()

    w = WEIGHT.clone().requires_grad_()
    expected = loss(skip_reference(w, X))
    expected.backward()
    stages = skip_model()
    found, result = stages.step(((X,), {}), loss)
    torch.testing.assert_close(found, expected.detach())
    assert result[2] == "text"
    copies = [module.tensors()["w"] for module in stages.stages[:2]]
    for each in copies:
        torch.testing.assert_close(each.grad, w.grad)
    assert copies[0].grad is not copies[1].grad
    stages.step(((X,), {}), loss)  # without zero_grad: added, and the first step counted once
    for each in copies:
        torch.testing.assert_close(each.grad, 2 * w.grad)


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_a_stage_that_hands_its_input_through_passes_the_gradient(p):
    """Dropout with p=0 returns its argument: the output of the stage is its input leaf, under
    another number, and has no gradient function of its own."""
    first = stage(
        0,
        2,
        {
            "operations": [op(1, "aten.linear.default", v(0), t(0))],
            "sends": [wire(1, 1, grad=True)],
        },
        [spec("w", [4, 4])],
        **FIRST,
    )
    second = stage(
        1,
        2,
        {
            "operations": [op(2, "aten.dropout.default", v(1), p, True)],
            "receives": [wire(1, 0, grad=True)],
            "result": {"leaf": 2},
        },
    )
    stages = pipeline([first, second], {"w": WEIGHT})
    w = WEIGHT.clone().requires_grad_()
    torch.manual_seed(0)
    nn.functional.dropout(X @ w.T, p).square().sum().backward()
    torch.manual_seed(0)
    stages.step(((X,), {}), lambda result: result.square().sum())
    torch.testing.assert_close(stages.stages[0].tensors()["w"].grad, w.grad)


def test_a_number_travels_and_a_frozen_stage_gets_no_gradient():
    first = stage(
        0,
        2,
        {
            "operations": [op(1, "aten.sym_size.int", v(0), 0)],
            "sends": [{"value": 1, "stages": [1]}, wire(0, 1)],
        },
        **FIRST,
    )
    second = stage(
        1,
        2,
        {
            "operations": [op(2, "aten.linear.default", v(0), t(0)), op(3, "truediv", v(1), 4)],
            "receives": [{"value": 1, "stages": [0]}, wire(0, 0)],
            "result": {"list": [{"leaf": 2}, {"leaf": 3}]},
        },
        [spec("w", [4, 4])],
    )
    stages = pipeline([first, second], {"w": WEIGHT})
    loss, result = stages.step(((X,), {}), lambda result: result[0].sum() * result[1])
    assert result[1] == 0.5
    assert math.isclose(float(loss), float((X @ WEIGHT.T).sum() * 0.5), rel_tol=1e-6)
    assert stages.stages[1].tensors()["w"].grad is not None


def test_a_loss_without_gradient_is_no_error():
    stages = pipeline([whole()], weights())
    loss, _ = stages.step(((X,), {}), lambda result: torch.tensor(1.0))
    assert float(loss) == 1.0
    assert all(p.grad is None for module in stages.stages for p in module.parameters())


def test_the_mode_of_all_stages_is_switched():
    stages = skip_model()
    stages.train(False)
    assert [module.mode for module in stages.stages] == ["eval"] * 3
    stages.train()
    assert [module.mode for module in stages.stages] == ["train"] * 3


# ---- inputs ----------------------------------------------------------------------------------

ARGUMENTS = (
    Argument(name="ids", structure={"leaf": 0}, positional=True),
    Argument(name="mask", structure={"tuple": [{"leaf": 1}, {"const": 2}]}),
)
A, B = torch.ones(1), torch.zeros(1)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((A, (B, 2)), {}),
        ((A,), {"mask": (B, 2)}),
        ((), {"mask": (B, 2), "ids": A}),
    ],
)
def test_inputs_are_bound_as_the_model_would(args, kwargs):
    assert bind_inputs(ARGUMENTS, args, kwargs) == {0: A, 1: B}


@pytest.mark.parametrize(
    ("args", "kwargs", "match"),
    [
        ((A,), {}, "input 'mask' is missing; the model was planned with"),
        ((), {}, "input 'ids' is missing"),
        ((A, (B, 2), A), {}, "3 positional inputs given"),
        ((A,), {"ids": A, "mask": (B, 2)}, "input 'ids' is given twice"),
        ((A, (B, 2)), {"labels": A}, "unknown input 'labels'"),
        ((A, [B, 2]), {}, "input 'mask' does not have the form"),
        ((A, (B, 3)), {}, "pass the same values, or plan again"),
        ((A, (B, 2.0)), {}, "does not have the form"),
        ((A, (B, B)), {}, "does not have the form"),
        ((1.0, (B, 2)), {}, "input 'ids' does not have the form"),
        ((A, object()), {}, "holds an object of type builtins.object"),
    ],
)
def test_wrong_inputs_are_named(args, kwargs, match):
    with pytest.raises(ValueError, match=match):
        bind_inputs(ARGUMENTS, args, kwargs)


def test_a_model_for_one_batch_size_refuses_another():
    graph = calculation(op(1, "aten.relu.default", v(0)), result={"leaf": 1}, static_batch=2)
    graph["inputs"][0]["shape"] = [2, 4]
    stages = pipeline([graph], {})
    assert torch.equal(stages(X), X.relu())
    for rows in (torch.ones(3, 4), torch.ones(2, 5), torch.ones(4), torch.ones(2, 4, 1)):
        with pytest.raises(ValueError, match=r"only be planned for \[2, 4\].*drop_last=True"):
            stages(rows)


def test_only_the_batch_may_have_another_size_than_planned():
    """A fixed size is part of the graph: another one would be computed with the old number."""
    graph = calculation(op(1, "aten.relu.default", v(0)), result={"leaf": 1})
    graph["inputs"][0]["shape"] = [-1, 4]
    stages = pipeline([graph], {})
    stages(torch.ones(7, 4))
    for shape in ((7, 5), (7,), (7, 4, 1)):
        with pytest.raises(ValueError, match=r"only be planned for \[-1, 4\].*fixed"):
            stages(torch.ones(shape))


def test_batches_that_take_another_way_through_the_model_are_refused():
    graph = calculation(op(1, "aten.relu.default", v(0)), result={"leaf": 1})
    graph["inputs"][0]["shape"] = [-1, 4]
    graph["train"] |= {"least_rows": 3, "most_rows": 8}
    graph["eval"] |= {"least_rows": 1, "most_rows": 8}
    stages = pipeline([graph], {})
    stages(torch.ones(3, 4))
    for rows in (2, 9):
        with pytest.raises(ValueError, match=r"at least 3 and at most 8"):
            stages(torch.ones(rows, 4))
    stages.train(False)
    stages(torch.ones(1, 4))
