"""The allow-list holds arithmetic on tensors and nothing else; arguments mean what they say."""

import math
import re
from importlib import resources

import msgspec
import pytest
import torch
from samples import calculation, op, run, v
from torch import nn
from torch._ops import OpOverload

from ravnest.errors import PackageError
from ravnest.stage.arithmetic import ARITHMETIC
from ravnest.stage.operators import (
    DTYPES,
    MODULE_CALL,
    ModuleTarget,
    allow_operator,
    allowed_operators,
    decode,
    encode,
    encode_arguments,
    is_allowed,
    operator_name,
    resolve,
    tensor_operator,
)

CPU = torch.device("cpu")
NAMES = sorted(allowed_operators())
HARMLESS_TYPE = re.compile(
    r"(Optional\[|List\[|\])*"
    r"(Tensor|int|float|bool|number|str|ScalarType|Device|Layout|MemoryFormat|Generator)\]*\Z"
)
SUSPICIOUS = re.compile(
    r"file|path|save|load|storage(?!_offset)|stream|resize|pickle|process|python|import|"
    r"\bset_|\bset\b|data_ptr|handle|record|profil|pin_memory\b|is_pinned|shared|fork|rpc|backward"
)


def test_a_module_call_is_marked_and_not_guessed():
    class Lookalike:
        path, module = "0", nn.Linear(1, 1)

    class Marked(ModuleTarget):
        pass

    assert operator_name(Marked()) == MODULE_CALL
    assert operator_name(Lookalike()) != MODULE_CALL


def text_of_list() -> str:
    return resources.files("ravnest.stage").joinpath("allowed_operators.txt").read_text()


def test_the_list_is_sorted_unique_and_of_one_namespace():
    lines = [line.split(" ", 1)[0] for line in text_of_list().splitlines()]
    assert lines == sorted(set(lines))
    assert all(re.fullmatch(r"aten\.\w+\.\w+", line) for line in lines)


@pytest.mark.parametrize("half", [NAMES[::2], NAMES[1::2]], ids=["even", "odd"])
def test_every_listed_operator_exists_and_computes_on_tensors_only(half):
    for name in half:
        found = tensor_operator(name)
        assert isinstance(found, OpOverload)
        assert operator_name(found) == name
        schema = found._schema
        for part in (*schema.arguments, *schema.returns):
            assert HARMLESS_TYPE.match(str(part.real_type)), (name, str(part.real_type))


def test_no_listed_operator_smells_of_files_storages_or_the_process():
    found = set()
    for name in NAMES:
        assert not SUSPICIOUS.search(name), name
        arguments = {argument.name for argument in tensor_operator(name)._schema.arguments}
        found |= {(name, each) for each in arguments if SUSPICIOUS.search(each)}
    found = {(name, each) for name, each in found if each != "pin_memory"}
    assert found == {("aten.einsum.default", "path")}  # the order of contractions, as numbers


@pytest.mark.parametrize(
    "name",
    [
        "aten.save.default",
        "aten.from_file.default",
        "aten.set_.source_Storage",
        "aten.resize_.default",
        "aten._reshape_alias.default",  # reads and writes anywhere: it checks no bounds
        "aten.empty_strided.default",
        "aten.add.__class__",
        "aten.__init__.default",
        "aten.add",
        "aten.add.Tensor.x",
        "aten..Tensor",
        "prim.Print.default",
        "prims.add.default",
        "prim.device.default",
        "torch.load.default",
        "os.system.default",
        "builtins.eval.default",
        "__import__",
        "aten.add.Tensor\n",
        " aten.add.Tensor",
        "aten.add.Tensor\u200b",
        "eval",
        "getattr",
        "",
        MODULE_CALL,
    ],
)
def test_anything_else_is_refused(name):
    assert not is_allowed(name)
    with pytest.raises(PackageError, match="allow-list"):
        resolve(name)


def test_an_operator_of_another_release_is_named(monkeypatch):
    monkeypatch.setattr(
        "ravnest.stage.operators.allowed_operators", lambda: frozenset({"aten.newer.default"})
    )
    with pytest.raises(PackageError, match=r"does not exist in torch 2\."):
        resolve("aten.newer.default")


@pytest.mark.parametrize(
    "name", ["aten.add", "a.b.c.d", "a.b.c\n", "a.b c.d", "a.b.'", "ä.b.c", ""]
)
def test_only_full_names_can_be_allowed_locally(name):
    with pytest.raises(ValueError, match="form"):
        allow_operator(name)


def test_allowing_locally_cannot_reach_anything_but_operators(monkeypatch):
    monkeypatch.setattr("ravnest.stage.operators._locally_allowed", set())
    for name in ("aten.add.__class__", "aten.add.overloads", "aten.__class__.__init__"):
        allow_operator(name)
        with pytest.raises(PackageError, match=r"not an operator|does not exist"):
            resolve(name)


def test_a_providers_own_operator_can_be_allowed(monkeypatch, tmp_path):
    monkeypatch.setattr("ravnest.stage.operators._locally_allowed", set())
    library = torch.library.Library("ravnest_stage_tests", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
    name = "ravnest_stage_tests.twice.default"
    graph = calculation(op(1, name, v(0)), result={"leaf": 1})
    with pytest.raises(PackageError, match="allow_operator"):
        run(tmp_path / "before", graph, torch.ones(1, 4))
    allow_operator(name)
    assert run(tmp_path / "after", graph, torch.ones(1, 4)).tolist() == [[2.0] * 4]


def test_generated_code_can_name_every_operator():
    for start in range(0, len(NAMES), 100):
        graph = torch.fx.Graph()
        value = graph.placeholder("v0")
        for name in (*NAMES[start : start + 100], *ARITHMETIC):
            graph.call_function(resolve(name), (value,))
        torch.fx.GraphModule(nn.Module(), graph)


# ---- arguments as JSON -----------------------------------------------------------------------

VALUES = [
    None,
    True,
    0,
    -(2**63),
    2**63 - 1,
    0.5,
    -0.0,
    math.inf,
    -math.inf,
    2 - 3j,
    "text",
    [1, [2.5, None], []],
    *DTYPES.values(),
    torch.strided,
    torch.contiguous_format,
    torch.preserve_format,
    torch.channels_last,
    torch.channels_last_3d,
    CPU,
]


def no_reference(*_: object) -> object:
    raise AssertionError("there is no reference in these arguments")


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_arguments_survive_json(value):
    text = msgspec.json.encode(encode(value, no_reference))
    found = decode(msgspec.json.decode(text), CPU, no_reference)
    assert (type(found), repr(found)) == (type(value), repr(value))


def test_nan_and_tuples_survive_in_their_way():
    assert math.isnan(decode(encode(math.nan, no_reference), CPU, no_reference))
    assert decode(encode((1, 2), no_reference), CPU, no_reference) == [1, 2]


def test_a_device_means_the_one_of_the_stage():
    meta = torch.device("meta")
    assert encode(torch.device("cuda", 3), no_reference) == {"device": 1}
    assert decode({"device": 1}, meta, no_reference) == meta


def test_the_cudnn_flag_is_that_of_the_machine_that_runs():
    batch_norm = torch.ops.aten.batch_norm.default
    args = (1, None, None, None, None, True, 0.1, 1e-5, False)
    encoded = encode_arguments(batch_norm, args, no_reference)
    assert encoded[-1] == {"cudnn": 1}
    assert decode(encoded[-1], CPU, no_reference) is False
    cuda = torch.device("cuda", 0)
    assert decode(encoded[-1], cuda, no_reference) is torch.backends.cudnn.enabled
    assert encode_arguments(torch.ops.aten.relu.default, (True,), no_reference) == [True]


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        "x" * 201,
        [[[[[1]]]]],
        {},
        {"v": 1, "t": 1},
        {"v": "1"},
        {"v": 1.0},
        {"v": True},
        {"v": None},
        {"v": [1]},
        {"t": -0.5},
        {"device": "cuda:1"},
        {"device": 0},
        {"cudnn": 2},
        {"float": "1e5"},
        {"float": 1.0},
        {"complex": [1.0]},
        {"complex": ["1", "2"]},
        {"dtype": "qint8"},
        {"dtype": ["float32"]},
        {"layout": "sparse_coo"},
        {"memory": "x"},
        {"slice": [1, 2, 3]},
        {"__class__": 1},
    ],
    ids=str,
)
def test_an_unknown_argument_is_refused(value):
    with pytest.raises(PackageError):
        decode(value, CPU, lambda tag, number: None)


def test_a_deep_argument_is_refused_without_recursion():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(PackageError, match="unknown argument"):
        decode(deep, CPU, no_reference)


def test_references_are_left_to_the_caller():
    seen = []
    decode([{"v": 3}, [{"t": 0}]], CPU, lambda *reference: seen.append(reference))
    assert seen == [("v", 3), ("t", 0)]
