"""Figures in messages: never an exponent, never a row of zeros, always a unit that fits."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.planning import figures


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.000432, "0.000432"),
        (0.5, "0.5"),
        (2.0, "2"),
        (4.2349, "4.23"),
        (9.999, "10"),
        (99.96, "100"),
        (6112.4, "6,112"),
        (1e6, "1,000,000"),
        (float("inf"), "inf"),
        (1e308, "1.00e+308"),
    ],
)
def test_plain_numbers(value, text):
    assert figures.plain(value) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (12, "12 B"),
        (432_000, "432 kB"),
        (20_000, "20 kB"),
        (102_400_000, "102 MB"),
        (8 * 10**9, "8 GB"),
        (1_120 * 10**9, "1,120 GB"),
    ],
)
def test_sizes(number, text):
    assert figures.size(number) == text


def test_two_sizes_can_be_told_apart():
    assert figures.sizes_apart(3.5e9, 4e9) == ("3.5 GB", "4 GB")
    assert figures.sizes_apart(3_500_100_000, 3_500_200_000) == ("3.5001 GB", "3.5002 GB")
    assert figures.sizes_apart(5, 5) == ("5 B", "5 B")


def test_counts_work_and_time():
    assert [figures.count(n) for n in (650, 25_600_000, 70e9)] == ["650", "25.6 M", "70 B"]
    assert [figures.flop(n) for n in (650, 24e9)] == ["650 FLOP", "24 GFLOP"]
    times = [figures.duration(s) for s in (2, 0.0125, 6.4e-6, 0)]
    assert times == ["2 s", "12.5 ms", "6.4 µs", "0 µs"]


def test_rates_are_per_hour_where_a_batch_takes_minutes():
    assert [figures.rate(r) for r in (6104.2, 2, 1 / 120)] == [
        "6,104 batches/s",
        "2 batches/s",
        "30 batches/h",
    ]


def test_one_is_not_plural():
    assert [figures.quantity(n, "stage") for n in (1, 2, 1000)] == [
        "1 stage",
        "2 stages",
        "1,000 stages",
    ]


@given(st.floats(1e-9, 1e15, exclude_max=True))
def test_every_figure_is_close_and_has_no_exponent(value):
    text = figures.plain(value)
    assert re.fullmatch(r"\d{1,3}(,\d{3})*(\.\d*[1-9])?", text)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("epochs", "text"),
    [
        (0.0, "0"),
        (0.0496, "0.04"),
        (0.3, "0.3"),
        (5.999, "5.99"),
        (6.0, "6"),
        (1e308, "1.00000000e+308"),
    ],
)
def test_epochs_are_shown_to_the_hundredth_and_never_as_more(epochs, text):
    assert figures.passed(epochs) == text
