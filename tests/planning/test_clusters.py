"""Who works with whom: against brute force on tiny pools, and by its promises on all others."""

import math
import re
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tables import (
    brute_force,
    chain_model,
    cut_costs,
    provider,
    random_costs,
    random_pool,
    whole_model_bytes,
)

from ravnest.errors import PlanError
from ravnest.planning.costing.costs import TrainingMemory
from ravnest.planning.search.clusters import Layout, PlanOptions, form_clusters

TRAINING = TrainingMemory()
BRUTE = brute_force()
SEARCHED = {"exact_up_to": 0, "effort": 300}
"""Options that switch the exact solution of small pools off."""


def chain(operators: int = 24, *, tensor_bytes: int = 1000):
    """Equal operators of 1 GFLOP and 1 MB of weights, 4 MB in training."""
    return cut_costs(
        chain_model(operators, weight_bytes=10**6, tensor_bytes=tensor_bytes, flops=1e9)
    )


def ids(layout: Layout) -> list[list[int]]:
    return [[who.id for who in cluster.providers] for cluster in layout.clusters]


def placed_ids(layout: Layout) -> list[int]:
    return [who for members in ids(layout) for who in members]


def reasons(layout: Layout) -> dict[int, str]:
    return {who.id: reason for who, reason in layout.idle}


def assert_sound(costs, pool, layout, options):
    """Everyone once, whole models, memory respected, sizes respected, reasons given."""
    placed = [who for cluster in layout.clusters for who in cluster.providers]
    everyone = placed + [who for who, _ in layout.idle]
    assert sorted(who.id for who in everyone) == sorted(who.id for who in pool)
    assert all(reason for _, reason in layout.idle)
    assert len(layout.clusters) <= (options.max_clusters or math.inf)
    for cluster in layout.clusters:
        points, stages = cluster.cut.points, len(cluster.providers)
        assert points[0] == 0
        assert points[-1] == costs.cut_points - 1
        assert len(points) == stages + 1
        for stage, (who, (p, q)) in enumerate(
            zip(cluster.providers, pairwise(points), strict=True)
        ):
            frugal = stage < stages - 1
            need = min(
                costs.memory(p, q, stage, stages, options.training, recompute=again).total
                for again in {False, frugal}
            )
            assert need <= who.memory_bytes
    steps = [cluster.cut.step_s for cluster in layout.clusters]
    assert steps == sorted(steps)


# -- quality ---------------------------------------------------------------------------------------


def ratio_to_best(seed, size, memory_gb, *, may_idle, **options):
    costs, pool = random_costs(seed, 9), random_pool(seed, size, memory_gb=memory_gb)
    best = BRUTE.best_rate(costs, pool, TRAINING, min_cluster_size=2, may_idle=may_idle)
    options = PlanOptions(idle_gain=1.0 if may_idle else math.inf, **options)
    try:
        layout = form_clusters(costs, pool, options)
    except PlanError:
        return 1.0 if best == 0.0 else 0.0
    assert_sound(costs, pool, layout, options)
    if layout.idle and not may_idle:
        return 1.0 if best == 0.0 else 0.0
    return layout.steps_per_s / best


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 5),
    memory_gb=st.sampled_from([(0.5, 4.0), (2.0, 32.0)]),
    may_idle=st.booleans(),
)
def test_small_pools_get_the_best_plan(seed, size, memory_gb, may_idle):
    assert ratio_to_best(seed, size, memory_gb, may_idle=may_idle) >= 0.99


@pytest.mark.parametrize("may_idle", [True, False])
@pytest.mark.parametrize("memory_gb", [(0.5, 4.0), (2.0, 32.0)])
def test_the_search_alone_finds_nearly_the_best_plan(memory_gb, may_idle):
    ratios = [
        ratio_to_best(seed, 5 + seed % 2, memory_gb, may_idle=may_idle, **SEARCHED)
        for seed in range(12)
    ]
    assert np.mean(ratios) >= 0.99
    assert min(ratios) >= 0.95


@pytest.mark.parametrize("limit", [1, 2])
def test_the_best_plan_with_few_clusters(limit):
    for seed in range(6):
        costs, pool = random_costs(seed, 9), random_pool(seed, 5)
        best = BRUTE.best_rate(
            costs, pool, TRAINING, min_cluster_size=1, max_clusters=limit, may_idle=False
        )
        for exact_up_to in (0, 6):
            options = PlanOptions(
                min_cluster_size=1,
                max_clusters=limit,
                idle_gain=math.inf,
                exact_up_to=exact_up_to,
            )
            layout = form_clusters(costs, pool, options)
            assert_sound(costs, pool, layout, options)
            assert layout.steps_per_s >= 0.95 * best


def test_speeds_4_2_1_1_are_balanced():
    costs = chain(80)
    pool = [provider(i, gflops=g) for i, g in enumerate((40.0, 20.0, 10.0, 10.0))]
    layout = form_clusters(costs, pool, PlanOptions(max_clusters=1))
    assert layout.steps_per_s == pytest.approx(1.0, rel=0.01)  # 80 GFLOP on 80 GFLOP/s


def test_slow_links_are_kept_together():
    costs = chain(tensor_bytes=10**6)
    pool = [provider(i, mbps=1000.0 if i % 2 else 1.0, gflops=1000.0) for i in range(8)]
    layout = form_clusters(costs, pool)
    assert not layout.idle
    for cluster in layout.clusters:
        assert len({who.bandwidth_mbps for who in cluster.providers}) == 1


# -- promises --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 14),
    memory_gb=st.sampled_from([(0.1, 4.0), (1.0, 32.0)]),
    min_cluster_size=st.integers(1, 4),
    max_clusters=st.sampled_from([None, 1, 2, 3]),
    idle_gain=st.sampled_from([1.0, 1.5, math.inf]),
)
def test_everyone_is_placed_once_or_told_why_not(
    seed, size, memory_gb, min_cluster_size, max_clusters, idle_gain
):
    costs, pool = random_costs(seed, 14), random_pool(seed, size, memory_gb=memory_gb)
    options = PlanOptions(min_cluster_size, max_clusters, idle_gain, effort=50)
    try:
        layout = form_clusters(costs, pool, options)
    except PlanError as refusal:
        figures = re.findall(r"[\d.,]+ [kMG]?B", str(refusal))
    else:
        assert_sound(costs, pool, layout, options)
        too_small = [reason for _, reason in layout.idle if "smallest stage" in reason]
        least = min(min_cluster_size, size - len(too_small))
        assert all(len(cluster.providers) >= least for cluster in layout.clusters)
        return
    assert len(figures) >= 2


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(3, 5), exact=st.booleans())
def test_idle_for_speed_means_faster_by_the_gain_asked_for(seed, size, exact):
    costs, pool = random_costs(seed, 9), random_pool(seed, size)
    everyone = BRUTE.best_rate(costs, pool, TRAINING, min_cluster_size=2, may_idle=False)
    fastest = BRUTE.best_rate(costs, pool, TRAINING, min_cluster_size=2)
    assume(everyone > 0)
    options = PlanOptions(idle_gain=1.5, exact_up_to=6 if exact else 0)
    layout = form_clusters(costs, pool, options)
    if layout.idle:
        assert layout.steps_per_s >= 0.99 * 1.5 * everyone
        assert layout.steps_per_s >= 0.99 * fastest / 1.5
    else:
        assert fastest <= 1.5 * everyone * 1.02


@pytest.mark.parametrize("size", [5, 30])
def test_the_same_seed_gives_the_same_plan(size):
    costs, pool = random_costs(7, 40), random_pool(7, size, memory_gb=(1.0, 8.0))
    options = PlanOptions(seed=3, effort=100, exact_up_to=4)
    assert form_clusters(costs, pool, options) == form_clusters(costs, pool, options)


def test_equal_providers_are_interchangeable():
    costs = chain(60)
    layout = form_clusters(costs, [provider(i) for i in range(60)])
    assert sorted(placed_ids(layout)) == list(range(60))
    assert layout.steps_per_s == pytest.approx(60 * 50 / 60, rel=0.02)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tiny_pools(size):
    layout = form_clusters(chain(), [provider(i) for i in range(size)])
    assert sorted(placed_ids(layout)) == list(range(size))
    assert len(layout.clusters) == 1


def test_a_thousand_providers():
    costs = random_costs(1, 24)
    pool = random_pool(1, 1000, memory_gb=(0.05, 16.0))
    options = PlanOptions(effort=20)
    layout = form_clusters(costs, pool, options)
    assert_sound(costs, pool, layout, options)
    assert len(layout.clusters) > 50


def test_a_large_model_is_cut_at_its_own_cut_points():
    costs, pool = random_costs(4, 700), random_pool(4, 5, memory_gb=(2.0, 8.0))
    options = PlanOptions()
    layout = form_clusters(costs, pool, options)
    assert_sound(costs, pool, layout, options)


def test_cluster_sizes_are_respected():
    pool = [provider(i) for i in range(9)]
    for least, clusters in ((1, 9), (2, 4), (3, 3), (4, 2), (9, 1), (20, 1)):
        layout = form_clusters(chain(), pool, PlanOptions(least, idle_gain=math.inf))
        assert min(len(members) for members in ids(layout)) >= min(least, 9)
        assert len(layout.clusters) <= clusters
        assert not layout.idle


def test_a_model_with_few_places_lowers_the_cluster_size():
    layout = form_clusters(chain(2), [provider(i) for i in range(4)], PlanOptions(3))
    assert [len(members) for members in ids(layout)] == [2, 2]


def test_the_number_of_clusters_is_respected():
    pool = random_pool(5, 12, memory_gb=(8.0, 32.0))
    for most in (1, 2, 5):
        layout = form_clusters(random_costs(5, 40), pool, PlanOptions(max_clusters=most))
        assert len(layout.clusters) <= most


# -- idle providers --------------------------------------------------------------------------------


def test_too_little_memory_for_any_stage():
    pool = [provider(0), provider(1), provider(2, memory_gb=0.001)]
    layout = form_clusters(chain(), pool)
    assert ids(layout) == [[0, 1]] or ids(layout) == [[1, 0]]
    reason = reasons(layout)[2]
    assert reason == "1 MB is less than the 4 MB that the smallest stage needs"


def test_a_link_that_spoils_the_cluster():
    costs = chain(tensor_bytes=10**6)
    pool = [provider(i, gflops=1000.0, mbps=1000.0) for i in range(2)]
    pool.append(provider(2, gflops=1000.0, mbps=1.0))
    layout = form_clusters(costs, pool)
    assert list(reasons(layout)) == [2]
    pattern = (
        r"keeping it would slow cluster 0 from (\S+) batches/s to (\S+) batches/s "
        r"because of its 1 Mbit/s"
    )
    before, after = map(float, re.match(pattern, reasons(layout)[2]).groups())
    assert before == pytest.approx(layout.steps_per_s, rel=0.01)
    assert after < before / 1.5
    everyone = form_clusters(costs, pool, PlanOptions(idle_gain=math.inf))
    assert not everyone.idle
    assert everyone.steps_per_s == pytest.approx(after, rel=0.01)


@pytest.mark.parametrize("exact_up_to", [0, 6])
def test_two_bad_links_are_left_out_together(exact_up_to):
    costs = chain(tensor_bytes=10**6)
    pool = [provider(i, gflops=1000.0, mbps=1000.0) for i in range(3)]
    pool += [provider(i, gflops=1000.0, mbps=1.0) for i in (3, 4)]
    options = PlanOptions(max_clusters=1, exact_up_to=exact_up_to)
    layout = form_clusters(costs, pool, options)
    assert sorted(reasons(layout)) == [3, 4]


@pytest.mark.parametrize("exact_up_to", [0, 6])
def test_only_pure_speed_leaves_out_a_slightly_slow_provider(exact_up_to):
    costs = chain(tensor_bytes=10**6)
    # The stage between two others sends twice as much: the fast link goes there.
    pool = [provider(i, gflops=1000.0, mbps=mbps) for i, mbps in enumerate((100, 1000, 90))]
    for gain, idle in ((1.0, [2]), (1.5, [])):
        options = PlanOptions(idle_gain=gain, exact_up_to=exact_up_to)
        assert list(reasons(form_clusters(costs, pool, options))) == idle


def test_more_providers_than_places():
    layout = form_clusters(chain(3), [provider(i) for i in range(5)], PlanOptions(max_clusters=1))
    assert len(layout.idle) == 2
    for reason in reasons(layout).values():
        assert (
            reason
            == "the model can be cut into 3 stages at most, and the only cluster has that many"
        )


def test_a_remainder_that_fits_nowhere():
    # Each large one holds the model; a small one holds one operator, but then as last stage only.
    costs = cut_costs(chain_model(2, weight_bytes=10**6, tensor_bytes=10, flops=1e9))
    small = provider(1, memory_gb=0.0042)
    pool = [provider(0), small, msgspec.structs.replace(small, id=2)]
    layout = form_clusters(costs, pool, PlanOptions(max_clusters=1))
    assert len(layout.clusters) == 1
    assert len(layout.idle) == 1
    assert "at most" in layout.idle[0][1]


# -- refusals --------------------------------------------------------------------------------------


def test_an_empty_pool():
    with pytest.raises(PlanError, match="no providers"):
        form_clusters(chain(), [])


def test_too_little_memory_in_total():
    costs = chain()
    pool = [provider(i, memory_gb=0.02) for i in range(3)]
    with pytest.raises(PlanError, match=r"needs at least 96 MB") as refusal:
        form_clusters(costs, pool)
    assert whole_model_bytes(costs) == pytest.approx(0.096e9, rel=0.01)
    assert "pool of 3 providers has 60 MB in total" in str(refusal.value)
    assert isinstance(refusal.value, ValueError)


def test_an_operator_too_large_for_every_provider():
    costs = cut_costs(chain_model(2, weight_bytes=10**9, tensor_bytes=10, flops=1e9))
    with pytest.raises(PlanError, match=r"cannot be cut needs 4 GB.*provider 0 .*has 3.5 GB"):
        form_clusters(costs, [provider(i, memory_gb=3.5 - i / 10) for i in range(4)])


def test_enough_memory_in_total_but_not_where_it_is_needed():
    # A stage in the middle holds two micro-batches of what it was given, even if it computes all
    # else again, and what it sends and receives, forward and back.
    costs = cut_costs(chain_model(3, weight_bytes=1000, tensor_bytes=10**9, flops=1e9))
    pool = [provider(i, memory_gb=7.9) for i in range(3)]
    with pytest.raises(PlanError, match=r"needs 8 GB on provider \d .*has 7.9 GB") as refusal:
        form_clusters(costs, pool, PlanOptions(3))
    assert "23.7 GB in total" in str(refusal.value)
    alone = form_clusters(costs, pool, PlanOptions(1))
    assert [len(members) for members in ids(alone)] == [1, 1, 1]


@pytest.mark.parametrize(
    "wrong",
    [{"min_cluster_size": 0}, {"max_clusters": 0}, {"idle_gain": 0.9}, {"idle_gain": math.nan}],
)
def test_impossible_options(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        PlanOptions(**wrong)
