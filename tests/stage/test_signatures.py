"""Calls that cannot be meant for their operator are refused before anything runs.

Then the operators themselves: those on numbers stay on numbers, and those whose kernels trust their
arguments get none that they should not trust.
"""

import inspect
import math

import pytest
import torch
from samples import v
from torch._ops import OpOverload

from ravnest.errors import PackageError
from ravnest.stage.arithmetic import ARITHMETIC, ARITHMETIC_NAMES, ARITY
from ravnest.stage.guarded import guarded
from ravnest.stage.operators import (
    allowed_operators,
    encode,
    operator_name,
    resolve,
    tensor_operator,
)
from ravnest.stage.signatures import check_call


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("aten.relu.default", [], {}),
        ("aten.relu.default", [v(0), v(0)], {}),
        ("aten.relu.default", [v(0)], {"self": v(0)}),
        ("aten.relu.default", [v(0)], {"class": 1}),
        ("aten.relu.default", [v(0)], {"lambda": 1}),
        ("aten.relu.default", [v(0)], {"__class__": 1}),
        ("aten.relu.default", [v(0)], {"x=print(1)": 1}),
        ("aten.relu.default", [v(0)], {"\u017felf": v(0)}),  # Python would read it as `self`
        ("aten.uniform_.default", [v(0)], {"from": 0.0}),  # a name that code cannot spell
        ("aten.zeros.default", [[2]], {"device": "cuda:0"}),
        ("aten.zeros.default", [[2]], {"device": "meta"}),
        ("aten.zeros.default", [[2]], {"device": 0}),
        ("aten.zeros.default", [[2]], {"device": {"dtype": "float32"}}),
        ("aten.zeros.default", [[2]], {"layout": 1}),
        ("aten.zeros.default", [[2]], {"dtype": 6}),
        ("aten.zeros.default", [["2"]], {}),
        ("aten.zeros.default", [[{"device": 1}]], {}),
        ("aten.rand.generator", [[2]], {"generator": v(0)}),
        ("aten.gelu.default", [v(0)], {"approximate": 1}),
        ("aten.relu.default", ["text"], {}),
        ("add", [1], {}),
        ("add", [1, 2, 3], {}),
        ("add", [1, 2], {"x": 1}),
        ("getitem", [v(0)], {}),
    ],
)
def test_a_call_that_does_not_fit_its_operator_is_refused(name, args, kwargs):
    with pytest.raises(PackageError):
        check_call(name, args, kwargs, 1 << 32)


def test_a_call_that_fits_passes():
    check_call("aten.zeros.default", [[2, v(0)]], {"device": {"device": 1}, "dtype": None}, 10)
    check_call("aten.gelu.default", [v(0)], {"approximate": "tanh"}, 10)
    check_call("aten.relu.default", [], {"self": v(0)}, 10)
    check_call("sum", [[1, v(0)]], {}, 10)


@pytest.mark.parametrize(
    ("name", "args", "elements"),
    [
        ("aten.zeros.default", [[10**12]], 10**12),
        ("aten.full.default", [[10**6, v(0), 10**6], 1.0], 10**12),
        ("aten.eye.m", [10**6, 10**6], 10**12),
        ("aten.arange.start_step", [0, 10**12, 2], 5 * 10**11),
        ("aten.arange.default", [1e12], 10**12),
        ("aten.linspace.default", [0, 1, 10**12], 10**12),
        ("aten.repeat.default", [v(0), [10**6, 10**6]], 10**12),
        ("aten.new_empty.default", [v(0), [10**12]], 10**12),
        ("aten.one_hot.default", [v(0), 10**12], 10**12),
    ],
)
def test_a_tensor_that_cannot_be_meant_is_refused_before_it_is_made(name, args, elements):
    with pytest.raises(PackageError, match="elements"):
        check_call(name, args, {}, 1 << 32)
    check_call(name, args, {}, elements)


def test_a_size_beyond_all_numbers_is_refused():
    with pytest.raises(PackageError, match="out of bounds"):
        check_call("aten.randn.default", [[2**62] * 40], {}, 1 << 32)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten.arange.start_step", [0, 2**60, 2**59]),
        ("aten.arange.start_step", [-(2**60), 1, 2**60]),
        ("aten.arange.start_step", [0, -(2.0**63), -1]),
        ("aten.arange.start_step", [-(2.0**63), 0, -1]),
        ("aten.arange.start_step", [0, 1, 2.0**60]),
        ("aten.arange.default", [math.inf]),
        ("aten.arange.default", [math.nan]),
        ("aten.arange.default", [complex(-(2.0**63))]),
        ("aten.avg_pool2d.default", [torch.ones(1, 2, 2), [1, 1], [], [0, 0], False, True, -1]),
        ("aten.avg_pool2d.default", [torch.ones(1, 2, 2), [1, 1], [], [0, 0], False, True, 0]),
        ("aten.avg_pool3d.default", [torch.ones(1, 1, 1, 1), [1], [], [0], False, True, -1]),
        ("aten.upsample_nearest1d.vec", [torch.ones(1, 1, 1), None, [math.nan]]),
        ("aten.upsample_nearest1d.vec", [torch.ones(1, 1, 1), None, [2.0**24]]),
        ("aten.upsample_nearest1d.vec", [torch.ones(1, 1, 1), None, [-1.0]]),
    ],
    ids=str,
)
def test_a_number_of_any_type_has_a_bound_where_it_decides_a_size(name, args):
    """As a constant, and as one that operators before it have computed."""
    with pytest.raises(PackageError, match=r"out of bounds|takes no complex"):
        resolve(name)(*args)
    written = [
        v(0) if isinstance(one, torch.Tensor) else encode(one, lambda value: value) for one in args
    ]
    with pytest.raises(PackageError, match=r"out of bounds|takes no complex"):
        check_call(name, written, {}, 1 << 62)


def test_a_range_whose_size_is_said_takes_any_number():
    check_call("aten.linspace.default", [0, {"float": "inf"}, 3], {}, 10)
    assert resolve("aten.linspace.default")(0, 2.0**63, 2).tolist() == [0.0, 2.0**63]


def test_views_and_indices_may_be_large():
    check_call("aten.expand.default", [v(0), [10**6, 10**6, 10]], {}, 1 << 32)
    check_call("aten.slice.Tensor", [v(0), 0, 0, 2**63 - 1], {}, 1 << 32)
    check_call("aten.split_with_sizes.default", [v(0), [64] * 12], {}, 1 << 32)


# ---- arithmetic ------------------------------------------------------------------------------


def test_every_name_of_arithmetic_is_known_in_both_directions():
    assert ARITHMETIC.keys() == ARITY.keys() == set(ARITHMETIC_NAMES.values())
    for function, name in ARITHMETIC_NAMES.items():
        assert operator_name(function) == name


@pytest.mark.parametrize(
    ("name", "args", "result"),
    [
        ("add", (2, 3), 5),
        ("mul", (2.5, 2), 5.0),
        ("floordiv", (-7, 2), -4),
        ("truediv", (7, 2), 3.5),
        ("mod", (7, 4), 3),
        ("pow", (2, 10), 1024),
        ("neg", (3,), -3),
        ("and", (True, False), False),
        ("sym_max", (2, 3), 3),
        ("sym_ite", (True, 2, 3), 2),
        ("sym_float", (2,), 2.0),
        ("sym_sqrt", (9,), 3.0),
        ("ceil", (2.1,), 3),
        ("round", (2.5,), 2),
        ("sum", ([1, 2, 3],), 6),
        ("getitem", ([4, 5], 1), 5),
    ],
)
def test_arithmetic_computes(name, args, result):
    found = resolve(name)(*args)
    assert (found, type(found)) == (result, type(result))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("mul", ([0], 10**12)),
        ("mul", ("x", 10**10)),
        ("mul", (2**62, 2**62)),
        ("add", ([0], [1])),
        ("add", (2**63 - 1, 1)),
        ("mod", ("%1000000000d", 5)),
        ("pow", (2**33, 2)),
        ("pow", (2, 65)),
        ("pow", (2, 64)),
        ("pow", (-8, 0.5)),
        ("add", (torch.ones(2), 1)),
        ("eq", (None, None)),
        ("sum", ([[1], [2]],)),
        ("sum", ([2**63 - 1, 1],)),
        ("getitem", ("text", 0)),
        ("getitem", (torch.ones(2), 0)),
        ("getitem", ({"a": 1}, "a")),
        ("getitem", ([1, 2], "__class__")),
    ],
    ids=str,
)
def test_arithmetic_stays_on_numbers_of_64_bits(name, args):
    with pytest.raises(PackageError):
        resolve(name)(*args)


# ---- guarded operators -----------------------------------------------------------------------


def test_a_guarded_operator_takes_what_torchs_own_takes():
    for name in allowed_operators():
        function = guarded(tensor_operator(name))
        if isinstance(function, OpOverload):
            continue
        parameters = inspect.signature(function).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        free = inspect.Parameter.VAR_KEYWORD in kinds
        for argument in tensor_operator(name)._schema.arguments:
            assert argument.name in parameters or free, (name, argument.name)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten.empty.memory_format", ([64, 64],)),
        ("aten.empty_like.default", (torch.ones(64, 64),)),
        ("aten.new_empty.default", (torch.ones(1), [64, 64])),
    ],
)
def test_uninitialised_memory_is_handed_out_as_zeros(name, args):
    for _ in range(3):
        torch.full((64, 64), math.pi)  # freed at once, so that its memory is at hand
        found = resolve(name)(*args)
        assert found.shape == (64, 64)
        assert not found.any()


def lstm(layers: int = 1, features: int = 3, states: int = 4, params: int = 4) -> None:
    x, h = torch.ones(5, 2, 3), torch.zeros(1, 2, 4)
    shapes = [(16, features), (16, states), (16,), (16,)]
    weights = [torch.ones(shape) for shape in shapes[:params]]
    resolve("aten.lstm.input")(x, [h, h], weights, True, layers, 0.0, True, False, False)


@pytest.mark.parametrize(
    "wrong", [{"layers": 2}, {"layers": 0}, {"layers": 2**62}, {"params": 3}, {"features": 2},
              {"states": 3}]
)  # fmt: skip
def test_a_recurrent_layer_with_missing_weights_is_refused(wrong):
    lstm()
    with pytest.raises(PackageError, match=r"recurrent|bounds"):
        lstm(**wrong)


@pytest.mark.parametrize(
    ("indices", "offsets", "last"),
    [
        ([0, 1], [0, -(2**31)], False),
        ([0, 1], [1, 0], False),
        ([0, 1], [0, 3], False),
        ([0, 1], [], False),
        ([0, 1], [0], True),
        ([0, 9], [0, 1], False),
        ([0, -1], [0, 1], False),
    ],
)
def test_bags_outside_of_their_indices_are_refused(indices, offsets, last):
    function = resolve("aten.embedding_bag.padding_idx")
    table, whole = torch.ones(6, 2), torch.tensor([0, 1])
    options = (False, 0, False, None)
    assert function(table, whole, whole, *options, False, None)[0].tolist() == [[1, 1]] * 2
    numbers = torch.tensor(indices), torch.tensor(offsets, dtype=torch.int64)
    with pytest.raises(PackageError):
        function(table, *numbers, *options, last, None)


def test_other_trusting_kernels_are_guarded():
    image, grid = torch.ones(1, 1, 4, 4), torch.full((1, 2, 2, 2), math.nan)
    sampled = resolve("aten.grid_sampler.default")(image, grid, 0, 2, True)
    assert sampled.tolist() == [[[[1.0, 1.0], [1.0, 1.0]]]]
    q, k = torch.ones(1, 1, 5, 8), torch.ones(1, 1, 3, 8)
    with pytest.raises(PackageError, match="attention"):
        resolve("aten.scaled_dot_product_attention.default")(q, k, q)
    with pytest.raises(PackageError, match="_weight_norm"):
        resolve("aten._weight_norm.default")(torch.ones(4, 3), torch.ones(1, 1), 0)
    with pytest.raises(PackageError, match=r"outside|bounds"):
        resolve("aten.as_strided.default")(torch.ones(9), [2, 3], [5, 2**63 - 1], 2)
    with pytest.raises(PackageError, match="repeats"):
        resolve("aten.repeat_interleave.self_Tensor")(torch.ones(3), torch.tensor([1, 1, -2]), 0)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("wrong", [0, 1, 2, 3])
def test_a_pooling_window_that_overflows_is_refused(dims, wrong):
    pool = resolve(f"aten.max_pool{dims}d.default")
    windows = [[2] * dims, [2] * dims, [1] * dims, [1] * dims]
    volume = torch.ones(1, 2, *[6] * dims)
    assert pool(volume, *windows).shape == (1, 2, *[4] * dims)
    windows[wrong] = [2**31] * dims
    with pytest.raises(PackageError, match="out of bounds"):
        pool(volume, *windows)
    windows[wrong] = [2] * dims
    windows[3] = [7] * dims  # the backward pass would write where no element is
    with pytest.raises(PackageError, match="window"):
        pool(volume, *windows, True)
