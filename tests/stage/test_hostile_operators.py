"""What allowed operators did with hostile arguments, each shown once against torch itself.

Every case goes through a package on disk and runs in a child process, which crashed, hung or
handed out old memory before the operator was guarded or taken off the list. The children are forked
from one process, so that PyTorch is loaded once.
"""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import Document, build, calculation, op, v, write

from ravnest.stage import arithmetic, guarded, operators

CHILD = """
import json, os, resource, sys
import torch
from ravnest.errors import RavnestError
from ravnest.stage.package import load_package

torch.set_num_threads(1)


def run(path, given):
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    try:
        module = load_package(path).module()
        module.train(False)
        inputs = [torch.tensor(one["data"], dtype=getattr(torch, one["dtype"])) for one in given]
        (found,) = module(*inputs)
        said = {"result": found.double().flatten().tolist()}
    except RavnestError as error:
        said = {"refused": type(error).__name__, "text": str(error)}
    print(json.dumps(said), flush=True)


for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            run(*json.loads(line))
            os._exit(0)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    print(json.dumps({"ended": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}), flush=True)
"""

Outcome = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def hostile() -> Iterator["subprocess.Popen[str]"]:
    """A process with PyTorch loaded that forks a child for each case, on a heap that shows."""
    tunables = "glibc.malloc.perturb=85:glibc.malloc.tcache_count=0"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "GLIBC_TUNABLES": tunables, "OMP_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        yield process


@pytest.fixture
def outcome(hostile: "subprocess.Popen[str]", tmp_path: Path) -> Outcome:
    """What a child of its own said of a graph; a child that dies by a signal is a failure."""

    def ask(graph: Document, *inputs: dict[str, Any]) -> dict[str, Any]:
        package = write(tmp_path / "package", graph, {})
        assert hostile.stdin is not None
        assert hostile.stdout is not None
        print(json.dumps([str(package), inputs]), file=hostile.stdin, flush=True)
        said: dict[str, Any] = {}
        while "ended" not in (line := json.loads(hostile.stdout.readline())):
            said = line
        assert line == {"ended": 0}
        return said

    return ask


def given(data: Any, dtype: str = "float32") -> dict[str, Any]:
    return {"data": data, "dtype": dtype}


IMAGE = [[[[1.0] * 8] * 8] * 2]
GRID = [[[[0.5, 0.5]] * 6] * 6]
LEAST = -(2**63)

CASES = {
    "repeats whose sum wraps": (
        [op(2, "aten.repeat_interleave.self_Tensor", v(0), v(1), 0)],
        [given([1.0] * 5), given([2**62, 2**62, 2**62, 2**62, 3], "int64")],
    ),
    "an interpolation mode out of range": (
        [op(2, "aten.grid_sampler.default", v(0), v(1), 7, 0, False)],
        [given(IMAGE), given(GRID)],
    ),
    "a padding mode out of range": (
        [op(2, "aten.grid_sampler.default", v(0), v(1), 0, 9, False)],
        [given(IMAGE), given(GRID)],
    ),
    "the least integer divided by -1": (
        [op(2, "aten.div.Tensor_mode", v(0), v(1), rounding_mode="trunc")],
        [given([LEAST], "int64"), given([-1], "int64")],
    ),
    "the least integer floor-divided by -1": (
        [op(2, "aten.floor_divide.default", v(0), v(1))],
        [given([LEAST], "int64"), given([-1], "int64")],
    ),
    "the remainder of the least integer by -1": (
        [op(2, "aten.remainder.Scalar", v(0), -1)],
        [given([LEAST], "int64")],
    ),
    "the least integer averaged over -1": (
        [op(2, "aten.avg_pool2d.default", v(0), [1, 1], [1, 1], [0, 0], False, True, -1)],
        [given([[[LEAST]]], "int64")],
    ),
    "the least integer averaged over a number that is computed": (
        [
            op(2, "neg", 1),
            op(3, "aten.avg_pool3d.default", v(0), [1], [1], [0], False, True, v(2)),
        ],
        [given([[[[LEAST]]]], "int64")],
    ),
    "a range whose end is a float that is computed": (
        [
            op(2, "pow", -2.0, 63),
            op(3, "aten.arange.start_step", 0, v(2), -1, dtype={"dtype": "int64"}),
        ],
        [given([1.0])],
    ),
    "a range whose start is a float that is a value": (
        [
            op(2, "aten.item.default", v(0)),
            op(3, "aten.neg.default", v(0)),
            op(4, "aten.item.default", v(3)),
            op(5, "aten.arange.start_step", v(4), v(2), -1, dtype={"dtype": "int64"}),
        ],
        [given(-(2.0**63), "float64")],
    ),
    "a dilation of 2**62": (
        [op(2, "aten.im2col.default", v(0), [2, 2], [2**62, 2**62], [0, 0], [1, 1])],
        [given(IMAGE)],
    ),
    "grouped rows left out": (
        [op(3, "aten._grouped_mm.default", v(0), v(1), v(2))],
        [given([[1.0] * 16] * 16, "bfloat16"), given([[[1.0] * 16] * 16], "bfloat16"),
         given([4], "int32")],
    ),
    "strides over a result that was shortened": (
        [
            op(2, "aten.unique_consecutive.default", v(0)),
            op(3, "getitem", v(2), 0),
            op(4, "aten.as_strided.default", v(3), [64], [1], 0),
        ],
        [given([1.0] * 64)],
    ),
    "a draw that does not end": (
        [op(2, "aten.binomial.default", v(0), v(1))],
        [given([float("nan")]), given([0.5])],
    ),
    "a maximum over bags of indices with two dimensions": (
        [
            op(3, "aten.embedding_bag.default", v(0), v(1), v(2), False, 2, False, None, False),
            op(4, "getitem", v(3), 0),
        ],
        [given([[1.0] * 8] * 10), given([[1] * 4096], "int64"), given([0], "int64")],
    ),
    "a padded maximum over bags of indices with two dimensions": (
        [
            op(3, "aten.embedding_bag.padding_idx", v(0), v(1), v(2), False, 2, False, None, False,
               2),
            op(4, "getitem", v(3), 0),
        ],
        [given([[1.0] * 8] * 10), given([[1] * 4096], "int64"), given([0], "int64")],
    ),
    "weights of bags of another shape than the indices": (
        [
            op(4, "aten.embedding_bag.default", v(0), v(1), v(2), False, 0, False, v(3), False),
            op(5, "getitem", v(4), 0),
        ],
        [given([[1.0] * 8] * 10), given([1, 1], "int64"), given([0], "int64"), given([[1.0, 1.0]])],
    ),
    "a cross entropy with an empty target": (
        [
            op(2, "aten.zeros.default", [0, 64]),
            op(3, "aten.binary_cross_entropy.default", v(0), v(2), None, 0),
        ],
        [given([0.5] * 64)],
    ),
    "a margin loss of an empty batch": (
        [
            op(2, "aten.zeros.default", [0, 5], dtype={"dtype": "float64"}),
            op(3, "aten.zeros.default", [0], dtype={"dtype": "int64"}),
            op(4, "aten.multi_margin_loss.default", v(2), v(3)),
        ],
        [given([1.0])],
    ),
    "a product written over its operand": (
        [{**op(2, "aten.mm.out", v(0), v(0)), "kwargs": {"out": v(0)}}],
        [given([[1.0, 2.0], [3.0, 4.0]])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_call_is_refused_and_harms_nothing(name, outcome):
    operations, inputs = CASES[name]
    last = operations[-1]["out"]
    graph = calculation(*operations, result={"leaf": last}, inputs=len(inputs))
    for wire, tensor in zip(graph["inputs"], inputs, strict=True):
        wire["dtype"] = tensor["dtype"]
    found = outcome(graph, *inputs)
    assert found.get("refused") == "PackageError", found


def test_out_overloads_never_write_over_an_operand(tmp_path, monkeypatch):
    """Not one that the owner of the machine has allowed either: torch's own makes zeros of this."""
    monkeypatch.setattr(operators, "_locally_allowed", {"aten.mm.out"})
    product = {**op(2, "aten.mm.out", v(0), v(0)), "kwargs": {"out": v(0)}}
    module = build(tmp_path / "package", calculation(product, result={"leaf": 2}))
    (found,) = module(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert found.tolist() == [[7.0, 10.0], [15.0, 22.0]]


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (op(4, "pow", v(3), 65), "a power of sizes"),
        (op(4, "aten.as_strided.default", v(2), [v(3), v(3)], [-1, 1]), "as_strided"),
    ],
    ids=["arithmetic", "strides"],
)
def test_a_size_that_is_made_from_a_value_is_in_no_error(last, words, outcome):
    """`bincount` makes a size of 4712 from a value of 4711."""
    counted = op(2, "aten.bincount.default", v(0)), op(3, "aten.sym_size.int", v(2), 0)
    graph = calculation(*counted, last, op(5, "aten.zeros.default", [1]), result={"leaf": 5})
    graph["inputs"][0]["dtype"] = "int64"
    found = outcome(graph, given([1, 2, 4711], "int64"))
    assert words in found["text"]
    assert "471" not in re.sub(r"int64\[4712\]", "", found["text"])  # shapes of operands are shown


def test_guards_and_arithmetic_put_only_names_into_their_errors():
    names = {"operator", "what", "dims", "found"}
    for module in (guarded, arithmetic):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Raise):
                parts = [part for part in ast.walk(node) if isinstance(part, ast.FormattedValue)]
                shown = {ast.unparse(part.value) for part in parts}
                assert shown <= names | {"type(value).__name__"}, shown


def test_an_error_text_names_operator_and_shapes_and_no_value(outcome):
    """Torch's own text is: index 4711 is out of bounds for dimension 0 with size 2."""
    graph = calculation(op(2, "aten.gather.default", v(0), 0, v(1)), result={"leaf": 2},
                        inputs=2)  # fmt: skip
    graph["inputs"][1]["dtype"] = "int64"
    found = outcome(graph, given([1.0, 2.0]), given([4711], "int64"))
    assert found["refused"] == "OperatorError"
    assert "aten.gather.default on float32[2], int64[1]" in found["text"]
    assert "4711" not in found["text"]
