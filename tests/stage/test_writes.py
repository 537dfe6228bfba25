"""What operators write to, and whose memory their results show, is known before they run."""

import msgspec
import pytest
import torch
from fuzzing import samples as sample_calls
from samples import op, t, v
from torch.utils import _pytree as pytree

from ravnest.stage.arithmetic import ARITHMETIC
from ravnest.stage.graph import ModeGraph
from ravnest.stage.operators import DTYPES, GRADIENT, MODULE_CALL, decode, tensor_operator
from ravnest.stage.writes import shown, written, written_in

CPU = torch.device("cpu")


def call_with_tensors(value):
    """A sample call as torch takes it."""
    if isinstance(value, dict) and "tensor" in value:
        dtype, shape = DTYPES[value["tensor"][0]], value["tensor"][1]
        if not dtype.is_floating_point and not dtype.is_complex:
            return torch.zeros(shape, dtype=dtype)
        return torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    if isinstance(value, list):
        return [call_with_tensors(item) for item in value]
    return decode(value, CPU, lambda tag, number: None)


def tensors_in(value):
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def memory(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


def bits(tensor):
    return tensor.detach().clone().contiguous().reshape(-1).view(torch.uint8)


def test_no_operator_of_the_list_does_more_than_is_known_of_it():
    tried = 0
    for name, calls in sample_calls().items():
        for call in calls if name not in ARITHMETIC else ():
            args, named = call
            args = call_with_tensors(args)
            kwargs = {key: call_with_tensors(item) for key, item in named.items()}
            operator = tensor_operator(name)
            given = tensors_in((args, kwargs))
            before = [bits(tensor) for tensor in given]
            try:
                found = operator(*args, **kwargs)
            except (RuntimeError, IndexError, ValueError, NotImplementedError):
                continue  # does not like what the tensors hold
            tried += 1
            changed = [x for x, was in zip(given, before, strict=True) if not bits(x).equal(was)]
            writes = memory(tensors_in(list(written(operator, args, kwargs))))
            assert memory(changed) <= writes, f"{name} writes to more than is known"
            shared = memory(given) & memory(tensors_in(found))
            shows = memory(tensors_in(list(shown(operator, args, kwargs))))
            assert shared <= shows, f"{name} shows more than is known"
    assert tried > 500


def found_in(*operations):
    graph = msgspec.convert({"operations": operations}, ModeGraph)
    return {(tag, number) for tag, number in written_in(graph) if tag == "t" or number < 10}


LINEAR = op(10, "aten.linear.default", v(0), t(0))
NORM = [t(0), t(1), t(2), t(3)]


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([LINEAR, op(11, "aten.relu_.default", v(10))], set()),
        ([op(10, "aten.mul_.Tensor", v(0), t(0))], {("v", 0)}),
        ([op(10, "aten.copy_.default", t(1), v(0))], {("t", 1)}),
        (
            [op(10, "aten.view.default", t(1), [2, 2]), op(11, "aten.select.int", v(10), 0, 1),
             op(12, "aten.add_.Tensor", v(11), v(0))],
            {("t", 1)},
        ),
        (
            [op(10, "aten.unbind.int", t(1)), op(11, "getitem", v(10), 0),
             op(12, "aten.zero_.default", v(11))],
            {("t", 1)},
        ),
        (  # hands its argument through if nothing is dropped
            [op(10, "aten.dropout.default", t(1), 0.0, True), op(11, "aten.sin_.default", v(10))],
            {("t", 1)},
        ),
        (
            [op(10, GRADIENT, [v(0)], [t(1)], [], operations=[], returns=[None]),
             op(11, "getitem", v(10), 0), op(12, "aten.sin_.default", v(11))],
            {("v", 0)},
        ),
        ([op(10, "aten.batch_norm.default", v(0), *NORM, True, 0.1, 1e-5, False)],
         {("t", 2), ("t", 3)}),
        ([op(10, "aten.batch_norm.default", v(0), *NORM, False, 0.1, 1e-5, False)], set()),
        (
            [op(10, "aten.select.int", t(2), 0, 0), op(11, "aten.select.int", t(3), 0, 0),
             op(12, "aten.instance_norm.default", v(0), None, None, v(10), v(11), True, 0.1, 1e-5,
                False)],
            {("t", 2), ("t", 3)},
        ),
        ([op(10, MODULE_CALL, v(0), path="layer")], {("v", 0)}),
    ],
)  # fmt: skip
def test_what_a_graph_writes_to_is_read_from_it(operations, expected):
    assert found_in(*operations) == expected
