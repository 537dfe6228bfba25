"""A context means the same to everyone who runs operators in it."""

import pytest
import torch

from ravnest.planning.capture.program import Op, Program, Value
from ravnest.planning.costing.probe import Arguments, run
from ravnest.stage.context import in_context
from ravnest.stage.graph import Context

X = torch.eye(2, requires_grad=True)
LOW = Context(autocast_dtype="bfloat16", autocast_enabled=True)
CONTEXTS = [
    None,
    Context(),
    Context(grad=False),
    Context(grad=True),
    LOW,
    Context(grad=False, autocast_dtype="bfloat16", autocast_enabled=True),
    Context(autocast_dtype="bfloat16", autocast_enabled=False),
    Context(autocast_dtype="bfloat16", autocast_enabled=True, cast_once=1),
]
NOTHING_HELD = Program(
    arguments=(), inputs=[X], ops=[], result={}, held={}, dynamic=False, batch_size=2
)


def test_no_context_costs_nothing():
    assert in_context(torch.matmul, None, "cpu") is torch.matmul


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
def test_what_the_planner_measures_is_what_a_stage_runs(context):
    matmul = torch.ops.aten.matmul.default
    expected = in_context(matmul, context, "cpu")(X, X)
    op = Op(1, matmul, (Value(0), Value(0)), {}, None, context, "", "")
    probe = run(op, Arguments(op, lambda _: X, {0}, NOTHING_HELD), timed=False)
    assert probe.results.dtype is expected.dtype
    assert torch.equal(probe.results, expected)
    assert (probe.flops[1] > 0) == expected.requires_grad


def test_a_cast_weight_is_not_kept_beyond_its_operator():
    """An autocast region around the stage would keep it, and miss the next optimizer step."""
    weight = torch.eye(2, requires_grad=True)
    product = in_context(torch.matmul, LOW, "cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = product(X, weight)
        with torch.no_grad():
            weight.mul_(2)
        assert torch.equal(product(X, weight), 2 * before)
