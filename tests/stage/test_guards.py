"""Every guard of an operator, and each thing that it refuses, called without a package around it.

Torch itself answers nearly all of these calls, or refuses them in words of its own: without its
guard an operator fails here and takes nothing with it, but for the least integer divided by -1 and
the norm of an empty weight, on which the processor traps. What kernels do with worse ones is in
test_hostile_operators.py and the fuzzer.
"""

import pytest
import torch
from torch.utils import deterministic

from ravnest.errors import InputError, PackageError
from ravnest.stage.guarded import _GUARDS, guarded

aten = torch.ops.aten


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def integers(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


def layer(gates, width=3, hidden=4):
    """The weights of a recurrent layer without biases."""
    return [ones(gates * hidden, width), ones(gates * hidden, hidden)]


def recurrent(gates):
    """Calls of one layer: input (steps, rows, width) and its states, which do not fit."""
    states = [ones(1, 2, 4), ones(1, 2, 4)] if gates == 4 else ones(1, 2, 4)
    wrong = [ones(1, 5, 4), ones(1, 5, 4)] if gates == 4 else ones(1, 5, 4)
    rest = (False, 1, 0.0, False, False, False)
    return [
        (ones(2, 3), states, layer(gates), *rest),
        (ones(5, 2, 3), wrong, layer(gates), *rest),
        (ones(5, 2, 3), states, layer(gates, width=7), *rest),
        (ones(5, 2, 3), states, layer(gates)[:1], *rest),
    ]


TABLE, IMAGE = ones(5, 2), ones(1, 1, 4, 4)
FRAMES, LABELS, FULL, TWO = ones(6, 2, 4), ones(2, 3).long(), integers(6, 6), integers(2, 2)
REFUSED = {
    aten.lstm.input: recurrent(4),
    aten.gru.input: recurrent(3),
    aten.rnn_tanh.input: recurrent(1),
    aten.rnn_relu.input: recurrent(1),
    aten.embedding_bag.default: [
        (TABLE, integers(1, 2), integers(1, 0)),  # out of order
        (TABLE, integers(1, 2), integers()),
        (TABLE, integers(1, 2), integers(0, 3)),
        (TABLE, integers(1, 9), integers(0)),
        (TABLE, integers(1, -1), integers(0)),
        (TABLE, integers(1, 2), integers(0, 1), False, 0, False, None, True),
        (TABLE, ones(1, 2, dtype=torch.int64), integers(0)),
        (TABLE, integers(1, 2), integers(0), False, 0, False, ones(3)),
    ],
    aten.as_strided.default: [
        (ones(4)[1:3], [2], [1], 0),
        (ones(4)[1:3], [2], [1], 2),
        (ones(4)[::2], [3], [1]),
        (ones(4), [4], [-1]),
        (ones(4), [2], [1, 1]),
    ],
    aten.repeat_interleave.self_Tensor: [
        (ones(2), integers(2, -1)),
        (ones(2), integers(2**39, 2**39)),
        (ones(4), integers(2**38)),
        (ones(2), ones(1, 2, dtype=torch.int64)),
    ],
    aten.grid_sampler.default: [
        (IMAGE, ones(2, 3, 3, 2), 0, 0, False),
        (IMAGE, ones(1, 3, 3, 3), 0, 0, False),
        (ones(1, 4, 4), ones(1, 3, 2), 0, 0, False),
    ],
    aten.scaled_dot_product_attention.default: [
        (ones(2, 3), ones(4, 3), ones(5, 3)),
        (ones(2, 3), ones(4, 5), ones(4, 3)),
        (ones(1, 2, 3), ones(0, 4, 3), ones(0, 4, 3)),
        (ones(3), ones(4, 3), ones(4, 3)),
    ],
    aten._weight_norm.default: [
        (ones(4, 3), ones(3, 1), 0),
        (ones(4, 3), ones(4, 1), -1),
        (ones(0, 3), ones(0, 1), 0),
    ],
    aten.batch_norm.default: [
        (ones(4, 3), ones(2), *[None] * 3, True, 0.1, 1e-5, False),
        (ones(4, 3), None, None, ones(1), ones(3), True, 0.1, 1e-5, False),
        (ones(4), *[None] * 4, True, 0.1, 1e-5, False),
    ],
    aten.binary_cross_entropy.default: [(ones(4), ones(1)), (ones(4), ones(4, 1))],
    aten.multi_margin_loss.default: [
        (ones(0, 3), integers()),
        (ones(2, 3), integers(0)),
        (ones(2, 3), integers(0, 0)[None]),
    ],
    aten.histc.default: [
        (ones(4), 4, 0.0, 3e38),
        (ones(4), 4, 0.0, float("inf")),
        (ones(4), 4, 1.0, 0.0),
        (ones(4) * 1e30,),  # of its own bounds, which are one and the same
        (ones(4) * float("nan"),),
        (ones(4, dtype=torch.bfloat16), 4, 1000.0, 1001.0),
    ],
    aten.ctc_loss.Tensor: [
        (FRAMES, LABELS * 4, FULL, TWO),
        (FRAMES, -LABELS, FULL, TWO),
        (FRAMES, LABELS, FULL + 1, TWO),
        (FRAMES, LABELS, -FULL, TWO),
        (FRAMES, LABELS, FULL, TWO + 2),
        (FRAMES, LABELS, FULL, -TWO),
        (FRAMES, LABELS, FULL, TWO, 4),
        (FRAMES, LABELS[:1], FULL, TWO),
        (FRAMES, LABELS, FULL[:1], TWO),
        (FRAMES, LABELS, FULL, TWO[None]),
        (FRAMES, LABELS.view(-1), FULL, TWO),  # fewer than there are
        (FRAMES, LABELS.float(), FULL, TWO),
        (ones(0, 2, 4), LABELS, FULL * 0, TWO),
    ],
    aten.ctc_loss.IntList: [(FRAMES, LABELS, [6, 7], [2, 2]), (FRAMES, LABELS, [6, 6], [2, 4])],
}
for dims in (1, 2, 3):
    for suffix in ("", "_with_indices"):
        operator = getattr(aten, f"max_pool{dims}d{suffix}").default
        image, window = ones(1, 1, *[4] * dims), [2] * dims
        REFUSED[operator] = [
            (image[0, 0], window),
            (image, [2**31] * dims),
            (image, window, window, [0] * dims, [5] * dims),
        ]
ARITHMETIC = (
    "div.Tensor_mode",
    "divide.Tensor_mode",
    "floor_divide",
    "remainder.Tensor",
    "fmod.Tensor",
)
EMPTY = {
    "empty.memory_format": ([4],),
    "empty_like.default": (ones(4),),
    "empty_permuted.default": ([4], [0]),
    "empty_strided.default": ([4], [1]),
    "new_empty.default": (ones(1), [4]),
    "new_empty_strided.default": (ones(1), [4], [1]),
}


BY_ROWS = {
    aten.embedding.default: ((4, 3), lambda rows: (rows, -1, False, True), {}),
    aten.embedding_bag.default: ((4, 3), lambda rows: (rows, rows[:1], False, 0, True), {}),
    aten.gather.default: ((4,), lambda rows: (0, rows[1]), {"sparse_grad": True}),
}
"""Operators whose gradient torch makes sparse, of the very indices that they were given."""


def named(name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


@pytest.mark.parametrize(
    ("operator", "number"),
    [(operator, number) for operator, calls in REFUSED.items() for number in range(len(calls))],
    ids=str,
)
def test_a_guard_refuses_what_its_kernel_trusts(operator, number):
    with pytest.raises(PackageError):
        guarded(operator)(*REFUSED[operator][number])


def test_an_output_size_is_the_sum_of_the_repeats():
    call = guarded(aten.repeat_interleave.self_Tensor)
    with pytest.raises(PackageError, match="output_size"):
        call(ones(2), integers(1, 2), output_size=4)
    assert call(ones(2), integers(1, 2), output_size=3).numel() == 3


@pytest.mark.parametrize("name", ARITHMETIC)
def test_the_one_quotient_that_does_not_fit_is_refused(name):
    mode = {"rounding_mode": "trunc"} if "mode" in name else {}
    with pytest.raises(PackageError, match="least integer"):
        guarded(named(name))(integers(-(2**63)), integers(-1), **mode)


@pytest.mark.parametrize("name", EMPTY)
def test_memory_that_nobody_has_written_is_zero(name):
    assert deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)  # torch fills it with NaN
    try:
        found = guarded(named(name))(*EMPTY[name])
    finally:
        torch.use_deterministic_algorithms(False)
    assert found.tolist() == [0.0] * 4


@pytest.mark.parametrize("operator", BY_ROWS, ids=str)
def test_a_gradient_of_rows_has_indices_of_its_own(operator):
    shape, rest, options = BY_ROWS[operator]
    table, rows = ones(*shape).requires_grad_(), integers(0, 1, 2)
    result = guarded(operator)(table, *rest(rows), **options)
    found = result[0] if isinstance(result, tuple) else result
    (found * 2).sum().backward()
    expected = table.grad.to_dense()
    assert table.grad.is_sparse == (operator is not aten.gather.default)
    rows.fill_(3)  # as a later operator may: no kernel looks at these indices again
    assert table.grad.to_dense().tolist() == expected.tolist()


@pytest.mark.parametrize("operator", BY_ROWS, ids=str)
def test_behind_an_operator_a_gradient_of_rows_is_dense(operator):
    """Not every backward of an operator is made for a sparse one."""
    shape, rest, options = BY_ROWS[operator]
    made = ones(*shape).requires_grad_() * 1
    made.retain_grad()
    result = guarded(operator)(made, *rest(integers(0, 1, 2)), **options)
    (result[0] if isinstance(result, tuple) else result).sum().backward()
    assert made.grad.layout is torch.strided


@pytest.mark.parametrize("values", [ones(1), ones(1, dtype=torch.bool)])
def test_an_assertion_about_values_is_judged_where_it_stands(values):
    """On a GPU, torch's own would end the process some time later."""
    call = guarded(named("_assert_async.default"))
    call(values)
    with pytest.raises(InputError, match="another way"):
        call(torch.zeros_like(values))


def test_every_guard_is_shown_to_matter():
    shown = {operator._schema.name for operator in (*REFUSED, *BY_ROWS)}
    shown |= {named(name)._schema.name for name in (*EMPTY, *ARITHMETIC, "_assert_async.default")}
    names = {f"aten::{name}" for name in _GUARDS if not name.endswith("_")}
    assert shown == names  # those that end so are the same, in place
