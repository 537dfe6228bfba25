"""What the stages know of the norm of the whole gradient."""

import math

import pytest

from ravnest.provider.norms import GradientNorms


def test_the_first_stage_adds_up_the_shares():
    norms = GradientNorms(is_first=True)
    norms.came_back(9.0)
    assert norms.total(0, own=16.0) == 25.0


def test_who_waits_gets_the_total_itself():
    norms = GradientNorms(is_first=False)
    norms.told(3, 7.0)
    assert norms.total(3, own=1.0) == 7.0


def test_others_know_what_comes_later_and_reckon_with_the_rest():
    """Four times what this stage knows of it, the last time."""
    norms = GradientNorms(is_first=False)
    norms.told(0, 40.0)
    norms.came_back(6.0)
    assert norms.total(0, own=4.0) == 40.0
    norms.came_back(100.0)
    assert norms.total(1, own=50.0) == 600.0
    norms.told(1, 300.0)
    assert norms.total(2, own=20.0) == 240.0


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_one_total_that_overflowed_does_not_spoil_the_next(value):
    norms = GradientNorms(is_first=False)
    norms.told(0, 8.0)
    norms.total(0, own=4.0)
    norms.total(1, own=4.0)
    norms.told(1, value)
    assert norms.total(2, own=5.0) == 10.0


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_anywhere_is_not_finite_as_a_whole(value):
    for is_first in (True, False):
        norms = GradientNorms(is_first=is_first)
        norms.came_back(value)
        assert not math.isfinite(norms.total(0, own=1.0))
        norms.came_back(1.0)
        assert not math.isfinite(norms.total(1, own=value))


@pytest.mark.parametrize("told", [range(9, 100, 10), [99]])
@pytest.mark.parametrize("every", [1, 7])
def test_nothing_is_kept_of_updates_that_somebody_never_made(told, every):
    norms = GradientNorms(is_first=False)
    for update in range(100):
        if update % every == 0:
            norms.total(update, own=1.0)
        if update in told:
            norms.told(update, 2.0)
    norms.total(100, own=1.0)
    norms.told(100, 2.0)
    assert not norms._known
    assert not norms._totals
