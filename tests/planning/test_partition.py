"""The best cut for an order of providers: against all cuts, and on models of known answer."""

from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import (
    FakeModel,
    Storage,
    brute_force,
    chain_model,
    cut_costs,
    provider,
    random_costs,
    random_pool,
    whole_model_bytes,
)

from ravnest.errors import PlanError
from ravnest.plan import ProviderSpec
from ravnest.planning.costing.costs import CutCosts, TrainingMemory
from ravnest.planning.search.clusters import form_clusters
from ravnest.planning.search.coarse import coarsen
from ravnest.planning.search.options import PlanOptions
from ravnest.planning.search.partition import (
    Cut,
    StageTables,
    best_cut,
    most_stages,
    recomputes,
    refine,
)

TRAINING = TrainingMemory()
BRUTE = brute_force()


def traffic(costs: CutCosts, cut: Cut) -> float:
    return sum(costs.sent_bytes(p, q) for p, q in pairwise(cut.points))


def replace_memory(who: ProviderSpec, memory_bytes: int) -> ProviderSpec:
    return msgspec.structs.replace(who, memory_bytes=memory_bytes)


def needs_recomputing(costs, p, q, stage, stages, who, training=TRAINING):
    """Whether a stage fits only if it computes its activations again; fails if not even then."""
    if costs.memory(p, q, stage, stages, training).total <= who.memory_bytes:
        return False
    assert stage < stages - 1
    frugal = costs.memory(p, q, stage, stages, training, recompute=True)
    assert frugal.total <= who.memory_bytes
    return True


def assert_sound(costs, providers, cut, training=TRAINING):
    """Whole model, in order, trainable in every stage, within memory, priced as the tables say."""
    stages = len(providers)
    assert cut.points[0] == 0
    assert cut.points[-1] == costs.cut_points - 1
    assert len(cut.points) == stages + 1
    slowest = 0.0
    for stage, (who, (p, q)) in enumerate(zip(providers, pairwise(cut.points), strict=True)):
        assert p < q
        if costs.parameter_operators[-1] > 0:
            assert costs.parameter_operators[q] > costs.parameter_operators[p]
        again = needs_recomputing(costs, p, q, stage, stages, who, training)
        link = max(costs.sent_bytes(p, q), costs.received_bytes(p, q)) if stages > 1 else 0.0
        compute_s = costs.compute_seconds(p, q, who.gflops, recompute=again)
        compute_s += costs.fixed_seconds(p, q, training.division.parts(stages))
        slowest = max(slowest, compute_s, link / who.bytes_per_s)
    assert cut.step_s == pytest.approx(slowest)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    operators=st.integers(2, 9),
    stages=st.integers(1, 4),
    memory_gb=st.sampled_from([(0.5, 3.0), (2.0, 32.0)]),
    max_versions=st.integers(1, 3),
)
def test_best_cut_is_the_best_of_all_cuts(seed, operators, stages, memory_gb, max_versions):
    training = TrainingMemory(max_versions=max_versions)
    costs = random_costs(seed, operators)
    providers = random_pool(seed, stages, memory_gb=memory_gb)
    expected = BRUTE.best_step_s(costs, providers, training)
    cut = best_cut(costs, providers, training, tolerance=0.0)
    if cut is None:
        assert expected == float("inf")
    else:
        assert cut.step_s == pytest.approx(expected, rel=1e-5)
        assert_sound(costs, providers, cut, training)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), stages=st.integers(2, 5), tolerance=st.floats(0.0, 0.3))
def test_a_tolerance_buys_less_traffic_for_at_most_that_much_speed(seed, stages, tolerance):
    costs, providers = random_costs(seed, 24), random_pool(seed, stages)
    fastest = best_cut(costs, providers, TRAINING, tolerance=0.0)
    lighter = best_cut(costs, providers, TRAINING, tolerance=tolerance)
    if fastest is None:
        assert lighter is None
        return
    assert_sound(costs, providers, lighter)
    assert lighter.step_s <= fastest.step_s * (1 + tolerance) * (1 + 1e-5)
    assert traffic(costs, lighter) <= traffic(costs, fastest) * (1 + 1e-6)


def test_the_default_tolerance_costs_less_than_a_hundredth_of_the_speed():
    for seed in range(50):
        costs, providers = random_costs(seed, 60), random_pool(seed, 3, memory_gb=(4.0, 64.0))
        fastest = best_cut(costs, providers, TRAINING, tolerance=0.0)
        chosen = best_cut(costs, providers, TRAINING)
        assert fastest.step_s / chosen.step_s >= 0.99


def test_between_equally_fast_cuts_the_narrow_one_is_taken():
    # 200 operators, 2 equal providers: cutting at 99, 100 or 101 costs a hundredth at most.
    model = chain_model(200, weight_bytes=1000, tensor_bytes=4000, flops=1e9)
    tensors = list(model.tensors)
    tensors[100] = Storage(10, (100, 101))
    costs = cut_costs(replace(model, tensors=tuple(tensors)))
    providers = [provider(0, mbps=1e6), provider(1, mbps=1e6)]
    assert best_cut(costs, providers, TRAINING, tolerance=0.0).points == (0, 100, 200)
    assert best_cut(costs, providers, TRAINING, tolerance=0.01).points == (0, 101, 200)


def test_work_is_divided_in_proportion_to_speed():
    costs = cut_costs(chain_model(80, weight_bytes=1000, tensor_bytes=10, flops=1e9))
    providers = [provider(i, gflops=g) for i, g in enumerate((40.0, 20.0, 10.0, 10.0))]
    assert best_cut(costs, providers, TRAINING).points == (0, 40, 60, 70, 80)


def test_a_stage_computes_its_activations_again_only_where_memory_asks_for_it():
    costs = cut_costs(chain_model(10, weight_bytes=1000, tensor_bytes=10_000, flops=1e9))
    kept = costs.memory(0, 5, 0, 2, TRAINING).total
    frugal = costs.memory(0, 5, 0, 2, TRAINING, recompute=True).total
    assert frugal < kept
    ample, tight, tiny = (
        [replace_memory(provider(0), size), provider(1)] for size in (kept, kept - 1, frugal - 1)
    )
    assert best_cut(costs, ample, TRAINING).points == (0, 5, 10)
    assert not recomputes(costs, (0, 5, 10), 0, ample[0], TRAINING)
    assert recomputes(costs, (0, 5, 10), 0, tight[0], TRAINING)
    assert not recomputes(costs, (0, 5, 10), 1, tight[0], TRAINING)
    # A third more to compute on the first stage: five operators take as long as the other's seven.
    assert best_cut(costs, tight, TRAINING).points == (0, 4, 10)
    assert_sound(costs, tight, best_cut(costs, tight, TRAINING))
    assert_sound(costs, tiny, best_cut(costs, tiny, TRAINING))


def test_memory_is_a_hard_limit_and_an_exact_fit_fits():
    costs = cut_costs(chain_model(10, weight_bytes=1000, tensor_bytes=100, flops=1e9))
    need = [costs.memory(0, 3, 0, 2, TRAINING).total, costs.memory(3, 10, 1, 2, TRAINING).total]
    exact = [replace_memory(provider(i), need[i]) for i in range(2)]
    assert best_cut(costs, exact, TRAINING).points == (0, 3, 10)
    short = [exact[0], replace_memory(exact[1], need[1] - 1)]
    assert best_cut(costs, short, TRAINING) is None


def test_memory_of_the_machine_beside_a_device_is_a_hard_limit_as_well():
    costs = cut_costs(chain_model(10, weight_bytes=1000, tensor_bytes=100, flops=1e9))
    need = float(costs.host_memory_at((0, 3), 0, 2, TRAINING))
    assert need >= 3000
    exact, short = (
        [msgspec.structs.replace(provider(0), host_memory_bytes=int(size)), provider(1)]
        for size in (need, need - 1)
    )
    assert best_cut(costs, [provider(0), provider(1)], TRAINING).points == (0, 5, 10)
    assert best_cut(costs, exact, TRAINING).points == (0, 3, 10)
    assert best_cut(costs, short, TRAINING).points == (0, 2, 10)
    none = [msgspec.structs.replace(each, host_memory_bytes=500) for each in exact]
    assert best_cut(costs, none, TRAINING) is None
    with pytest.raises(PlanError, match="not in the 500 B of the machine's memory beside it"):
        form_clusters(costs, none, PlanOptions())


def test_early_stages_need_more_memory_so_the_order_decides_whether_it_fits():
    costs = cut_costs(chain_model(8, weight_bytes=10, tensor_bytes=1000, flops=1e9))
    large, small = provider(0), replace_memory(provider(1), 5000)
    assert best_cut(costs, [large, small], TRAINING) is not None
    assert best_cut(costs, [small, large], TRAINING).points[1] < 4


def test_one_stage_has_no_link():
    costs = random_costs(3, 12)
    alone = best_cut(costs, [provider(0, mbps=1e-3, memory_gb=64)], TRAINING)
    assert alone.points == (0, costs.cut_points - 1)
    end = costs.cut_points - 1
    assert alone.step_s == pytest.approx(costs.compute_s[-1] + costs.fixed_seconds(0, end, 1))
    assert best_cut(costs, [provider(0, memory_gb=0.001)], TRAINING) is None


def test_a_link_of_nothing_is_very_slow_but_not_an_error():
    costs = random_costs(3, 12)
    cut = best_cut(costs, [provider(0, memory_gb=64), provider(1, mbps=0.0)], TRAINING)
    assert cut is None or cut.step_s > 1e9


def test_every_stage_has_something_to_train():
    model = chain_model(9, weight_bytes=1000, tensor_bytes=10, flops=1e9)
    sparse = cut_costs(replace(model, weights=model.weights[4:6]))
    assert most_stages(sparse) == 2
    cut = best_cut(sparse, [provider(0), provider(1)], TRAINING)
    assert cut.points == (0, 5, 9)
    assert best_cut(sparse, [provider(i) for i in range(3)], TRAINING) is None


def test_a_model_without_trainable_parameters_may_be_cut_anywhere():
    model = chain_model(6, weight_bytes=1000, tensor_bytes=10, flops=1e9)
    frozen = cut_costs(replace(model, weights=(), frozen=model.weights))
    assert most_stages(frozen) == 6
    assert best_cut(frozen, [provider(i) for i in range(3)], TRAINING).points == (0, 2, 4, 6)


def test_more_stages_than_places_do_not_fit():
    costs = cut_costs(chain_model(3, weight_bytes=1000, tensor_bytes=10, flops=1e9))
    assert best_cut(costs, [provider(i) for i in range(4)], TRAINING) is None


def test_shared_tables_change_nothing():
    costs, providers = random_costs(5, 40), random_pool(5, 4)
    tables = StageTables(costs, TRAINING)
    alone = [best_cut(costs, providers[:k], TRAINING) for k in (1, 2, 3, 4)]
    assert [best_cut(costs, providers[:k], TRAINING, tables=tables) for k in (1, 2, 3, 4)] == alone


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(3, 300), limit=st.integers(3, 80))
def test_coarse_tables_are_the_full_ones_at_fewer_points(seed, operators, limit):
    costs = random_costs(seed, operators)
    coarse = coarsen(costs, limit)
    points = coarse.points
    assert len(points) == coarse.costs.cut_points <= max(limit, 3)
    assert points[0] == 0
    assert points[-1] == costs.cut_points - 1
    assert (np.diff(points) > 0).all()
    assert coarse.costs.weight_bytes[1, 2] == costs.weight_bytes[points[1], points[2]]
    assert (coarse.costs.parameter_operators == costs.parameter_operators[points]).all()


def test_a_small_table_is_its_own_coarse_table():
    costs = random_costs(1, 30)
    assert coarsen(costs, 31).costs is costs


def test_coarse_points_are_narrow_and_spread_over_the_model():
    costs = random_costs(2, 1000)
    points = coarsen(costs, 64).points
    crossing = costs.forward_bytes + costs.backward_bytes
    assert crossing[points[1:-1]].mean() < 0.75 * crossing[1:-1].mean()
    shares = np.diff(costs.compute_s[points]) / costs.compute_s[-1]
    assert shares.max() < 0.1


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), stages=st.integers(2, 6))
def test_refinement_only_improves_a_coarse_cut(seed, stages):
    costs, providers = random_costs(seed, 400), random_pool(seed, stages)
    coarse = coarsen(costs, 48)
    rough = best_cut(coarse.costs, providers, TRAINING, tolerance=0.0)
    if rough is None:
        return
    fine = refine(costs, coarse, providers, TRAINING, rough, tolerance=0.0)
    assert_sound(costs, providers, fine)
    assert fine.step_s <= rough.step_s * (1 + 1e-6)
    best = best_cut(costs, providers, TRAINING, tolerance=0.0)
    assert fine.step_s >= best.step_s * (1 - 1e-6)


def test_refinement_comes_close_to_the_full_search():
    ratios = []
    for seed in range(12):
        costs, providers = random_costs(seed, 600), random_pool(seed, 3, memory_gb=(8, 32))
        coarse = coarsen(costs, 128)
        rough = best_cut(coarse.costs, providers, TRAINING, tolerance=0.0)
        fine = refine(costs, coarse, providers, TRAINING, rough, tolerance=0.0)
        best = best_cut(costs, providers, TRAINING, tolerance=0.0)
        ratios.append(best.step_s / fine.step_s)
    assert np.mean(ratios) > 0.99
    assert min(ratios) > 0.95


@given(stages=st.integers(1, 9), stage=st.integers(0, 8), max_versions=st.integers(1, 4))
def test_memory_depends_on_the_distance_from_the_end_only(stages, stage, max_versions):
    """The search relies on it: tails of pipelines are priced once, whatever runs before them."""
    if stage < stages:
        training = TrainingMemory(max_versions=max_versions)
        costs = random_costs(0, 6)
        expected = costs.memory_at(..., stage, stages, training)
        assert (StageTables(costs, training).memory(stages - stage) == expected).all()


def test_weights_shared_by_distant_operators_count_once_in_a_stage():
    """Guards the table builder that all these tests stand on."""
    tied = FakeModel(
        flops=np.ones(4),
        working=np.array([1.0, 5.0, 2.0, 3.0]),
        weights=(Storage(100, (0, 3)), Storage(10, (1,))),
        frozen=(Storage(7, (2,)),),
        tensors=(Storage(8, (0, 2)),),
    )
    costs = cut_costs(tied)
    assert costs.weight_bytes[0, 4] == 117
    assert costs.weight_bytes[0, 2] == 110
    assert costs.weight_bytes[2, 4] == 107
    assert costs.tied_bytes[0, 2] == costs.tied_bytes[2, 4] == 100
    assert costs.tied_bytes[0, 4] == 0
    assert costs.forward_bytes.tolist() == [0, 8, 8, 0, 0]
    assert costs.working_bytes[0, 3] == 5
    assert costs.parameter_operators.tolist() == [0, 1, 2, 2, 3]
    assert whole_model_bytes(costs) == 117 + 110 * 3 + 8 + 5
