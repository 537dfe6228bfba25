"""The parts of the search, each against a slower way to the same answer."""

import math
import random
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import random_costs, random_pool

from ravnest.planning.costing.costs import TrainingMemory
from ravnest.planning.search.grouping import Grouping, Rules, best_start, least_rate, split
from ravnest.planning.search.improve import Search
from ravnest.planning.search.partition import StageTables, best_cut
from ravnest.planning.search.pricing import Prices
from ravnest.planning.search.scan import Scanner
from ravnest.planning.search.seating import Seating
from ravnest.planning.search.squeeze import squeeze

TRAINING = TrainingMemory()
RULES = Rules(min_size=2, max_size=8, max_clusters=9, idle_price=1e3)


def posed(seed, size, memory_gb=(1.0, 16.0), operators=20):
    costs, pool = random_costs(seed, operators), random_pool(seed, size, memory_gb=memory_gb)
    tables = StageTables(costs, TRAINING)
    prices = Prices(tables, pool)
    return costs, pool, prices, Scanner(tables, prices)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 8))
def test_prices_agree_with_the_best_cut(seed, length):
    costs, pool, prices, _ = posed(seed, 8)
    order = tuple(random.Random(seed).sample(range(8), length))
    for _ in range(4):  # each time another part of the answer is remembered
        cut = best_cut(costs, [pool[kind] for kind in order], TRAINING, tolerance=0.0)
        expected = math.inf if cut is None else cut.step_s
        assert prices.step_s(order) == pytest.approx(expected, rel=1e-5)
        assert prices.rate(order) <= prices.ceiling(order) * (1 + 1e-5)
        prices.head(order[:-1] or order, length)
        order = (*order[:-1], *[kind for kind in range(8) if kind not in order[:-1]][:1])


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_branch_and_bound_finds_the_best_order(length):
    for seed in range(8):
        _, _, prices, _ = posed(seed, length, memory_gb=(0.6, 4.0))
        rate, order = prices.best_order(tuple(range(length)))
        best = max(prices.rate(order) for order in permutations(range(length)))
        assert rate == best == prices.rate(order)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), length=st.integers(0, 6))
def test_a_scan_never_promises_too_much_and_is_exact_at_the_ends(seed, length):
    _, _, prices, scanner = posed(seed, 9, memory_gb=(0.6, 4.0))
    order = tuple(random.Random(seed).sample(range(9), length))
    for place in range(length + 1):
        rates = scanner.joined(order, place)
        for kind in range(9):
            exact = prices.rate((*order[:place], kind, *order[place:]))
            assert rates[kind] <= exact * (1 + 1e-5)
            if place in (0, length):
                assert rates[kind] == pytest.approx(exact, rel=1e-5)


def test_promised_gains_are_kept():
    _, _, prices, scanner = posed(1, 9)
    start = Grouping([(0, 1, 2), (3, 4), (5, 6)], [7, 8])
    seating = Seating(prices, scanner, RULES, start)
    promises = 0
    for cluster in list(seating.seats):
        for change in seating.near.changes(cluster, RULES.idle_price):
            if not math.isfinite(change.gain):
                continue
            search = Search(prices, scanner, RULES, start, random.Random(0))
            before = search._seating.value
            if search._make(change):
                assert search._seating.value - before >= change.gain - 1e-3
                promises += 1
    assert promises


def test_a_seating_can_be_put_back():
    _, _, prices, scanner = posed(2, 9)
    seating = Seating(prices, scanner, RULES, Grouping([(0, 1, 2), (3, 4), (5, 6)], [7, 8]))
    saved, before = seating.save(), sorted(seating.grouping.clusters)
    home = seating.near.home.copy()
    closed = seating.seats[0]
    seating.close(0)
    seating.open([(7, 8)], seating.idle())
    assert seating.idle() == sorted(closed)
    seating.restore(saved)
    assert sorted(seating.grouping.clusters) == before
    assert seating.grouping.idle == [7, 8]
    assert (seating.near.home == home).all()


def test_a_sequence_is_divided_at_its_best():
    _, _, prices, _ = posed(3, 6, memory_gb=(8.0, 32.0))
    rules = Rules(min_size=2, max_size=6, max_clusters=6, idle_price=1e3)
    found = split(prices, range(6), rules, 10**6)
    ways = [[(0, 1), (2, 3), (4, 5)], [(0, 1, 2), (3, 4, 5)], [(0, 1), (2, 3, 4, 5)]]
    for way in ways:
        rate = sum(prices.best_order(members)[0] for members in way)
        assert found.rate(prices) >= rate * (1 - 1e-6)
    assert not found.idle


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_starts_respect_the_number_of_clusters(limit):
    _, _, prices, _ = posed(4, 30)
    rules = Rules(min_size=2, max_size=9, max_clusters=limit, idle_price=1e3)
    start = best_start(prices, range(30), rules, 10**5)
    assert 1 <= len(start.clusters) <= limit
    assert len(start.idle) + sum(map(len, start.clusters)) == 30


def test_more_effort_is_never_worse():
    _, _, prices, scanner = posed(5, 24)
    rules = Rules(min_size=2, max_size=20, max_clusters=24, idle_price=1e3)
    start = best_start(prices, range(24), rules, 10**5)
    search = Search(prices, scanner, rules, start, random.Random(0))
    rates = [start.rate(prices)]
    for _ in range(4):
        search.run(3000)
        rates.append(search.grouping.rate(prices))
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(rates))
    assert rates[-1] > rates[0]


def test_an_order_is_found_that_just_fits():
    for seed in range(5):
        costs, _, prices, _ = posed(seed, 5, memory_gb=(0.8, 3.0))
        tables = StageTables(costs, TRAINING)
        fitting = [o for o in permutations(range(5)) if prices.rate(o) > 0]
        squeezed = squeeze(tables, prices, range(5), range(5, 6), random.Random(0))
        assert squeezed.fits == bool(fitting)
        assert squeezed.fits == (prices.rate(squeezed.order) > 0)
        if not squeezed.fits:
            assert squeezed.need_bytes > squeezed.provider.memory_bytes


@pytest.mark.parametrize(
    ("using_all", "fastest", "gain", "least"),
    [
        (1.0, 1.4, 1.5, None),  # not worth it
        (1.0, 2.0, 1.5, 1.5),  # at least the gain
        (1.0, 9.0, 1.5, 6.0),  # and not far from the fastest
        (1.0, 1.1, 1.0, 1.1),  # nothing but speed
        (1.0, 1.0, 1.0, None),  # nobody is idle for nothing
        (1.0, 1e9, math.inf, None),  # everyone
    ],
)
def test_the_rule_for_idle_providers(using_all, fastest, gain, least):
    assert least_rate(using_all, fastest, gain) == least


def test_kinds_do_not_share_what_they_do_not_have_in_common():
    """Two providers with equal speed but unequal memory once shared a table of seconds."""
    costs, pool, _, _ = posed(6, 2)
    rich, poor = (
        type(pool[0])(id=i, address="a:1", memory_bytes=memory, bandwidth_mbps=100.0, gflops=50.0)
        for i, memory in enumerate((10**12, 10))
    )
    prices = Prices(StageTables(costs, TRAINING), [rich, poor])
    assert prices.rate((0, 0)) > 0
    assert prices.rate((0, 1)) == prices.rate((1, 0)) == 0
    assert np.isinf(prices.step_s((1,)))
