"""Several clusters hold more than one does: within everybody's memory, and only if they average."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import Mixed, Mlp, run_clusterize, seeded, word_batches, write_pool
from tables import brute_force, chain_model, cut_costs, provider, random_costs, random_pool

from ravnest.errors import PlanError
from ravnest.planning.costing.costs import AVERAGING_COPIES, TrainingMemory
from ravnest.planning.search.clusters import PlanOptions, form_clusters
from ravnest.planning.search.coarse import coarsen
from ravnest.planning.study import study

BRUTE = brute_force()
ALONE = TrainingMemory()
AVERAGING = TrainingMemory(averages=True)
BATCH = torch.rand(4, 32)


def assert_fits(costs, layout):
    training = AVERAGING if len(layout.clusters) > 1 else ALONE
    for cluster in layout.clusters:
        stages = len(cluster.providers)
        for k, (who, (p, q)) in enumerate(
            zip(cluster.providers, pairwise(cluster.cut.points), strict=True)
        ):
            needs = [costs.memory(p, q, k, stages, training).total]
            if k < stages - 1:
                needs.append(costs.memory(p, q, k, stages, training, recompute=True).total)
            assert min(needs) <= who.memory_bytes


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(2, 5),
    memory_gb=st.sampled_from([(0.5, 4.0), (2.0, 12.0)]),
    may_idle=st.booleans(),
)
def test_small_pools_get_the_best_of_one_and_of_several_clusters(seed, size, memory_gb, may_idle):
    costs = random_costs(seed, 9, averaged=True)
    pool = random_pool(seed, size, memory_gb=memory_gb)
    best = max(
        BRUTE.best_rate(costs, pool, training, min_cluster_size=2, may_idle=may_idle, **most)
        for training, most in ((ALONE, {"max_clusters": 1}), (AVERAGING, {}))
    )
    try:
        layout = form_clusters(costs, pool, PlanOptions(idle_gain=1.0 if may_idle else math.inf))
    except PlanError:
        assert best == 0
        return
    assert_fits(costs, layout)
    if layout.idle and not may_idle:
        assert best == 0
    else:
        assert layout.steps_per_s >= 0.99 * best


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(6, 16))
def test_larger_pools_fit_as_well(seed, size):
    costs = random_costs(seed, 20, averaged=True)
    pool = random_pool(seed, size, memory_gb=(0.2, 4.0))
    try:
        layout = form_clusters(costs, pool, PlanOptions(effort=50, exact_up_to=4))
    except PlanError:
        with pytest.raises(PlanError):
            form_clusters(costs, pool, PlanOptions(max_clusters=1, effort=50, exact_up_to=4))
    else:
        assert_fits(costs, layout)


def chain(*, averaged):
    """Nine operators with 1 MB of weights each, and next to no activations."""
    model = chain_model(9, weight_bytes=10**6, tensor_bytes=10, flops=1e9)
    return cut_costs(model, averaged=averaged)


def test_memory_for_two_clusters_that_do_not_average_is_memory_for_one_that_does():
    """Each of two providers needs 24 MB in training, and 36 MB if they average with two others."""
    pool = [provider(i, memory_gb=0.026) for i in range(4)]
    assert len(form_clusters(chain(averaged=False), pool).clusters) == 2
    (cluster,) = form_clusters(chain(averaged=True), pool).clusters
    assert len(cluster.providers) == 4
    ample = [provider(i, memory_gb=0.038) for i in range(4)]
    assert len(form_clusters(chain(averaged=True), ample).clusters) == 2


def test_one_cluster_does_not_pay_for_averaging():
    for most in (1, None):
        options = PlanOptions(max_clusters=most)
        pool = [provider(i, memory_gb=0.0151) for i in range(4)]
        layout = form_clusters(chain(averaged=True), pool, options)
        assert len(layout.clusters) == 1
        assert layout == form_clusters(chain(averaged=False), pool, options)


def test_it_is_counted_where_a_tensor_is_at_home_and_once():
    """Cuts divide what is averaged without a rest, tied tensors included."""
    studied = study(seeded(Mixed), (word_batches(1)[0],))
    costs, held = studied.costs, studied.held
    whole = sum(held[name].tensor.nbytes for name in studied.changing)
    last = costs.cut_points - 1
    assert costs.averaged_bytes[0, last] == whole
    for middle in range(1, last):
        assert costs.averaged_bytes[0, middle] + costs.averaged_bytes[middle, last] == whole
    assert coarsen(costs, 4).costs.averaged_bytes[0, -1] == whole
    alone, several = (costs.memory(0, last, 0, 1, training) for training in (ALONE, AVERAGING))
    assert (alone.averaging, several.averaging) == (0, AVERAGING_COPIES * whole)
    assert several.total - alone.total == AVERAGING_COPIES * whole
    tables = [costs.memory_at(..., 0, 1, training) for training in (ALONE, AVERAGING)]
    assert (tables[1] - tables[0])[0, last] == AVERAGING_COPIES * whole


@pytest.mark.parametrize(("providers", "clusters"), [(3, 1), (6, 3)])
def test_plans_and_reports_say_what_averaging_takes(tmp_path, providers, clusters):
    planned = run_clusterize(seeded(Mlp, 10), (BATCH,), write_pool(tmp_path, providers))
    assert len(planned.plan.clusters) == clusters
    owned = {
        stage.provider.id: sum(
            ring.bytes for ring in planned.plan.rings if stage.provider.id in ring.owners
        )
        for _, stage in planned.stages
    }
    for _, stage in planned.stages:
        expected = AVERAGING_COPIES * owned[stage.provider.id] if clusters > 1 else 0
        assert stage.memory.averaging == expected
    assert ("of a provider's memory" in planned.printed) == (clusters > 1)


def test_the_figure_for_one_machine_is_without_averaging(tmp_path):
    planned = run_clusterize(seeded(Mlp, 10), (BATCH,), write_pool(tmp_path, 6))
    costs = study(seeded(Mlp, 10), (BATCH,)).costs
    whole = costs.memory(0, costs.cut_points - 1, 0, 1, ALONE).total
    assert planned.plan.model.training_bytes == whole
