"""How much a member counts: the same for all members, from what all have heard."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.provider.averaging.bounds import (
    LEAST_OF_TWO,
    MOST_TIMES,
    MOST_TIMES_THE_WEIGHT,
    Agreement,
    Pledge,
    Vector,
    agree,
    bounded,
)

WEIGHTS = Vector(10**6, is_parameters=True)
BUFFERS = Vector(10**6, is_parameters=False)


def pledge(length, rows=100.0, has_ended=False):
    return Pledge((length,), rows, (length,), (10.0,), has_ended)


def agreed(lengths, weights=None, vector=WEIGHTS, still=False):
    weights = weights or [100.0] * len(lengths)
    pledges = [pledge(length, weight) for length, weight in zip(lengths, weights, strict=True)]
    return agree(weights, pledges, [vector], still=still)


def test_a_weight_counts_as_a_multiple_of_the_others_median_at_most():
    assert bounded((100.0, 100.0)) == (100.0, 100.0)
    assert bounded((1e9, 100.0)) == (400.0, 100.0)
    assert bounded((1e9, 100.0, 300.0)) == (800.0, 100.0, 300.0)
    assert bounded((1e9, 0.0)) == (1e9, 0.0), "nobody else has trained"
    assert bounded((0.0, 0.0)) == (0.0, 0.0)
    assert bounded((50.0, 10.0, 60.0, 20.0)) == (50.0, 10.0, 60.0, 20.0)


def test_members_that_have_moved_alike_count_as_they_weigh():
    assert agreed([1.0, 1.0]) == Agreement((0.5, 0.5))
    assert agreed([1.0, 3.0, 0.5], [300.0, 100.0, 100.0]).shares == pytest.approx((0.6, 0.2, 0.2))


def test_a_long_change_counts_as_a_multiple_of_the_others_median():
    found = agreed([1.0, 1.0, 80.0])
    (low,) = found.lowered
    assert low.place == 2
    assert low.counts == pytest.approx(MOST_TIMES, rel=0.01)
    assert found.shares[2] * 80 == pytest.approx(MOST_TIMES / 3, rel=0.01)
    assert found.shares[:2] == pytest.approx([1 / 3, 1 / 3]), "nobody gets what is taken from it"
    assert agreed([1.0, 1.0, 80.0], vector=BUFFERS).lowered == ()


def test_one_that_has_trained_on_more_rows_may_have_moved_further_up_to_a_limit():
    assert agreed([1.0, 1.0, 15.0], [100.0, 100.0, 400.0]).lowered == ()
    found = agreed([1.0, 1.0, 1600.0], [100.0, 100.0, 1e6])
    (low,) = found.lowered
    assert low.counts == pytest.approx(MOST_TIMES * MOST_TIMES_THE_WEIGHT, rel=0.01)


def test_a_liar_among_the_others_holds_no_honest_member_back():
    """Neither by a short change nor by many rows."""
    assert agreed([1.0, 1.0, 1e-9]).lowered == ()
    assert agreed([4.0, 1.0, 1e-9], [400.0, 100.0, 1e9]).lowered == ()


def test_of_two_that_are_far_apart_neither_is_averaged():
    assert agreed([1.0, MOST_TIMES / LEAST_OF_TWO * 1.1]).apart
    assert not agreed([1.0, MOST_TIMES / LEAST_OF_TWO * 0.9]).apart
    assert not agreed([1.0, 1.0, 1e9]).apart


@pytest.mark.parametrize("others", [1, 2])
def test_one_that_alone_has_trained_waits_for_another(others):
    weights = [100.0, *[0.0] * others]
    pledges = [pledge(1.0), *[pledge(1.0)] * others]
    assert agree(weights, pledges, [WEIGHTS], still=False).idle == 1
    assert agree(weights, pledges, [WEIGHTS], still=True).shares[0] == 1
    ended = [pledge(1.0), *[pledge(1.0, has_ended=True)] * others]
    assert agree(weights, ended, [WEIGHTS], still=False).shares[0] == 1


def test_those_that_have_finished_are_led_as_far_as_rows_make_likely():
    pledges = [pledge(1.0, rows=10.0), pledge(1.0, has_ended=True)]
    found = agree([10.0, 0.0], pledges, [WEIGHTS], still=False)
    assert found.shares == pytest.approx((MOST_TIMES * 0.1, 0.0), rel=0.02)


def test_when_all_stand_still_one_that_has_never_trained_takes_what_there_is():
    pledges = [pledge(50.0), pledge(0.0, rows=0.0)]
    assert agree([100.0, 0.0], pledges, [WEIGHTS], still=True).shares == (1.0, 0.0)
    assert agree([100.0, 0.0], pledges, [WEIGHTS], still=False).idle == 1


def test_what_is_within_rounding_counts_in_full():
    """Weights of length 10 that hardly move at all."""
    assert agreed([1e-9, 1e-9, 1e-5]).lowered == ()


numbers = st.floats(0, 1e12)
members = st.tuples(numbers, st.floats(0, 1e9), st.booleans())


@given(
    st.lists(members, min_size=1, max_size=8),
    st.tuples(numbers, numbers, numbers, numbers, st.floats(0, 1e9), st.booleans()),
    st.booleans(),
    st.integers(0, 8),
)
def test_whatever_one_member_says_it_moves_the_mean_by_what_the_others_make_likely(
    honest, lie, still, place
):
    """Its length, what is usual for it, how long its weights are, its rows and its weight."""
    length, usual, size, said_rows, weight, ended = lie
    place = min(place, len(honest))
    pledges = [pledge(moved, rows, has_ended) for moved, rows, has_ended in honest]
    others = [one.lengths[0] for one in pledges if one.rows > 0]
    weights = [rows for _, rows, _ in honest]
    pledges.insert(place, Pledge((length,), said_rows, (usual,), (size,), ended))
    weights.insert(place, weight)
    found = agree(weights, pledges, [WEIGHTS], still=still)
    if found.idle is not None or found.apart:
        return
    assert all(0 <= share <= 1 + 1e-9 for share in found.shares)
    assert sum(found.shares) <= 1 + 1e-9
    if others:
        most = MOST_TIMES * MOST_TIMES_THE_WEIGHT * max(others) + 0.01
        assert found.shares[place] * length <= most * 1.001
    # Nor does it make others count for more than they weigh among themselves.
    for k, share in enumerate(found.shares):
        if k != place and weights[k]:
            assert share <= weights[k] / min(w for w in weights if w) + 1e-9
