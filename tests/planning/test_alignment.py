"""Which operators of two graphs are the same, and where a cut of one falls in the other."""

import random
from functools import partial
from types import SimpleNamespace

import pytest

from ravnest.planning.cutting import alignment
from ravnest.planning.cutting.alignment import align, partners


@pytest.fixture
def long(monkeypatch):
    """Every graph is one of those that cannot be compared with everything."""
    monkeypatch.setattr(alignment, "_MOST_PAIRS", 0)


def keys(text):
    return [("m", letter) for letter in text]


def pairs(ours, theirs):
    return [
        (ours[one], theirs[other]) for one, other in enumerate(partners(ours, theirs)) if other >= 0
    ]


def test_the_same_graph_is_its_own_partner_however_long_and_monotonous():
    """Compared pair by pair, these would be ten thousand million."""
    count = 100_000
    assert partners(keys("r") * count, keys("r") * count) == list(range(count))


def test_what_only_one_graph_has_is_nobodys_partner(long):
    ours, theirs = keys("abDcdDe"), keys("aXbcde")
    assert partners(ours, theirs) == [0, 2, -1, 3, 4, -1, 5]


def test_operators_that_have_changed_places_are_not_both_matched(long):
    found = [place for place in partners(keys("abcdefg"), keys("aefbcdg")) if place >= 0]
    assert found == [0, 3, 4, 5, 6]


def test_partners_are_the_same_operator_and_in_order_whatever_the_graphs(long):
    dice = random.Random(3)
    for _ in range(300):
        ours = keys(dice.choices("abc", k=dice.randrange(20)))
        theirs = keys(dice.choices("abc", k=dice.randrange(20)))
        found = [place for place in partners(ours, theirs) if place >= 0]
        assert found == sorted(set(found))
        assert all(one == other for one, other in pairs(ours, theirs))


def program(text, held=None):
    """Operators by letter; `held` says which tensor each of some letters uses."""
    held = held or {}
    used = {letter: [name] for letter, name in held.items()}
    ops = [
        SimpleNamespace(path="m", target=letter, held=partial(used.get, letter, []))
        for letter in text
    ]
    tensors = {name: SimpleNamespace(trainable=True) for name in held.values()}
    return SimpleNamespace(ops=ops, written=set(), held=tensors)


def everywhere(text):
    return SimpleNamespace(legal=[True] * (len(text) + 1))


@pytest.fixture
def cuts(monkeypatch):
    monkeypatch.setattr(alignment, "operator_name", lambda target: target)

    def cuts(ours, theirs, held=None):
        return align(
            *(program(ours, held), program(theirs, held)), *(everywhere(ours), everywhere(theirs))
        )

    return cuts


def test_a_cut_falls_between_the_same_neighbours(cuts):
    assert cuts("aDbDc", "abc") == [0, 1, 1, 2, 2, 3]


def test_a_trained_tensor_stays_with_its_stage(cuts):
    """`w` is trained in the middle and evaluated at the end: no cut may come in between."""
    assert cuts("abwcd", "abcdw", {"w": "weight"}) == [0, 1, 2, None, None, 5]
