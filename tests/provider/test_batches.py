"""Whatever has one entry for each row is divided, everything else stays whole."""

from collections import defaultdict, namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ravnest.provider.batches import attributes, doubled, has_rows, rows_of, with_tensors
from ravnest.provider.proof import tensors_in

Pair = namedtuple("Pair", "x y")
PER_ROW = [torch.rand(k % 3 + 1) for k in range(8)]


def shown(item):
    """The same structure with the shapes of its tensors, which can be compared."""
    if isinstance(item, torch.Tensor | np.ndarray):
        return tuple(item.shape)
    if isinstance(item, dict):
        return {key: shown(value) for key, value in item.items()}
    return [shown(value) for value in item] if isinstance(item, tuple | list) else item


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_sequence_with_one_tensor_for_each_row_is_divided(kind):
    x, labels = rows_of((torch.arange(8), kind(PER_ROW)), 8, 4, 8)
    assert x.tolist() == [4, 5, 6, 7]
    assert isinstance(labels, kind)
    assert len(labels) == 4
    assert all(found is wanted for found, wanted in zip(labels, PER_ROW[4:], strict=True))


def test_arrays_and_words_are_divided():
    item = {"array": np.arange(8), "words": tuple("abcdefgh"), "all": np.arange(3), "name": "x"}
    found = rows_of(item, 8, 0, 3)
    assert found["array"].tolist() == [0, 1, 2]
    assert found["words"] == ("a", "b", "c")
    assert found["all"] is item["all"]
    assert found["name"] == "x"


TWO = torch.rand(2, 3)
WHOLE = {
    "a list, as collate makes it": ([TWO, TWO], [(1, 3), (1, 3)]),
    "a tuple": ((TWO, TWO[:, 0]), [(1, 3), (1,)]),
    "arrays": ([TWO.numpy(), TWO], [(1, 3), (1, 3)]),
    "a factor for all": ((TWO, torch.tensor(0.5)), [(1, 3), ()]),
    "with words": ([TWO, ("a", "b")], [(1, 3), ["a"]]),
    "with boxes": ((TWO, [torch.rand(5, 4), torch.rand(3, 4)]), [(1, 3), [(5, 4)]]),
    "with nothing": ((TWO, None), [(1, 3), None]),
    "named": (Pair(TWO, torch.rand(5)), [(1, 3), (5,)]),
    "dicts": (({"x": TWO}, {"y": TWO}), [{"x": (1, 3)}, {"y": (1, 3)}]),
}
ROWS = {
    "some without": ([None, torch.rand(5, 4)], [None]),
    "plain numbers": ([1, 2.5], [1]),
    "numbers": ([torch.tensor(1), torch.tensor(2)], [()]),
    "boxes": ([torch.rand(5, 4), torch.rand(2, 4)], [(5, 4)]),
    "targets": ([{"boxes": torch.rand(2, 4)}, {"boxes": torch.rand(2, 4)}], [{"boxes": (2, 4)}]),
}


@pytest.mark.parametrize(("item", "first"), [*WHOLE.values(), *ROWS.values()], ids=[*WHOLE, *ROWS])
def test_two_things_in_a_batch_of_two_rows(item, first):
    assert shown(rows_of(item, 2, 0, 1)) == first
    assert has_rows(item, 2)


@dataclass(slots=True)
class Slots:
    x: torch.Tensor
    name: str


@dataclass(frozen=True, slots=True)
class Frozen:
    x: torch.Tensor
    name: str


@dataclass
class Derived:
    x: torch.Tensor
    name: str
    count: int = field(init=False)
    double: torch.Tensor = field(init=False)

    def __post_init__(self):
        self.double = 2 * self.x  # and no count yet
        self.more = [self.x]


RECORDS = {
    "a defaultdict": lambda x: defaultdict(list, x=x, name="one"),
    "slots": lambda x: Slots(x, "one"),
    "frozen": lambda x: Frozen(x, "one"),
    "derived": lambda x: Derived(x, "one"),
    "a namespace": lambda x: SimpleNamespace(x=x, name="one"),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_records_are_divided_and_moved_whatever_holds_their_fields(kind):
    given = RECORDS[kind](torch.arange(8))
    part = rows_of(given, 8, 0, 3)
    moved = with_tensors(given, lambda tensor: tensor + 1, torch.device("meta"))
    for found, expected in ((part, torch.arange(3)), (moved, torch.arange(1, 9))):
        assert type(found) is type(given)
        fields_of = found if isinstance(found, dict) else attributes(found)
        assert fields_of["x"].equal(expected)
        assert fields_of["name"] == "one"
        if kind == "derived":
            assert [len(found.double), len(found.more[0])] == [len(expected)] * 2
    assert next(tensors_in(given)).equal(torch.arange(8))
    if kind == "a defaultdict":
        assert part["new"] == []


def test_whether_there_are_rows():
    assert has_rows({"deep": (1, [torch.zeros(8)])}, 8)
    assert not has_rows({"deep": (1, [torch.zeros(7)]), "number": 8, "word": "lettered"}, 8)


def test_a_row_twice():
    item = (torch.ones(1, 3), [torch.rand(4)], Pair("x", np.ones(1)), torch.ones(2))
    assert shown(doubled(item)) == [(2, 3), [(4,), (4,)], ["x", (2,)], (2,)]


def test_a_field_may_be_called_like_a_method_of_a_dict():
    batch = Record(values=torch.arange(4), items=torch.ones(4))
    batch.__dict__.update(batch)
    assert [t.tolist() for t in tensors_in(batch)] == [[0, 1, 2, 3], [1, 1, 1, 1]]
    assert rows_of(batch, 4, 1, 3)["values"].tolist() == [1, 2]


class Record(dict):
    """As libraries have them: keys, and attributes of the same names."""
