"""Whatever bytes a package consists of, it is refused with a PackageError or it becomes a module.

The falsified files get the right sizes and hashes, so that every example reaches the parser and
what lies behind it. A module that was built is run as well: it may fail in any way that Python can
report, because operators check their arguments when they run.
"""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from samples import Document, middle, op, t, v, weights, whole, wire, write

from ravnest.errors import PackageError
from ravnest.stage.operators import DTYPES, allowed_operators
from ravnest.stage.package import Limits, load_package
from ravnest.stage.signatures import check_call

LIMITS = Limits(constant_elements=1000, operations=1000, weight_bytes=1 << 20)
often = settings(max_examples=300, derandomize=True, deadline=None, database=None)


def rich() -> Document:
    """One of everything that a graph can hold."""
    document = whole()
    document["contexts"] = [
        {"grad": False},
        {"autocast_dtype": "bfloat16", "autocast_enabled": True},
    ]
    document["static_batch"] = 2
    document["inputs"] = [wire(0, 0), wire(10, 0, dtype="int64")]
    document["inputs"][0]["shape"] = [2, 4]
    document["arguments"] = [
        {"name": "x", "structure": {"tuple": [{"leaf": 0}, {"const": 1}, {"float": "nan"}]}},
        {"name": "ids", "structure": {"record": "object", "fields": [["a", {"leaf": 10}]]}},
    ]
    for mode in ("train", "eval"):
        document[mode]["operations"] += [
            op(11, "aten.sym_size.int", v(3), 0),
            op(12, "mul", v(11), 3),
            op(13, "aten.view.default", v(3), [v(12)]),
            op(14, "aten.zeros.default", [2, 3], dtype={"dtype": "float32"}, device={"device": 1}),
            op(15, "aten.full.default", [v(11)], {"float": "-inf"}, layout={"layout": "strided"}),
            op(16, "aten.clone.default", v(3), memory_format={"memory": "preserve_format"}),
            op(17, "aten.split.Tensor", v(3), 1, 1, context=0),
            op(18, "getitem", v(17), 0, context=0),
            op(19, "aten.linear.default", v(0), t(0), context=1),
            op(20, "aten.gelu.default", v(13), approximate="tanh"),
            op(21, "aten.batch_norm.default", v(3), None, None, None, None, True, 0.1, 1e-5,
               {"cudnn": 1}),
            op(22, "aten.empty.memory_format", [2]),
        ]  # fmt: skip
        document[mode]["result"] = {
            "record": "mapping",
            "fields": [
                ["loss", {"const": None}],
                ["y", {"dict": [[1, {"leaf": 13}], ["b", {"list": [{"leaf": 18}]}]]}],
                ["z", {"record": "tuple", "fields": [["a", {"leaf": 20}], ["b", {"leaf": 21}]]}],
            ],
        }
    return document


SAMPLES = {"whole": whole(), "middle": middle(), "rich": rich()}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "stage"


def outcome(directory: Path, graph: Document | bytes) -> str:
    """ "refused", "built" or "run"; any other end of loading and building is a failure."""
    shutil.rmtree(directory, ignore_errors=True)
    known = graph if isinstance(graph, dict) else {}
    stages = {key: known.get(key, default) for key, default in (("stage", 0), ("stages", 1))}
    try:
        found = load_package(write(directory, graph, **stages), LIMITS).graph
        shutil.rmtree(directory)
        tensors = {s.name: torch.ones(s.shape, dtype=DTYPES[s.dtype]) for s in found.tensors}
        module = load_package(write(directory, graph, tensors, **stages), LIMITS).module()
    except PackageError:
        return "refused"
    for mode in (True, False):
        module.train(mode)
        count = len(module.receives(module.mode))
        values = [torch.ones(2, 4), torch.ones(2, 4, dtype=torch.int64)] * count
        try:
            module(*values[:count])
        except Exception:  # an operator's own complaint
            return "built"
    return "run"


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_run(name, directory):
    assert outcome(directory, SAMPLES[name]) == "run"


numbers = st.one_of(
    st.integers(-3, 25),
    st.sampled_from([2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400]),
    st.floats(allow_nan=False, allow_infinity=False),
)
words = st.one_of(
    st.sampled_from(["train", "v", "t", "leaf", "class", "__class__", "float32", "tuple", "path"]),
    st.sampled_from(["aten.relu.default", "aten.mul.Tensor", "getitem", "sum", "ravnest.module"]),
    st.sampled_from(["aten.save.default", "aten.add.__class__", "../x", "parameter", "buffer"]),
    st.text(max_size=8),
)
plain = st.one_of(st.none(), st.booleans(), numbers, words)
tagged = st.one_of(
    st.builds(lambda tag, number: {tag: number}, st.sampled_from("vt"), numbers),
    st.builds(lambda leaf: {"leaf": leaf}, numbers),
    st.builds(lambda tag, word: {tag: word}, st.sampled_from(["dtype", "float", "const"]), words),
)
values = st.recursive(
    plain | tagged,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


def spots(node: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a document."""
    found = []
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, child in items:
        found.append((node, key))
        if isinstance(child, dict | list):
            found += spots(child)
    return found


@st.composite
def falsified(draw: Callable[..., Any]) -> Document:
    """A sample with up to three places replaced, removed, doubled or copied from elsewhere."""
    document = copy.deepcopy(SAMPLES[draw(st.sampled_from(sorted(SAMPLES)))])
    for _ in range(draw(st.integers(1, 3))):
        places = spots(document)
        container, key = draw(st.sampled_from(places))
        kind = draw(st.sampled_from(["replace", "replace", "remove", "repeat", "copy"]))
        if kind == "replace":
            container[key] = draw(values)
        elif kind == "remove":
            del container[key]
        elif kind == "repeat" and isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        else:
            other, there = draw(st.sampled_from(places))
            if there in other if isinstance(other, dict) else there < len(other):
                container[key] = copy.deepcopy(other[there])
        if not document:
            break
    return document


@often
@given(document=falsified())
def test_a_falsified_graph_is_refused_or_becomes_a_module(document, directory):
    outcome(directory, document)


@st.composite
def damaged(draw: Callable[..., Any], contents: list[bytes]) -> bytes:
    """Bytes with flipped bits, a piece cut out, or a piece of another file put in."""
    content = bytearray(draw(st.sampled_from(contents)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from(["flip", "flip", "cut", "end", "splice", "insert"]))
        if kind == "flip" and start < len(content):
            content[start] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del content[start : start + draw(st.integers(1, 20))]
        elif kind == "end":
            del content[start:]
        elif kind == "splice":
            other = draw(st.sampled_from(contents))
            there = draw(st.integers(0, len(other)))
            content[start : start + 5] = other[there : there + draw(st.integers(1, 200))]
        else:
            content[start:start] = draw(st.binary(max_size=9))
    return bytes(content)


GRAPHS = [json.dumps(sample).encode() for sample in SAMPLES.values()]


@often
@given(content=damaged(GRAPHS))
def test_a_damaged_graph_is_refused_or_becomes_a_module(content, directory):
    outcome(directory, content)


@often
@given(content=damaged([save(weights()), save({"w": torch.ones(4)})]))
def test_damaged_weights_are_refused_or_have_the_right_shape(content, directory):
    shutil.rmtree(directory, ignore_errors=True)
    package = load_package(write(directory, whole(), content), LIMITS)
    try:
        module = package.module()
    except PackageError:
        return
    found = {name: (tensor.shape, tensor.dtype) for name, tensor in module.tensors().items()}
    assert found == {name: (tensor.shape, tensor.dtype) for name, tensor in weights().items()}


@often
@given(data=st.data())
def test_a_damaged_manifest_is_refused_or_says_the_same(data, directory):
    shutil.rmtree(directory, ignore_errors=True)
    write(directory, whole(), weights())
    original = (directory / "manifest.json").read_bytes()
    changed = data.draw(damaged([original, *GRAPHS[:1]]))
    (directory / "manifest.json").write_bytes(changed)
    try:
        found = load_package(directory, LIMITS)
    except PackageError:
        return
    files = [(entry.name, entry.sha256) for entry in found.manifest.files]
    assert files == [(e["name"], e["sha256"]) for e in json.loads(original)["files"]][: len(files)]


@often
@given(
    name=st.sampled_from(sorted(allowed_operators())),
    args=st.lists(values, max_size=5),
    kwargs=st.dictionaries(words | st.sampled_from(["self", "dim", "device"]), values, max_size=2),
)
def test_any_call_of_any_operator_can_be_judged(name, args, kwargs, directory):
    try:
        check_call(name, args, kwargs, 1000)
    except PackageError:
        return
    first = op(1, name, *args)
    first["kwargs"] = kwargs
    document = whole()
    document["train"]["operations"] = [first]
    document["train"]["result"] = {"const": 1}
    # Built, not run: with arguments made up like these an operator may take all the memory.
    shutil.rmtree(directory, ignore_errors=True)
    try:
        load_package(write(directory, document, weights()), LIMITS).module()
    except PackageError:
        return


@often
@given(content=st.binary(max_size=200) | st.text().map(str.encode))
def test_any_bytes_at_all_are_refused(content, directory):
    assert outcome(directory, content) == "refused"
