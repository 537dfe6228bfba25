"""How much a member counts: the same for all members, from what all have heard."""

import math

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
    assert sum(found.shares) == pytest.approx(1)
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
    """What is taken from the one that trains falls to them, who stand where all have begun."""
    pledges = [pledge(1.0, rows=10.0), pledge(1.0, has_ended=True)]
    found = agree([10.0, 0.0], pledges, [WEIGHTS], still=False)
    assert found.shares[0] == pytest.approx(MOST_TIMES * 0.1, rel=0.02)
    assert sum(found.shares) == pytest.approx(1)


def test_when_all_stand_still_one_that_has_never_trained_takes_what_there_is():
    pledges = [pledge(50.0), pledge(0.0, rows=0.0)]
    assert agree([100.0, 0.0], pledges, [WEIGHTS], still=True).shares == (1.0, 0.0)
    assert agree([100.0, 0.0], pledges, [WEIGHTS], still=False).idle == 1


def test_what_is_within_rounding_counts_in_full():
    """Weights of length 10 that hardly move at all."""
    assert agreed([1e-9, 1e-9, 1e-4]).lowered == ()


lengths = st.floats(0, 1e12)
members = st.tuples(lengths, st.floats(0, 1e9), st.booleans())


@given(st.lists(members, min_size=2, max_size=9), st.booleans())
def test_shares_add_up_and_no_member_moves_the_mean_far(some, still):
    weights = [rows for _, rows, _ in some]
    pledges = [pledge(length, rows, ended) for length, rows, ended in some]
    found = agree(weights, pledges, [WEIGHTS], still=still)
    if found.idle is not None or found.apart:
        return
    assert sum(found.shares) == pytest.approx(1)
    assert all(0 <= share <= 1 + 1e-9 for share in found.shares)
    for place, (length, _, _) in enumerate(some):
        others = [p.lengths[0] for k, p in enumerate(pledges) if k != place and p.rows > 0]
        if others and math.isfinite(length):
            most = MOST_TIMES * MOST_TIMES_THE_WEIGHT * max(others) + 0.01
            assert found.shares[place] * length <= most * 1.001
