"""Numbers as people write them."""

import pytest
from state_simulation import pool_of, training

from ravnest.server.state.words import counted, figure, lasting


@pytest.mark.parametrize(
    ("number", "what", "said"),
    [
        (0, "provider", "0 providers"),
        (1, "provider", "1 provider"),
        (2, "batch", "2 batches"),
        (1.0, "batch", "1 batch"),
        (5, "epoch", "5 epochs"),
        (1234, "file", "1,234 files"),
        (2.5, "minute", "2.5 minutes"),
    ],
)
def test_things_are_counted(number, what, said):
    assert counted(number, what) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (5.04, "5 seconds"),
        (90, "1.5 minutes"),
        (3600.1, "1 hour"),
        (172800, "2 days"),
        (0, "0 seconds"),
    ],
)
def test_times_are_told_in_the_unit_that_people_choose(seconds, said):
    assert lasting(seconds) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1234.6, "1,235"),
        (98765432.1, "98,765,432"),
        (123.4, "123"),
        (12.345, "12.3"),
        (0.01234, "0.0123"),
        (0.00001, "less than 0.001"),
        (0.0, "0"),
        (7.0, "7"),
    ],
)
def test_figures_have_no_powers_of_ten(number, said):
    assert figure(number) == said


def test_one_provider_is_one_provider_in_everything_that_is_said():
    sim = pool_of(1)
    training(sim)
    said = " ".join(note.text for note in sim.notes)
    assert "1 provider in 1 cluster" in said
    assert "run 1 begins with 1 provider" in said
    assert "1 providers" not in said
