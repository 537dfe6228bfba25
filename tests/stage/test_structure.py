"""Nested inputs and outputs become data and come back looking the same."""

import enum
import math
import os
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers.utils import ModelOutput

from ravnest.errors import CaptureError, PackageError
from ravnest.stage import structure
from ravnest.stage.records import MappingRecord, ObjectRecord, TupleRecord

Pair = namedtuple("Pair", ["first", "second"])
ONE, TWO = torch.tensor(1.0), torch.tensor(2.0)


@dataclass
class Output:
    loss: torch.Tensor | None
    scores: torch.Tensor


@dataclass
class LibraryOutput(ModelOutput):
    logits: torch.Tensor | None = None
    values: torch.Tensor | None = None


class Batch(UserDict):  # as the tokenizers of transformers return
    pass


class Level(enum.IntEnum):
    HIGH = 3


class Text(str):
    pass


def through_json(value: Any) -> Any:
    """Flatten, write as JSON, read, check, rebuild."""
    leaves: list[torch.Tensor] = []
    described = structure.flatten(value, leaves, "output")
    read = msgspec.json.decode(msgspec.json.encode(described))
    seen: list[int] = []
    structure.check(read, seen.append)
    assert seen == structure.result_values(read) == list(range(len(leaves)))
    return structure.rebuild(read, leaves.__getitem__)


@pytest.mark.parametrize(
    "value",
    [
        ONE,
        (ONE, TWO),
        [ONE, [TWO, ()]],
        {"a": ONE, "b": {"c": TWO, 3: None}},
        {True: ONE, -1: TWO},
        OrderedDict(b=ONE, a=TWO),
        (None, True, 1, 2.5, "text", ONE),
        {"not a name": ONE, "": TWO},
        (math.inf, -math.inf),
        (2**80, -0.0, 1e-320),
        (),
        {},
    ],
    ids=str,
)
def test_plain_values_survive(value):
    found = through_json(value)
    assert found == value
    assert type(found) is (dict if isinstance(value, dict) else type(value))


def test_constants_keep_their_type():
    found = through_json((1, 1.0, True, math.nan))
    assert [type(item) for item in found] == [int, float, bool, float]
    assert math.isnan(found[3])


def test_constants_of_odd_types_become_plain_ones():
    found = through_json((np.float64(0.5), np.float64(math.inf), Text("x"), Level.HIGH))
    assert found == (0.5, math.inf, "x", 3)
    assert [type(item) for item in found] == [float, float, str, int]


def test_objects_come_back_as_records():
    pair = through_json(Pair(ONE, [TWO]))
    assert isinstance(pair, TupleRecord)
    assert (pair.first, pair.second, tuple(pair)) == (ONE, [TWO], (ONE, [TWO]))
    output = through_json(Output(None, ONE))
    assert isinstance(output, ObjectRecord)
    assert (output.loss, output.scores) == (None, ONE)
    mapping = through_json(Batch({"a.b": ONE, "c": TWO}))
    assert isinstance(mapping, MappingRecord)
    assert (mapping["a.b"], mapping.c, mapping[0]) == (ONE, TWO, ONE)


def test_what_torch_itself_returns_keeps_its_names():
    values, indices = torch.max(torch.tensor([[1.0, 3.0]]), 1)
    found = through_json(torch.max(torch.tensor([[1.0, 3.0]]), 1))
    assert isinstance(found, TupleRecord)
    assert (found.values, found.indices) == tuple(found) == (values, indices)


def test_a_tuple_made_in_c_with_nameless_items_is_a_plain_one():
    assert type(through_json(os.stat("."))) is tuple


class Attributes(dict[str, Any]):
    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__ = self


def test_items_that_are_named_like_methods_are_where_the_original_has_them():
    """An output class of transformers, any other mapping, and the well-known AttrDict."""
    output = LibraryOutput(logits=ONE, values=TWO)
    output["extra"] = ONE
    assert output.values is TWO
    found = through_json(output)
    assert (found.logits, found.values, found["values"], found[1]) == (ONE, TWO, TWO, TWO)
    assert found["extra"] is found.extra is ONE
    batch = through_json(Batch({"values": ONE, "none": None}))
    assert list(batch.values()) == [ONE, None]
    assert (batch["values"], batch["none"]) == (ONE, None)
    assert through_json(Attributes(values=ONE, x=TWO)).values is ONE


@pytest.mark.parametrize(
    "value",
    [
        Pair(ONE, [TWO]),
        Output(None, ONE),
        Batch({"a": ONE, "values": None}),
        torch.max(torch.ones(1, 2), 1),
        Attributes(items=ONE, x=TWO),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_record_flattens_like_what_it_stands_for(value):
    record = through_json(value)
    assert structure.flatten(record, [], "x") == structure.flatten(value, [], "x")


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, b"bytes", 1j, {(1, 2): ONE}, [print]],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_described_is_refused(value):
    with pytest.raises(CaptureError):
        structure.flatten(value, [], "output")


def test_a_value_that_contains_itself_is_refused():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CaptureError, match="output is nested deeper than 32"):
        structure.flatten(endless, [], "output")


def nested(depth: int) -> Any:
    value: Any = {"leaf": 0}
    for _ in range(depth):
        value = {"tuple": [value]}
    return value


@pytest.mark.parametrize(
    "described",
    [
        None,
        1,
        "leaf",
        [],
        {},
        {"leaf": True},
        {"leaf": "0"},
        {"leaf": 1.0},
        {"leaf": None},
        {"leaf": 0, "const": 1},
        {"const": []},
        {"const": {"leaf": 0}},
        {"float": "1.0"},
        {"float": 1.0},
        {"float": ["inf"]},
        {"tuple": {"leaf": 0}},
        {"tuple": "ab"},
        {"tuple": [1]},
        {"list": [{"list": [{"x": 1}]}]},
        {"dict": {"a": {"leaf": 0}}},
        {"dict": [["a"]]},
        {"dict": [["a", {"leaf": 0}, 1]]},
        {"dict": [[None, {"leaf": 0}]]},
        {"dict": [[1.5, {"leaf": 0}]]},
        {"dict": [[["a"], {"leaf": 0}]]},
        {"dict": [["a", {"leaf": 0}], ["a", {"leaf": 1}]]},
        {"dict": [[1, {"leaf": 0}], [True, {"leaf": 1}]]},
        {"dict": [["x" * 201, {"leaf": 0}]]},
        {"record": "tuple"},
        {"record": "class", "fields": []},
        {"record": "os.system", "fields": []},
        {"record": "object", "fields": {}},
        {"record": "object", "fields": [], "module": "x"},
        {"record": "object", "fields": [[1, {"leaf": 0}]]},
        {"record": "object", "fields": [["a b", {"leaf": 0}]]},
        {"record": "object", "fields": [["__class__", {"leaf": 0}]]},
        {"record": "object", "fields": [["__deepcopy__", {"const": 1}]]},
        {"record": "tuple", "fields": [["__len__", {"leaf": 0}]]},
        {"record": "tuple", "fields": [["a", {"leaf": 0}], ["a", {"leaf": 1}]]},
        {"record": "mapping", "fields": [[1, {"leaf": 0}]]},
        nested(33),
        nested(100_000),
        {"list": [{"const": 1}] * 100_001},
    ],
    ids=range(43),
)
def test_a_structure_that_cannot_be_rebuilt_is_refused(described):
    with pytest.raises(PackageError):
        structure.check(described, lambda leaf: None)


def test_the_deepest_structure_allowed_is_rebuilt():
    structure.check(nested(32), lambda leaf: None)
    value = structure.rebuild(nested(32), lambda leaf: "x")
    assert str(value).count("(") == 32


def test_rebuilding_what_was_never_checked_is_refused_too():
    with pytest.raises(PackageError, match="unknown structure"):
        structure.rebuild({"pickle": "x"}, lambda leaf: None)
    with pytest.raises(PackageError, match="nested deeper"):
        structure.rebuild(nested(40), lambda leaf: None)


def test_leaves_get_other_numbers():
    described = {"dict": [["a", {"leaf": 0}], ["b", {"list": [{"leaf": 1}, {"const": 5}]}]]}
    found = structure.relabel(described, lambda leaf: leaf + 10)
    assert structure.result_values(found) == [10, 11]
    assert structure.result_values(described) == [0, 1]


EXPECTED = {"dict": [["ids", {"leaf": 7}], ["flag", {"const": 1}], ["more", {"tuple": []}]]}


def test_inputs_of_the_planned_form_are_matched_with_their_numbers():
    given = {"ids": ONE, "flag": 1, "more": ()}
    assert structure.match_leaves(EXPECTED, given, "input 'x'") == {7: ONE}


@pytest.mark.parametrize(
    "given",
    [
        ONE,
        None,
        {},
        {"ids": ONE, "flag": 2, "more": ()},
        {"ids": ONE, "flag": True, "more": ()},
        {"ids": ONE, "flag": 1.0, "more": ()},
        {"ids": ONE, "flag": TWO, "more": ()},
        {"ids": 1.0, "flag": 1, "more": ()},
        {"ids": ONE, "flag": 1, "more": []},
        {"ids": ONE, "flag": 1, "more": (ONE,)},
        {"ids": ONE, "flag": 1},
        {"flag": 1, "ids": ONE, "more": (), "extra": ONE},
    ],
    ids=str,
)
def test_inputs_of_another_form_are_refused(given):
    with pytest.raises(ValueError, match="input 'x' does not have the form"):
        structure.match_leaves(EXPECTED, given, "input 'x'")


def test_an_input_that_is_not_a_number_matches_itself():
    assert structure.match_leaves({"float": "nan"}, math.nan, "input") == {}
