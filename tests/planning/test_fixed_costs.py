"""What a stage costs however little it computes: in tables, search, plan and verdict."""

import json
import math
import random
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import Mlp, seeded
from tables import brute_force, chain_model, cut_costs, provider, random_costs, random_pool
from torch import nn

from ravnest import clusterize
from ravnest.planning.costing import costs as costing
from ravnest.planning.costing.costs import CutCosts, Division, TrainingMemory
from ravnest.planning.costing.fixed import BORDER_S, CALL_S, PART_S, UPDATE_S
from ravnest.planning.planner import with_larger_parts
from ravnest.planning.report import verdict
from ravnest.planning.search.clusters import PlanOptions, form_clusters
from ravnest.planning.search.partition import StageTables, best_cut
from ravnest.planning.search.pricing import Prices
from ravnest.planning.search.scan import Scanner
from ravnest.planning.study import study

BRUTE = brute_force()
DIVIDED = TrainingMemory(division=Division(batch_rows=64, least_rows=1))
"""Two more micro-batches for every further stage."""
AMPLE = (64.0, 128.0)
"""GB of memory with which nothing depends on memory."""


def scaled(costs: CutCosts, share: float) -> CutCosts:
    """The same model with so much more or less to compute and to send."""
    return replace(
        costs,
        compute_s=costs.compute_s * share,
        forward_s=costs.forward_s * share,
        forward_bytes=costs.forward_bytes * share,
        backward_bytes=costs.backward_bytes * share,
        tied_bytes=costs.tied_bytes * share,
    )


SHARES = st.sampled_from([1.0, 1e-2, 1e-3, 1e-5])


# ---- tables -----------------------------------------------------------------------------------


def test_calls_and_updates_are_counted():
    """A linear layer, an activation, another layer: the forward once, the backward twice."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4, bias=False))
    costs = study(model, (torch.randn(3, 4),)).costs
    assert costs.calls[-1] == 3 * 3
    assert costs.updates[-1] == 3
    assert costs.updates[1] == 2


def test_every_micro_batch_has_its_price_and_every_border():
    costs = cut_costs(chain_model(4, weight_bytes=8, tensor_bytes=8, flops=1.0))
    assert costs.part_seconds(0, 4) == pytest.approx(PART_S + 12 * CALL_S)
    assert costs.part_seconds(0, 2) == pytest.approx(PART_S + 6 * CALL_S + BORDER_S)
    assert costs.part_seconds(1, 2) == pytest.approx(PART_S + 3 * CALL_S + 2 * BORDER_S)
    expected = 5 * costs.part_seconds(1, 3) + 2 * UPDATE_S
    assert costs.fixed_seconds(1, 3, 5) == pytest.approx(expected)
    # Without Ravnest there are calls and updates, but nobody to pass anything to.
    assert costs.alone_seconds(math.inf) == pytest.approx(12 * CALL_S + 4 * UPDATE_S)


def test_the_table_has_what_each_stage_costs():
    costs = random_costs(3, 9)
    last = costs.cut_points
    for parts in (1, 6):
        table = costs.fixed_table(parts, slice(None), slice(None))
        for p in range(last):
            for q in range(p + 1, last):
                assert table[p, q] == pytest.approx(costs.fixed_seconds(p, q, parts))
    part = costs.fixed_table(6, slice(2, 5), slice(4, last))
    assert np.array_equal(part, table[2:5, 4:])


# ---- search -----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), stages=st.integers(1, 4), share=SHARES)
def test_the_best_cut_of_divided_batches_is_the_best_of_all(seed, stages, share):
    costs = scaled(random_costs(seed, 8), share)
    providers = random_pool(seed, stages, memory_gb=AMPLE)
    cut = best_cut(costs, providers, DIVIDED, tolerance=0.0)
    expected = BRUTE.best_step_s(costs, providers, DIVIDED)
    assert (math.inf if cut is None else cut.step_s) == pytest.approx(expected, rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), share=SHARES)
def test_prices_of_divided_batches_depend_on_the_length_of_the_pipeline(seed, share):
    """What is remembered of the end of one pipeline must not be used for a longer one."""
    costs = scaled(random_costs(seed, 12), share)
    pool = random_pool(seed, 6, memory_gb=AMPLE)
    tables = StageTables(costs, DIVIDED)
    prices = Prices(tables, pool)
    scanner = Scanner(tables, prices)
    members = random.Random(seed).sample(range(6), 6)
    for length in (2, 5, 3, 4):  # ends of earlier ones are known by then
        order = tuple(members[-length:])
        cut = best_cut(costs, [pool[kind] for kind in order], DIVIDED, tolerance=0.0)
        expected = math.inf if cut is None else cut.step_s
        assert prices.step_s(order) == pytest.approx(expected, rel=1e-5)
        assert prices.rate(order) <= prices.ceiling(order) * (1 + 1e-5)
        for place in range(length + 1):
            rates = scanner.joined(order, place)
            for kind in range(6):
                exact = prices.rate((*order[:place], kind, *order[place:]))
                assert rates[kind] <= exact * (1 + 1e-5)
                if place in (0, length):
                    assert rates[kind] == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("share", [1.0, 1e-3, 1e-5])
def test_branch_and_bound_finds_the_best_order_of_divided_batches(share):
    for seed in range(6):
        costs = scaled(random_costs(seed, 12), share)
        prices = Prices(StageTables(costs, DIVIDED), random_pool(seed, 4, memory_gb=AMPLE))
        rate, order = prices.best_order((0, 1, 2, 3))
        assert rate == prices.rate(order) == max(map(prices.rate, permutations(range(4))))


@pytest.mark.parametrize("share", [1e-2, 1e-4])
@pytest.mark.parametrize("smallest", [1, 2])
def test_small_pools_get_the_best_plan_for_a_tiny_model(share, smallest):
    for seed in range(8):
        costs = scaled(random_costs(seed, 8), share)
        pool = random_pool(seed, 4, memory_gb=AMPLE)
        best = BRUTE.best_rate(costs, pool, DIVIDED, min_cluster_size=smallest)
        options = PlanOptions(min_cluster_size=smallest, idle_gain=1.0, training=DIVIDED)
        assert form_clusters(costs, pool, options).steps_per_s == pytest.approx(best, rel=0.005)


def test_more_stages_are_no_gain_where_there_is_nothing_to_compute():
    """Four equal machines: one pipeline of two stages is worth more than one of four."""
    costs = scaled(cut_costs(chain_model(8, weight_bytes=10, tensor_bytes=10, flops=1e9)), 1e-4)
    options = PlanOptions(max_clusters=1, idle_gain=1.0, training=DIVIDED)
    layout = form_clusters(costs, [provider(i) for i in range(4)], options)
    assert [len(cluster.providers) for cluster in layout.clusters] == [2]
    assert all("what one more stage costs the others" in reason for _, reason in layout.idle)


def test_the_plan_of_a_large_model_is_what_it_was(monkeypatch):
    """Where a batch takes seconds, clusters and cuts are the same, and the rate within 1 %."""
    cases = [(scaled(random_costs(seed, 40), 10), random_pool(seed, 5)) for seed in range(6)]
    options = PlanOptions(training=DIVIDED)

    def layouts():
        return [form_clusters(costs, pool, options) for costs, pool in cases]

    def members(layout):
        return [[who.id for who in cluster.providers] for cluster in layout.clusters]

    found = layouts()
    for name in ("CALL_S", "UPDATE_S", "PART_S", "BORDER_S"):
        monkeypatch.setattr(costing, name, 0.0)
    pairs = list(zip(found, layouts(), strict=True))
    for now, without in pairs:
        assert members(now) == members(without)
        assert [c.cut.points for c in now.clusters] == [c.cut.points for c in without.clusters]
        assert now.steps_per_s == pytest.approx(without.steps_per_s, rel=0.01)
    # Those that links do not limit are a little slower: the costs were really left out.
    assert any(now.steps_per_s < without.steps_per_s for now, without in pairs)


# ---- plan and verdict -------------------------------------------------------------------------


def planned(folder, model, example, machines=2, **options):
    pool = {
        str(n): {
            "IP": f"10.0.0.{n}:9000",
            "benchmarks": {"ram": 8, "bandwidth": 10_000, "gflops": 50},
        }
        for n in range(machines)
    }
    (folder / "node_configs.json").write_text(json.dumps(pool))
    return clusterize(model, (example,), node_data=folder, quiet=True, **options)


def test_nobody_is_promised_that_two_machines_train_a_tiny_model_faster(tmp_path):
    plan = planned(tmp_path, seeded(Mlp, layers=4, width=64), torch.randn(32, 64))
    (cluster,) = plan.clusters
    assert (len(cluster.stages), cluster.micro_batches) == (2, 4)
    assert plan.steps_per_s < 0.5 / plan.single_machine_s
    assert cluster.bottleneck.limit == "fixed"
    text = verdict(plan)
    assert "x SLOWER than one machine" in text
    assert "The fixed costs are the limit" in text
    assert "too small to be worth dividing" in text
    assert "min_cluster_size=1" in text


def test_a_tiny_model_stays_whole_where_that_is_allowed(tmp_path):
    model = seeded(Mlp, layers=4, width=64)
    plan = planned(tmp_path, model, torch.randn(32, 64), min_cluster_size=1)
    assert [len(cluster.stages) for cluster in plan.clusters] == [1, 1]


def test_a_large_model_is_still_divided_to_gain(tmp_path):
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(16)))
    plan = planned(tmp_path, model, torch.empty(1024, 2048, device="meta"))
    (cluster,) = plan.clusters
    assert plan.steps_per_s == pytest.approx(2 / plan.single_machine_s, rel=0.05)
    assert cluster.bottleneck.limit == "compute"
    assert verdict(plan).startswith("Verdict: 2x as fast as one machine")


def test_figures_of_stages_and_clusters_agree(tmp_path):
    plan = planned(tmp_path, seeded(Mlp, layers=8), torch.randn(32, 32), machines=3)
    for cluster in plan.clusters:
        for stage in cluster.stages:
            assert 0 < cluster.micro_batches * stage.part_s < stage.fixed_s
            assert stage.busy_s == stage.compute_s + stage.fixed_s
        assert cluster.step_s == max(max(s.busy_s, s.link_s) for s in cluster.stages)


def test_larger_parts_cost_less(tmp_path):
    """Where single rows do not work, batches are divided into fewer parts after the fact."""
    plan = planned(tmp_path, seeded(Mlp, layers=8), torch.randn(4, 32), micro_batches=4)
    larger = with_larger_parts(plan, least_rows=2)
    assert [cluster.micro_batches for cluster in larger.clusters] == [2]
    for before, after in zip(plan.clusters[0].stages, larger.clusters[0].stages, strict=True):
        assert after.fixed_s == pytest.approx(before.fixed_s - 2 * before.part_s)
    assert larger.steps_per_s > plan.steps_per_s
