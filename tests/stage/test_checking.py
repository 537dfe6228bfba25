"""A graph is refused as a whole if one part of it does not hold together with the others."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from samples import Document, calculation, middle, op, t, v, weights, whole, wire, write

from ravnest.errors import PackageError
from ravnest.stage.package import Limits, load_package

DELETE = object()


def put(document: Document, path: str, value: Any) -> Document:
    """A copy with `value` at a path such as "train.operations.0.op"; DELETE removes the entry."""
    changed = copy.deepcopy(document)
    *parents, last = path.split(".")
    place: Any = changed
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    key = int(last) if isinstance(place, list) else last
    if value is DELETE:
        del place[key]
    else:
        place[key] = value
    return changed


def load(directory: Path, document: Document | bytes, limits: Limits | None = None) -> None:
    load_package(write(directory, document, stage=0, stages=1), limits)


def refuse(directory: Path, document: Document, match: str, limits: Limits | None = None) -> None:
    package = write(directory, document)
    with pytest.raises(PackageError, match=match):
        load_package(package, limits)


def test_the_samples_are_accepted(tmp_path):
    for number, document in enumerate((whole(), middle())):
        load_package(write(tmp_path / str(number), document))


WRONG_FOR_EVERYTHING = [None, True, -1, 1.5, 2**70, "text", [], [[]], {}, {"a": 1}]


def places(node: Any, path: str = "") -> list[str]:
    """Every path in the document, containers included."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    found = []
    for key, child in items:
        here = f"{path}.{key}".lstrip(".")
        found.append(here)
        if isinstance(child, dict | list):
            found += places(child, here)
    return found


def test_no_value_at_any_place_does_anything_but_load_or_be_refused(tmp_path):
    """Wrong types for every field; what is accepted is accepted because it is right there."""
    number = accepted = 0
    for document in (whole(), middle()):
        for path in places(document):
            for wrong in (*WRONG_FOR_EVERYTHING, DELETE):
                number += 1
                try:
                    load_package(write(tmp_path / str(number), put(document, path, wrong)))
                except PackageError:
                    continue
                accepted += 1
    assert number > 1000
    assert accepted < number / 10


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        ("stage", 1, "does not exist"),
        ("stages", 0, "does not exist"),
        ("stages", 10_001, "does not exist"),
        ("static_batch", 0, "batch of 0"),
        ("extra", 1, "unknown field"),
        ("train.operations.0.extra", 1, "unknown field"),
        ("tensors.0.name", "fc.bias", "listed twice"),
        ("tensors.0.dtype", "qint8", "unknown dtype"),
        ("tensors.0.dtype", "int64", "cannot be trainable"),
        ("tensors.2.trainable", True, "cannot be trainable"),
        ("tensors.0.kind", "module", "Invalid enum"),
        ("tensors.0.shape", [-1, 4], ">= 0"),
        ("tensors.0.shape", [2**40, 2**40], "impossible shape"),
        ("tensors.0.shape", [0, 2**47, 2**47], "impossible shape"),
        ("tensors.0.shape", [1] * 65, "length"),
        ("tensors.0.shape", [2**39, 32], "more than"),
        ("tensors.0.stages", [1, 2], "held by"),
        ("tensors.0.stages", [0, 7], "held by"),
        ("tensors.0.name", "x" * 1001, "length"),
        ("train.operations.0.op", "aten.from_file.default", "allow-list"),
        ("eval.operations.1.op", "aten.save.default", "eval graph: operator"),
        ("train.operations.0.out", -1, ">= 0"),
        ("train.operations.0.out", 2**31, "<= 2147483647"),
        ("train.operations.0.out", 0, "defined twice"),
        ("train.operations.1.out", 1, "defined twice"),
        ("train.operations.0.args.0.v", 2, "used before it exists"),
        ("train.operations.0.args.0.v", 99, "used before it exists"),
        ("train.operations.0.args.1.t", 3, "tensor 3 does not exist"),
        ("train.operations.0.args.1.t", -1, "tensor -1 does not exist"),
        ("train.operations.0.context", 0, "context 0 does not exist"),
        ("train.operations.0.args", [], "lacks its argument"),
        ("train.operations.1.kwargs", {"class": 1}, "no keyword"),
        ("train.operations.1.kwargs", {"x" * 10**5: 1}, "no keyword"),
        ("train.result", None, "result"),
        ("train.result", {"leaf": 9}, "never computed"),
        ("train.result", {"leaf": -1}, "never computed"),
        ("train.result", {"leaf": 3, "const": 1}, "unknown structure"),
        ("train.result", {"module": "os"}, "unknown structure"),
        ("train.sends", [wire(3, 1)], "wrong way"),
        ("train.receives", [wire(9, 0)], "first stage receives nothing"),
        ("inputs", [], "different values"),
        ("inputs", [wire(0, 0), wire(0, 0)], "listed twice"),
        ("inputs.0.dtype", None, "shape or a gradient"),
        ("inputs.0.dtype", "str", "unknown dtype"),
        ("inputs.0.stages", [1], "wrong way"),
        ("inputs.0.shape", [-2], ">= -1"),
        ("arguments", [], "different values"),
        ("arguments.0.structure", {"leaf": 1}, "different values"),
        ("arguments.0.structure", {"tuple": [{"leaf": 0}, {"leaf": 0}]}, "different values"),
        ("arguments.0.structure", {"const": 1}, "different values"),
        ("contexts", [{"autocast_dtype": "bfloat16"}], "autocast"),
        ("contexts", [{"autocast_enabled": True}], "autocast"),
        ("contexts", [{"autocast_dtype": "x", "autocast_enabled": True}], "unknown dtype"),
        ("tensors.1.hidden", "matrix", "cannot be a hidden matrix"),
        ("tensors.0.hidden", "stack", "cannot be a hidden stack"),
        ("tensors.2.hidden", "matrix", "cannot be a hidden matrix"),
    ],
)
def test_a_contradiction_is_refused_and_named(path, value, match, tmp_path):
    refuse(tmp_path / "package", put(whole(), path, value), match)


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        ("train.receives.0.stages", [1], "wrong way"),
        ("train.receives.0.stages", [2], "wrong way"),
        ("train.receives.0.stages", [], "nowhere"),
        ("train.receives", [], "used before it exists"),
        ("train.receives", [wire(5, 0), wire(5, 0)], "listed twice"),
        ("train.receives.0.dtype", "int64", "cannot have a gradient"),
        ("train.receives.0.value", 6, "used before it exists"),
        ("train.sends.0.stages", [1], "wrong way"),
        ("train.sends.0.stages", [0], "wrong way"),
        ("train.sends.0.stages", [3], "wrong way"),
        ("train.sends.0.stages", [2, 2], "twice to one stage"),
        ("train.sends.0.value", 7, "never computed"),
        ("train.sends", [wire(6, 2), wire(6, 2)], "listed twice"),
        ("train.result", {"const": None}, "result"),
        ("arguments", [{"name": "x", "structure": {"leaf": 5}}], "only the first stage"),
        ("inputs", [wire(5, 0)], "only the first stage"),
        ("tensors.0.stages", [0, 2], "held by"),
    ],
)
def test_a_wire_that_leads_the_wrong_way_is_refused(path, value, match, tmp_path):
    refuse(tmp_path / "package", put(middle(), path, value), match)


def test_a_value_comes_from_one_stage(tmp_path):
    document = put(put(put(middle(), "stages", 4), "stage", 2), "train.receives.0.stages", [0, 1])
    document = put(document, "eval.sends.0.stages", [3])
    refuse(tmp_path / "p", put(document, "train.sends.0.stages", [3]), "from several stages")


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        (Limits(operations=2), "operators"),
        (Limits(arguments=5), "arguments"),
        (Limits(tensors=2), "tensors"),
        (Limits(weight_bytes=60), "bytes of tensors"),
        (Limits(values=0), "inputs"),
        (Limits(graph_bytes=100), "larger than the 100 bytes"),
        (Limits(manifest_bytes=100), "larger than the 100 bytes"),
        (Limits(stages=0), "does not exist"),
    ],
    ids=str,
)
def test_a_provider_sets_its_own_limits(limits, match, tmp_path):
    refuse(tmp_path / "package", whole(), match, limits)


def test_a_constant_tensor_is_limited(tmp_path):
    document = calculation(op(1, "aten.zeros.default", [10, 10]), result={"leaf": 1})
    load_package(write(tmp_path / "a", document), Limits(constant_elements=100))
    refuse(tmp_path / "b", document, "elements", Limits(constant_elements=99))


@pytest.mark.parametrize(
    "graph",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b'{"format": 1, "stage": "\xff"}',
        b'{"format": 1, "stage": NaN}',
        b'{"format": 1, "stage": 1e999}',
        b'{"format": 1, "stage": ' + b"1" * 100_000 + b"}",
        b'{"format": 1, "train": ' + b"[" * 1_000_000,
        b'{"format": 1, "train": ' + b'{"a":' * 1_000_000,
        json.dumps(whole()).encode() + b"{}",
        json.dumps(whole()).encode()[:-1],
        json.dumps(whole()).encode("utf-16"),
    ],
    ids=range(15),
)
def test_what_is_not_json_is_refused(graph, tmp_path):
    with pytest.raises(PackageError, match="not a valid StageGraph"):
        load(tmp_path / "package", graph)


@pytest.mark.parametrize("depth", [40, 300, 900, 10_000])
@pytest.mark.parametrize(
    ("path", "opening", "closing"),
    [
        ("train.operations.1.args.0", "[", "]"),
        ("train.operations.1.kwargs.self", '{"v": ', "}"),
        ("train.result", '{"tuple": [', "]}"),
        ("train.result.dict.0.1", '{"dict": [["a", ', "]]}"),
        ("arguments.0.structure", '{"list": [', "]}"),
        ("arguments.0.structure", '{"const": ', "}"),
    ],
)
def test_deep_nesting_is_refused_wherever_anything_fits(path, opening, closing, depth, tmp_path):
    text = json.dumps(put(whole(), path, "HERE"))
    text = text.replace('"HERE"', opening * depth + '{"leaf": 0}' + closing * depth)
    with pytest.raises(PackageError):
        load(tmp_path / "package", text.encode())


def test_a_later_key_does_not_hide_an_earlier_one(tmp_path):
    """JSON with a key twice: one parser reads it, and what it keeps is what is checked."""
    text = json.dumps(whole())
    bad = text.replace('"op": "aten.relu.default"', '"op": "aten.relu.default", "op": "x.y.z"', 1)
    assert bad != text
    with pytest.raises(PackageError, match="allow-list"):
        load(tmp_path / "package", bad.encode())


@pytest.mark.parametrize(
    ("kwargs", "more", "match"),
    [
        ({}, {}, "malformed"),
        ({"path": 1}, {}, "malformed"),
        ({"path": ""}, {}, "malformed"),
        ({"path": "a", "x": 1}, {}, "unknown keywords"),
        ({"path": "a", "tensors": [t(0)]}, {}, "tensor 0 does not exist"),
        ({"path": "a"}, {"args": []}, "malformed"),
        ({"path": "a"}, {"context": 0}, "in a context"),
    ],
    ids=str,
)
def test_a_module_call_that_is_malformed_is_refused(kwargs, more, match, tmp_path):
    call = {**op(1, "ravnest.module", v(0)), "kwargs": kwargs, **more}
    document = calculation(call, result={"leaf": 1}, contexts=[{"grad": False}])
    refuse(tmp_path / "package", document, match)


def test_the_weights_are_not_needed_to_check_a_graph(tmp_path):
    load_package(write(tmp_path / "package", whole(), weights()))
