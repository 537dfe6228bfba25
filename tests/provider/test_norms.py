"""What the stages know of the norm of the whole gradient."""

import math

import pytest

from ravnest.provider.norms import GradientNorms


def test_the_first_stage_adds_up_the_shares():
    norms = GradientNorms(is_first=True, waits=False)
    norms.came_back(9.0)
    assert norms.total(0, own=16.0) == 25.0


def test_others_use_what_they_heard_last():
    norms = GradientNorms(is_first=False, waits=False)
    assert norms.total(0, own=4.0) == 4.0
    norms.told(0, 10.0)
    assert norms.total(1, own=5.0) == 11.0


def test_one_total_that_overflowed_does_not_spoil_the_next():
    norms = GradientNorms(is_first=False, waits=False)
    norms.total(0, own=4.0)
    norms.told(0, math.inf)
    assert norms.total(1, own=5.0) == 5.0


def test_who_waits_gets_the_total_itself():
    norms = GradientNorms(is_first=False, waits=True)
    norms.told(3, 7.0)
    assert norms.total(3, own=1.0) == 7.0


@pytest.mark.parametrize("told", [range(9, 100, 10), [99]])
def test_nothing_is_kept_of_updates_that_the_first_stage_never_made(told):
    norms = GradientNorms(is_first=False, waits=False)
    for update in range(100):
        norms.total(update, own=1.0)
        if update in told:
            norms.told(update, 2.0)
    assert not norms._own
