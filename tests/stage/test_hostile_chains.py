"""Hostile graphs of several operators, forward and backward, on a heap of old contents.

The fuzzer makes single calls on small tensors. These graphs need more than that: a tensor that is
large without taking memory, a number that the graph computes, a type to which another one is cut,
a backward that reads what a later operator has changed. Each one ended the process by a signal or
let old memory into a gradient.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from samples import Document, calculation, op, v, write

from ravnest.api.work import ALLOWED_OPERATORS

HEAP = "glibc.malloc.perturb=170:glibc.malloc.tcache_count=0"
CHILD = """
import json, os, resource, sys
import torch
from ravnest.stage.package import load_package

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
torch.set_num_threads(1)

def outcome(package, inputs):
    try:
        module = load_package(package).module()
        given = [torch.tensor(data, dtype=getattr(torch, dtype)) for data, dtype in inputs]
        for tensor in given:
            tensor.requires_grad_(tensor.is_floating_point())
        (found,) = module(*given)
        if found.requires_grad:
            found.sum().backward()
        values = [found, *(tensor.grad for tensor in given if tensor.grad is not None)]
        return [tensor.double().flatten().tolist() for tensor in values]
    except Exception as error:
        return type(error).__name__

for line in sys.stdin:
    package, inputs = json.loads(line)
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        os.write(writing, json.dumps(outcome(package, inputs)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    print(text if os.waitstatus_to_exitcode(status) == 0 else json.dumps("died"), flush=True)
"""

IMAGE = [[[[float(8 * row + column) for column in range(8)] for row in range(8)]]]
LEAST = -(2**31)


def bags(offsets: list[int]) -> Any:
    """A sum of bags with `include_last_offset`."""
    bag = op(3, "aten.embedding_bag.default", v(0), v(1), v(2), False, 0, False, None, True)
    return (
        [bag, op(4, "getitem", v(3), 0)],
        [([[1.0] * 4] * 4, "float32"), ([0, 1, 2, 3] * 2, "int64"), (offsets, "int64")],
    )


def behind_embedding(*backward: Any, returned: int) -> Any:
    """A hand-written backward that is handed a sparse gradient (0) and its indices (1)."""
    hand_written: Document = {
        "out": 3, "op": "ravnest.gradient", "args": [[v(2)], [v(0)], [v(1)]],
        "kwargs": {"operations": [list(one) for one in backward], "returns": [returned]},
    }  # fmt: skip
    operations = [
        op(2, "aten.clone.default", v(0)),
        hand_written,
        op(4, "getitem", v(3), 0),
        op(5, "aten.embedding.default", v(4), v(1), -1, False, True),
    ]
    return operations, [([[1.0]] * 4, "float32"), ([0, 1, 2], "int64")]


FAR = 2**40
CASES: dict[str, tuple[Any, Any]] = {
    "one number of repeats for very many elements": (
        (
            [
                op(2, "aten.expand.default", v(0), [2**25]),
                op(3, "aten.repeat_interleave.self_Tensor", v(2), v(1), 0),
            ],
            [([1], "uint8"), ([2**39], "int64")],
        ),
        "PackageError",
    ),
    "a single number that is cut to the least integer": (
        (
            [op(2, "aten.div.Tensor_mode", v(0), v(1), rounding_mode="trunc")],
            [(2**31, "int64"), ([-1] * 8, "int32")],
        ),
        "PackageError",
    ),
    "a single number that is cut to -1": (
        (
            [op(2, "aten.div.Tensor_mode", v(0), v(1), rounding_mode="trunc")],
            [([LEAST] * 8, "int32"), (2**32 - 1, "int64")],
        ),
        "PackageError",
    ),
    "a constant that is cut to -1": (
        (
            [op(2, "aten.div.Scalar_mode", v(0), 2**32 - 1, rounding_mode="trunc")],
            [([LEAST] * 8, "int32")],
        ),
        "PackageError",
    ),
    "a range whose length the processor cannot divide": (
        (
            [op(2, "pow", -2, 63), op(3, "aten.arange.start_step", 0, v(2), -1)],
            [([1.0], "float32")],
        ),
        "PackageError",
    ),
    "indices behind the last bag": (bags([0, 2, 4]), "PackageError"),
    "indices in the last bag": (bags([0, 2, 8]), [[2.0] * 4 + [6.0] * 4, [2.0] * 16]),
    "indices that a running mean overwrites": (
        (
            [
                op(2, "aten.max_pool2d_with_indices.default", v(0), [4, 4]),
                op(3, "getitem", v(2), 1),
                op(4, "aten.view.dtype", v(3), {"dtype": "float64"}),
                op(5, "aten.view.default", v(4), [4]),
                op(6, "aten.ones_like.default", v(5)),
                op(7, "aten.detach.default", v(1)),
                op(8, "aten.batch_norm.default", v(7), None, None, v(5), v(6), True, 1.0, 1e-5,
                   False),
                op(9, "getitem", v(2), 0),
            ],
            [(IMAGE, "float64"), ([[2.0**-1029] * 4] * 2, "float64")],
        ),
        "RuntimeError",
    ),
    "indices of a sparse gradient, moved outside": (
        behind_embedding(
            ("aten.fill_.Scalar", [v(1), FAR], {}),
            ("aten.zeros.default", [[4]], {}),
            ("aten.sum.dim_IntList", [v(0), [1]], {}),
            ("aten.add_.Tensor", [v(3), v(4)], {"alpha": 1000.0}),
            ("aten.ones.default", [[4, 1]], {}),
            returned=6,
        ),
        "PackageError",
    ),
    "indices of a sparse gradient, moved unseen": (
        behind_embedding(
            ("aten.dropout.default", [v(1), 0.5, False], {}),
            ("aten.fill_.Scalar", [v(2), FAR], {}),
            ("aten.sum.dim_IntList", [v(0), [1]], {}),
            ("aten.ones.default", [[4]], {}),
            ("aten.add_.Tensor", [v(5), v(4)], {}),
            returned=0,
        ),
        "PackageError",
    ),
    "a sparse gradient in a hand-written backward": (
        behind_embedding(("aten.mul.Scalar", [v(0), 2.0], {}), returned=2),
        [[1.0] * 3, [2.0, 2.0, 2.0, 0.0]],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each case. The owner has allowed what is not on the list."""
    directory = tmp_path_factory.mktemp("chains")
    lines = []
    for number, ((operations, inputs), _) in enumerate(CASES.values()):
        graph: Document = calculation(
            *operations, result={"leaf": operations[-1]["out"]}, inputs=len(inputs)
        )
        for wire, (_, dtype) in zip(graph["inputs"], inputs, strict=True):
            wire["dtype"] = dtype
        package = write(directory / str(number), graph, {})
        lines.append(json.dumps([str(package), inputs]))
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input="\n".join(lines), capture_output=True, text=True,
        timeout=300, check=True,
        env={**os.environ, "GLIBC_TUNABLES": HEAP, ALLOWED_OPERATORS: "aten.view.dtype"},
    )  # fmt: skip
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_chain_is_refused_and_harms_nothing(outcomes, name):
    assert outcomes[name] == CASES[name][1]
