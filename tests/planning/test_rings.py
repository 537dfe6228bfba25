"""Rings, over random plans whose clusters cut the model in different numbers of places."""

from bisect import bisect_right
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.plan import RingPlan
from ravnest.planning.search.rings import form_rings


@st.composite
def cut_models(draw):
    """Names of a model's tensors, and for every cluster the sorted places where it is cut."""
    size = draw(st.integers(1, 30))
    names = [f"layer{i}.weight" for i in draw(st.permutations(range(size)))]
    places = st.sets(st.integers(1, max(1, size - 1)), max_size=6 if size > 1 else 0)
    cuts = draw(st.lists(places.map(sorted), min_size=1, max_size=5))
    return names, cuts


def owners_of(names, cuts):
    """Every stage of every cluster has a provider of its own."""
    owners, first = [], 0
    for places in cuts:
        owners.append({name: first + bisect_right(places, i) for i, name in enumerate(names)})
        first += len(places) + 1
    return owners


@settings(deadline=None)
@given(cut_models())
def test_each_name_is_averaged_once_in_model_order(model):
    """Laid end to end, the rings are the model: no name is lost, doubled or moved."""
    names, cuts = model
    rings = form_rings(names, owners_of(names, cuts))
    assert [name for ring in rings for name in ring.names] == names
    assert [ring.id for ring in rings] == list(range(len(rings)))


@settings(deadline=None)
@given(cut_models())
def test_each_ring_has_one_owner_per_cluster(model):
    """`owners[c]` is cluster c's provider, and it owns every name of the ring."""
    names, cuts = model
    owners = owners_of(names, cuts)
    for ring in form_rings(names, owners):
        assert len(ring.owners) == len(cuts)
        for cluster, owner in zip(owners, ring.owners, strict=True):
            assert {cluster[name] for name in ring.names} == {owner}


@settings(deadline=None)
@given(cut_models())
def test_rings_are_as_long_as_possible(model):
    """A new ring begins exactly where some cluster is cut, and nowhere else."""
    names, cuts = model
    rings = form_rings(names, owners_of(names, cuts))
    assert all(one.owners != other.owners for one, other in pairwise(rings))
    assert len(rings) == 1 + len({place for places in cuts for place in places})


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(3, 5)), max_size=12))
def test_owners_that_come_back_start_a_new_ring(holders):
    """A tied tensor can be at home far from its neighbours: runs are never merged across others."""
    names = [f"t{i}" for i in range(len(holders))]
    owners = [{name: pair[c] for name, pair in zip(names, holders, strict=True)} for c in (0, 1)]
    rings = form_rings(names, owners)
    assert [name for ring in rings for name in ring.names] == names
    assert all(one.owners != other.owners for one, other in pairwise(rings))


def test_an_example_by_hand():
    """Two clusters: cut after a and after c; cut after b."""
    owners = [{"a": 0, "b": 1, "c": 1, "d": 2}, {"a": 3, "b": 3, "c": 4, "d": 4}]
    assert form_rings("abcd", owners) == (
        RingPlan(id=0, names=("a",), owners=(0, 3), first_parameter="a"),
        RingPlan(id=1, names=("b",), owners=(1, 3), first_parameter="b"),
        RingPlan(id=2, names=("c",), owners=(1, 4), first_parameter="c"),
        RingPlan(id=3, names=("d",), owners=(2, 4), first_parameter="d"),
    )


def test_a_model_without_anything_to_average_has_no_rings():
    assert form_rings([], [{}, {}]) == ()
