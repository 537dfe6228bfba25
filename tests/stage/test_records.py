"""Stand-ins behave like the objects they stand for, as far as a training loop can tell."""

import copy
from collections.abc import Mapping

import pytest
import torch
from torch.utils import _pytree

from ravnest.stage.records import (
    MappingRecord,
    ObjectRecord,
    TupleRecord,
    make_record,
    mapping_fields,
)

A, B = torch.tensor([1.0]), torch.tensor([2.0])


@pytest.fixture
def pair() -> TupleRecord:
    return make_record("tuple", {"first": A, "second": B})


@pytest.fixture
def output() -> MappingRecord:
    return make_record("mapping", {"loss": None, "logits": A, "hidden": B})


@pytest.fixture
def plain() -> ObjectRecord:
    return make_record("object", {"scores": A, "aux": None})


def test_a_tuple_is_read_by_index_name_and_unpacking(pair):
    assert isinstance(pair, tuple)
    first, second = pair
    assert (first, second) == (pair[0], pair[1]) == (pair.first, pair.second) == (A, B)
    assert pair[-1] is B
    assert pair[:1] == (A,)
    assert len(pair) == 2
    assert pair._fields == ("first", "second")
    assert pair._asdict() == {"first": A, "second": B}
    assert pair == (A, B)


def test_a_missing_field_of_a_tuple_is_named(pair):
    with pytest.raises(AttributeError, match="no field 'third'; there are: first, second"):
        _ = pair.third
    assert not hasattr(pair, "third")


def test_a_mapping_is_read_by_key_attribute_and_position(output):
    assert isinstance(output, dict)
    assert isinstance(output, Mapping)
    assert output["logits"] is output.logits is output[0] is A
    assert output[1] is output[-1] is B
    assert output[:1] == (A,)
    assert output.to_tuple() == (A, B)
    assert list(output) == ["logits", "hidden"]
    assert {**output} == {"logits": A, "hidden": B}
    assert output.get("loss") is None


def test_what_is_none_is_an_attribute_but_not_a_key(output):
    assert output.loss is None
    assert "loss" not in output
    with pytest.raises(KeyError):
        _ = output["loss"]


def test_a_missing_field_of_a_mapping_is_named(output):
    with pytest.raises(AttributeError, match="no field 'x'; there are: logits, hidden"):
        _ = output.x
    with pytest.raises(IndexError):
        _ = output[2]


def test_a_mapping_knows_all_its_fields_also_new_ones(output):
    output["extra"] = 1
    assert mapping_fields(output) == [("loss", None), ("logits", A), ("hidden", B), ("extra", 1)]


def test_an_object_has_attributes(plain):
    assert plain.scores is A
    assert plain.aux is None
    assert vars(plain) == {"scores": A, "aux": None}
    assert repr(plain) == f"ObjectRecord(scores={A!r}, aux=None)"
    with pytest.raises(AttributeError):
        _ = plain.x


@pytest.mark.parametrize("kind", ["tuple", "mapping", "lookup", "object"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_of_the_same_kind(kind, copied):
    record = make_record(kind, {"a": A, "items": B, "none": None})
    found = copied(record)
    assert type(found) is type(record)
    assert torch.equal(found.a, A)
    assert (found.a is A) == (copied is copy.copy)
    assert found.none is None


@pytest.mark.parametrize("kind", ["tuple", "mapping", "lookup", "object"])
def test_helpers_that_walk_outputs_reach_every_tensor(kind):
    record = make_record(kind, {"a": A, "none": None, "b": [B]})
    leaves = [leaf for leaf in _pytree.tree_leaves(record) if leaf is not None]
    assert leaves == [A, B]
    doubled = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor * 2, record)
    assert type(doubled) is type(record)
    assert doubled.a.item() == 2.0
    assert doubled.b[0].item() == 4.0
    assert doubled.none is None


# ---- fields that are called like methods -----------------------------------------------------

METHODS = ["count", "index", "values", "items", "keys", "get", "pop", "update", "to_tuple", "make"]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["tuple", "mapping", "object"])
def test_a_field_wins_over_a_method_of_its_stand_in(kind, name):
    record = make_record(kind, {"first": A, name: B})
    assert getattr(record, name) is B
    assert record.first is A
    for copied in (copy.copy(record), copy.deepcopy(record)):
        assert type(copied) is type(record)
        assert torch.equal(getattr(copied, name), B)
    doubled = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor * 2, record)
    assert getattr(doubled, name).item() == 4.0


def test_a_mapping_works_whatever_its_fields_are_called():
    names = ["values", "items", "keys", "get", "to_tuple"]
    record = make_record("mapping", {"none": None, **dict.fromkeys(names, B)})
    assert list(record) == names
    assert dict(record) == {**record} == dict.fromkeys(names, B)
    assert [record[name] for name in names] == list(record[:]) == [B] * 5
    assert mapping_fields(record) == [("none", None), *dict.fromkeys(names, B).items()]
    assert record.none is None


def test_a_lookup_keeps_its_methods_and_what_is_none():
    record = make_record("lookup", {"values": A, "none": None, "x": B})
    assert record["values"] is record[0] is A
    assert list(record.values()) == [A, None, B]
    assert record["none"] is record.none is None
    assert (record.x, list(record)) == (B, ["values", "none", "x"])


def test_names_that_python_uses_itself_do_no_harm():
    mapping = make_record("mapping", {"items": A, "_names": B, "keys": A})
    assert mapping["items"] is A
    assert list(dict.items(mapping))[1] == ("_names", B)
    assert len(mapping_fields(mapping)) == 3
    row = make_record("tuple", {"index": A, "_fields": B})
    assert tuple(row) == (A, B)
    assert copy.deepcopy(row)._asdict().keys() == {"index", "_fields"}


@pytest.mark.parametrize("kind", ["mapping", "lookup"])
@pytest.mark.parametrize("name", ["__deepcopy__", "__reduce_ex__", "__class__", "__array__"])
def test_a_key_does_not_change_what_the_mapping_is(kind, name):
    """Keys are any text, also in a package made by others."""
    record = make_record(kind, {name: A})
    assert record[name] is A
    assert type(copy.deepcopy(record)) is type(record) is record.__class__
    assert getattr(record, name, None) is not A
