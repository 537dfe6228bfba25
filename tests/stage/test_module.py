"""A stage graph becomes a module that computes what the graph says, and only that."""

import json
import os
from typing import Any

import msgspec
import pytest
import torch
from samples import Document, build, calculation, op, t, v, weights, whole, wire
from torch import nn

from ravnest.errors import OperatorError, PackageError
from ravnest.stage.graph import StageGraph
from ravnest.stage.module import StageModule

X = torch.linspace(-1, 1, 8).view(2, 4)


def stage(document: Document, tensors: dict[str, torch.Tensor] | None = None, **more: Any) -> Any:
    graph = msgspec.json.decode(json.dumps(document).encode(), type=StageGraph)
    return StageModule(graph, tensors or {}, **more)


def reference(held: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ held["fc.weight"].T + held["fc.bias"]) * held["scale"]


def test_a_stage_computes_its_operators():
    module = stage(whole(), weights())
    (found,) = module(X)
    assert torch.equal(found, reference(weights(), X))
    assert found.requires_grad
    assert (module.receives("train"), module.returns("train")) == ((0,), (3,))


def test_parameters_and_buffers_are_what_the_graph_says():
    document = whole()
    document["tensors"][1]["trainable"] = False
    module = stage(document, weights())
    assert [p.requires_grad for p in module.parameters()] == [True, False]
    assert len(list(module.buffers())) == 1
    assert list(module.tensors()) == ["fc.weight", "fc.bias", "scale"]


def test_both_modes_see_an_optimizer_step():
    module = stage(whole(), weights())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        module.train()(X)[0].sum().backward()
        optimizer.step()
    module.tensors()["scale"].fill_(3.0)
    held = {name: tensor.detach() for name, tensor in module.tensors().items()}
    assert not torch.equal(held["fc.weight"], weights()["fc.weight"])
    for mode in (True, False):
        (found,) = module.train(mode)(X)
        assert torch.equal(found, reference(held, X))


def test_each_mode_runs_its_own_graph():
    document = whole()
    document["eval"] = {
        "operations": [op(1, "aten.neg.default", v(0))],
        "result": {"leaf": 1},
    }
    module = stage(document, weights())
    assert torch.equal(module.eval()(X)[0], -X)
    assert torch.equal(module.train()(X)[0], reference(weights(), X))


def test_a_value_returned_twice_is_returned_once():
    document = calculation(op(1, "aten.neg.default", v(0)), result={"list": [{"leaf": 1}] * 2})
    assert len(stage(document)(X)) == 1


def test_a_stage_cannot_be_moved():
    module = stage(whole(), weights())
    for move in (
        module.double,
        module.half,
        lambda: module.to("meta"),
        nn.Sequential(module).bfloat16,
    ):
        with pytest.raises(TypeError, match="built for its device"):
            move()


def test_a_device_in_the_graph_is_the_stages_own(tmp_path):
    make = op(1, "aten.ones.default", [2, 3], device={"device": 1}, dtype={"dtype": "float32"})
    move = op(2, "aten.to.device", v(0), {"device": 1}, {"dtype": "float64"})
    document = calculation(make, move, result={"tuple": [{"leaf": 1}, {"leaf": 2}]})
    for device in ("cpu", "meta"):
        module = build(tmp_path / device, document, device)
        made, moved = module(X)
        assert (made.device.type, moved.device.type, moved.dtype) == (device, device, torch.float64)


def test_a_stage_can_be_built_without_memory():
    module = stage(whole(), weights(), device="meta")
    assert all(tensor.is_meta for tensor in module.tensors().values())
    (found,) = module(X.to("meta"))
    assert (found.shape, found.is_meta) == ((2, 3), True)


# ---- contexts --------------------------------------------------------------------------------


def in_context(context: Document) -> torch.Tensor:
    document = whole()
    document["contexts"] = [context]
    document["train"]["operations"][0]["context"] = 0
    document["train"]["result"] = {"leaf": 1}
    (found,) = stage(document, weights())(X)
    assert isinstance(found, torch.Tensor)
    return found


def test_an_operator_without_grad_has_no_gradient():
    assert not in_context({"grad": False}).requires_grad
    assert in_context({"grad": True}).requires_grad
    assert in_context({}).requires_grad


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_operator_under_autocast_computes_in_its_type(dtype):
    autocast = {"autocast_dtype": dtype, "autocast_enabled": True}
    assert in_context(autocast).dtype is getattr(torch, dtype)
    assert in_context(autocast).requires_grad
    assert not in_context({**autocast, "grad": False}).requires_grad
    off = {"autocast_dtype": dtype, "autocast_enabled": False}
    assert in_context(off).dtype is torch.float32
    with torch.autocast("cpu", dtype=getattr(torch, dtype)):
        assert in_context(off).dtype is torch.float32
        assert in_context(autocast).dtype is getattr(torch, dtype)
    assert not torch.is_autocast_enabled("cpu")


def test_contexts_of_neighbours_do_not_mix():
    document = calculation(
        op(1, "aten.mul.Tensor", v(0), 2, context=0),
        op(2, "aten.mul.Tensor", v(0), 2),
        op(3, "aten.matmul.default", v(0), v(0), context=1),
        result={"tuple": [{"leaf": 1}, {"leaf": 2}, {"leaf": 3}]},
        contexts=[{"grad": False}, {"autocast_dtype": "bfloat16", "autocast_enabled": True}],
    )
    square = torch.eye(4, requires_grad=True)
    without, plain, low = stage(document)(square)
    assert (without.requires_grad, plain.requires_grad, low.requires_grad) == (False, True, True)
    assert (plain.dtype, low.dtype) == (torch.float32, torch.bfloat16)


# ---- memory around a tensor ------------------------------------------------------------------

WINDOW = op(1, "aten.as_strided.default", v(0), [100], [1], 0)
BIG = torch.arange(100.0)


@pytest.mark.parametrize(
    "given",
    [
        BIG[10:20],
        BIG[:50].view(5, 10),
        BIG.view(10, 10)[:, :2],
        BIG[5:6].expand(100),
        BIG[5:6].expand(200),
    ],
    ids=["slice", "start", "columns", "expanded", "expanded beyond"],
)
def test_a_stage_sees_nothing_around_its_inputs(given):
    module = stage(calculation(WINDOW, result={"leaf": 1}))
    try:
        (found,) = module(given)
    except PackageError as error:
        assert "outside of its tensor" in str(error)  # noqa: PT017 - either is right
    else:
        assert set(found.tolist()) <= set(given.flatten().tolist())


def test_a_stage_sees_nothing_around_its_weights():
    document = calculation(
        op(1, "aten.as_strided.default", t(0), [100], [1], 0),
        result={"leaf": 1},
        tensors=[{"name": "w", "kind": "buffer", "dtype": "float32", "shape": [10]}],
    )
    with pytest.raises(PackageError, match="outside of its tensor"):
        stage(document, {"w": BIG[10:20]})(X)


def test_a_stage_sees_nothing_around_what_a_module_returns():
    class Keeps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return BIG[10:20]

    document = calculation(
        op(1, "ravnest.module", v(0), path="0"),
        op(2, "aten.as_strided.default", v(1), [100], [1], 0),
        result={"leaf": 2},
    )
    with pytest.raises(PackageError, match="outside of its tensor"):
        stage(document, model=nn.Sequential(Keeps()))(X)


def test_strides_still_work_and_have_gradients():
    document = calculation(
        op(1, "aten.as_strided.default", v(0), [2, 3], [1, 1], 0), result={"leaf": 1}
    )
    base = torch.arange(12.0, requires_grad=True)
    (found,) = stage(document)(base[4:8])
    assert found.tolist() == [[4, 5, 6], [5, 6, 7]]
    found.sum().backward()
    assert base.grad is not None
    assert base.grad[4:8].tolist() == [1, 2, 2, 1]


def test_tensors_are_copied_only_where_it_matters():
    plain = stage(calculation(op(1, "aten.view.default", v(0), [-1]), result={"leaf": 1}))
    assert plain(BIG[10:20])[0].data_ptr() == BIG[10:20].data_ptr()
    strided = stage(calculation(WINDOW, result={"leaf": 1}))
    assert strided(BIG)[0].data_ptr() == BIG.data_ptr()


# ---- generated code --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keyword", ["x=__import__('os').mkdir('%s')", "class", "a b", "x)", "self, y", "", "#"]
)
def test_a_keyword_that_is_code_never_becomes_code(keyword, tmp_path):
    """Also without the loader's checks, which refuse it earlier."""
    target = tmp_path / "made"
    call = {**op(1, "aten.relu.default", v(0)), "kwargs": {keyword.replace("%s", str(target)): 1}}
    with pytest.raises(PackageError, match="unusable keyword"):
        stage(calculation(call, result={"leaf": 1}))
    assert not target.exists()


@pytest.mark.parametrize("text", ["'+__import__('os').mkdir('%s')+'", '"""', "\\", "\n", "\u2028'"])
def test_a_text_that_is_code_stays_a_text(text, tmp_path):
    target = tmp_path / "made"
    text = text.replace("%s", str(target))
    call = op(1, "aten.gelu.default", v(0), approximate=text)
    module = build(tmp_path / "stage", calculation(call, result={"leaf": 1}))
    with pytest.raises(OperatorError, match=r"aten\.gelu\.default") as failed:
        module(X)
    assert "approximate" in str(failed.value.__cause__)
    assert not target.exists()
    assert os.listdir(tmp_path) == ["stage"]


def test_numbers_of_all_kinds_reach_the_operator(tmp_path):
    edges = [{"float": "inf"}, {"float": "-inf"}, 2**63 - 1, -(2**63), -0.0, 5e-324]
    operations = [op(1 + i, "aten.full.default", [1], edge) for i, edge in enumerate(edges)]
    document = calculation(
        *operations,
        op(20, "aten.mul.Tensor", v(0), {"complex": [0.0, 1.0]}),
        result={"tuple": [{"leaf": 1 + i} for i in range(len(edges))] + [{"leaf": 20}]},
    )
    *made, turned = build(tmp_path / "stage", document)(X)
    assert [each.item() for each in made[:2]] == [float("inf"), float("-inf")]
    assert [each.item() for each in made[2:4]] == [2**63 - 1, -(2**63)]
    assert torch.equal(turned, X * 1j)


def test_the_largest_numbers_of_values_are_only_names(tmp_path):
    last = 2**31 - 1
    document = calculation(op(last, "aten.neg.default", v(0)), result={"leaf": last})
    assert torch.equal(build(tmp_path / "stage", document)(X)[0], -X)


def test_a_long_graph_is_built_and_run(tmp_path):
    count = 3000
    chain = [op(i + 1, "aten.add.Tensor", v(i), 1.0) for i in range(count)]
    document = calculation(*chain, result={"leaf": count})
    assert torch.allclose(build(tmp_path / "stage", document)(X * 0)[0], torch.tensor(1.0 * count))


# ---- compiled --------------------------------------------------------------------------------


def test_a_compiled_stage_computes_the_same():
    """With arithmetic on the batch size, several results of one operator, and a context."""
    document = whole()
    document["train"]["operations"] += [
        op(4, "aten.sym_size.int", v(3), 0),
        op(5, "mul", v(4), 3),
        op(6, "aten.view.default", v(3), [v(5)]),
        op(7, "aten.unbind.int", v(3), 1),
        op(8, "getitem", v(7), 1),
        op(9, "aten.neg.default", v(6), context=0),
    ]
    document["contexts"] = [{"grad": False}]
    document["train"]["result"] = {"tuple": [{"leaf": 6}, {"leaf": 8}, {"leaf": 9}]}
    plain, compiled = (stage(document, weights()) for _ in range(2))
    # Compiling torch's headers in advance pays off from the second kernel on; here are two.
    compiled.compile(options={"cpp_cache_precompile_headers": False})
    for rows in (2, 5):
        x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))
        outputs = [module(x) for module in (plain, compiled)]
        for one, other in zip(*outputs, strict=True):
            torch.testing.assert_close(one, other)
            assert one.requires_grad == other.requires_grad
        for found in outputs:
            (found[0].square().sum() + found[1].sum()).backward()
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
        assert one.grad is not None


def test_every_wire_of_a_later_stage_is_an_argument():
    mode = {
        "operations": [op(7, "aten.add.Tensor", v(5), v(6))],
        "receives": [wire(5, 0), wire(6, 0)],
        "result": {"leaf": 7},
    }
    document = {
        "format": 1,
        "stage": 1,
        "stages": 2,
        "tensors": [],
        "train": mode,
        "eval": mode,
    }
    module = stage(document)
    assert module.receives("eval") == (5, 6)
    assert torch.equal(module(X, X)[0], X + X)


def test_a_tensor_number_that_does_not_exist_is_refused():
    document = calculation(op(1, "aten.relu.default", t(0)), result={"leaf": 1})
    with pytest.raises(PackageError, match="tensor 0 does not exist"):
        stage(document)
