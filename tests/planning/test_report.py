"""The report: figures a person can check by hand, and a verdict that also says "slower"."""

import re
from itertools import pairwise

import pytest

from ravnest.plan import (
    ClusterPlan,
    IdleProvider,
    MemoryEstimate,
    ModelSummary,
    Plan,
    ProviderSpec,
    RingPlan,
    StagePlan,
)
from ravnest.planning.report import node_blocks, render_report, verdict


def provider(number, *, memory_gb=8.0, gflops=50.0):
    return ProviderSpec(
        id=number,
        address=f"10.0.{number // 256}.{number % 256}:8080",
        memory_bytes=int(memory_gb * 1e9),
        bandwidth_mbps=100.0,
        gflops=gflops,
    )


def stage(index, stages, who, *, compute_s=0.5, link_s=0.1, fixed_s=0.0):
    role = "Root" if index == 0 else "Leaf" if index == stages - 1 else "Stem"
    return StagePlan(
        index=index,
        provider=who,
        role=role,
        start=10 * index,
        stop=10 * index + 10,
        parameters=1_500_000 + index,
        first_parameter=f"layer{index}.weight",
        flops=10**9,
        compute_s=compute_s,
        sent_bytes=2_000_000,
        received_bytes=3_000,
        tied_bytes=0,
        link_s=link_s,
        fixed_s=fixed_s,
        in_flight=stages - index,
        memory=MemoryEstimate(
            weights=10**9,
            gradients=10**9,
            optimizer=2 * 10**9,
            versions=0,
            activations=234_000_000,
            working=0,
        ),
    )


def cluster(number, *stages):
    return ClusterPlan(id=number, stages=stages)


def plan(clusters, *, single_machine_s=1.0, training_gb=4.0, idle=(), warnings=()):
    """One ring per stage of the first cluster, which is enough for a report."""
    stages = len(clusters[0].stages)
    return Plan(
        plan_id="abc",
        model=ModelSummary(
            name="Net",
            parameters=25_600_000,
            parameter_bytes=102_400_000,
            training_bytes=int(training_gb * 1e9),
            operators=10 * stages,
            batch_size=64,
            flops=24 * 10**9,
        ),
        clusters=tuple(clusters),
        rings=tuple(
            RingPlan(
                id=number,
                names=(f"layer{number}.weight", f"layer{number}.bias"),
                first_parameter=f"layer{number}.weight",
                bytes=51_200_000,
                owners=tuple(
                    c.stages[min(number, len(c.stages) - 1)].provider.id for c in clusters
                ),
            )
            for number in range(stages)
        ),
        idle=tuple(IdleProvider(provider=who, reason=why) for who, why in idle),
        single_machine_s=single_machine_s,
        warnings=tuple(warnings),
    )


def row_of(report, number):
    (row,) = re.findall(rf"^  node_{number} .*$", report, re.MULTILINE)
    return row


# ---- figures ----------------------------------------------------------------------------------


def test_every_figure_of_a_stage_is_there():
    """Role, parameters, memory and its limit, both directions, all times: one row per provider."""
    pair = [
        stage(0, 2, provider(3), fixed_s=0.0031),
        stage(1, 2, provider(1), compute_s=0.0125, link_s=2),
    ]
    report = render_report(plan([cluster(0, *pair)]))
    assert 'Optimizer: of those measured in pipelines "muon" needs the fewest steps' in report
    row = row_of(report, 3)
    figures = ("10.0.0.3:8080", "Root", "1.5 M", "4.23 GB / 8 GB", "500 ms", "3.1 ms", "100 ms")
    for figure in figures:
        assert figure in row
    assert "2 MB + 3 kB" in row
    assert "Leaf" in row_of(report, 1)
    assert "12.5 ms" in row_of(report, 1)
    assert "2 s" in row_of(report, 1)


def test_the_heading_sums_up_the_model():
    first = render_report(plan([cluster(0, stage(0, 1, provider(0)))])).splitlines()[0]
    for figure in ("Net: 25.6 M parameters", "102 MB", "4 GB", "24 GFLOP", "batch of 64"):
        assert figure in first


@pytest.mark.parametrize(
    ("compute_s", "fixed_s", "link_s", "limit"),
    [
        (0.5, 0.0, 0.1, "computing"),
        (0.1, 0.0, 0.5, "the link"),
        (0.3, 0.2, 0.4, "computing"),
        (0.2, 0.3, 0.4, "the fixed costs"),
    ],
)
def test_the_bottleneck_is_named_and_marked_once(compute_s, fixed_s, link_s, limit):
    stages = [
        stage(0, 3, provider(0), compute_s=0.01, link_s=0.01),
        stage(1, 3, provider(1), compute_s=compute_s, fixed_s=fixed_s, link_s=link_s),
        stage(2, 3, provider(2), compute_s=0.02, link_s=0.02),
    ]
    report = render_report(plan([cluster(0, *stages)]))
    assert f"Cluster 0: 2 batches/s, limited by {limit} of node_1" in report
    assert report.count("<- bottleneck") == 1
    assert row_of(report, 1).endswith("<- bottleneck")


def test_a_cluster_of_one_is_root_and_leaf():
    report = render_report(plan([cluster(0, stage(0, 1, provider(0)))]))
    assert "Root+Leaf" in row_of(report, 0)
    assert "Optimizer:" not in report, "one stage has no old gradients"
    assert "One cluster: nothing to average." in report


def test_rings_and_slow_runs_in_words():
    """Two rings of two tensors; a batch in two minutes is given per hour."""
    pairs = [
        cluster(c, *(stage(i, 2, provider(2 * c + i), compute_s=120) for i in (0, 1)))
        for c in (0, 1)
    ]
    report = render_report(plan(pairs))
    assert "2 rings average 4 tensors over 2 clusters" in report
    assert "a round sends about 102 MB from each cluster, in at least 4.1 s" in report
    assert "reduce_factor=1 " in report
    assert "Cluster 1: 30 batches/h" in report


def test_rounds_as_often_as_they_fit():
    """Each of four providers sends 51.2 MB over 12.5 MB/s: 4.1 s, or 8.2 s with as long a pause.
    The slower of two clusters does not count: the faster one would have to wait for links. In 16.4
    updates of that there is time for 3.9 times as many rounds in int8, which are as good."""
    pairs = [
        cluster(c, *(stage(i, 2, provider(2 * c + i), compute_s=compute_s) for i in (0, 1)))
        for c, compute_s in enumerate((0.5, 5.0))
    ]
    report = render_report(plan(pairs))
    assert "reduce_factor=5 with compression={'rings': 'int8'} keeps links" in report


def test_idle_providers_and_warnings_are_shown():
    given = plan(
        [cluster(0, stage(0, 1, provider(0)))],
        idle=[(provider(5), "its 8 GB are too little")],
        warnings=["batches of exactly 64 rows"],
    )
    report = render_report(given)
    assert "Idle: node_5 (10.0.0.5:8080): its 8 GB are too little" in report
    assert "Note: batches of exactly 64 rows" in report
    assert node_blocks(given).endswith(
        "Node(5, idle) \nself.IP(10.0.0.5:8080) \nits 8 GB are too little\n"
    )


# ---- the verdict ------------------------------------------------------------------------------


def pair(step_s, **options):
    """One cluster of two that takes `step_s`, against one second alone."""
    memory_gb = options.pop("memory_gb", 8.0)
    stages = (stage(i, 2, provider(i, memory_gb=memory_gb), compute_s=step_s) for i in (0, 1))
    return plan([cluster(0, *stages)], **options)


@pytest.mark.parametrize(
    ("step_s", "words"),
    [
        (0.5, "2x as fast as one machine: 2 batches/s (128 samples/s) with 2 providers, 1 batch"),
        (1 / 1.06, "1.1x as fast"),
        (1.0, "no faster than one machine"),
        (1 / 0.96, "no faster than one machine"),
        (1.1, "1.1x SLOWER than one machine"),
        (2082.8, "2,083x SLOWER than one machine"),
        (4.0, "4x SLOWER than one machine"),
    ],
)
def test_faster_equal_and_slower(step_s, words):
    assert verdict(pair(step_s)).startswith(f"Verdict: {words}")
    assert "could hold" not in verdict(pair(step_s))


@pytest.mark.parametrize("idle", [(), [(provider(1, gflops=20), "not needed")]])
def test_one_machine_is_not_compared_with_itself(idle):
    """Its worker costs a little, and it would be told to train on one machine."""
    alone = [cluster(0, stage(0, 1, provider(0), compute_s=1.1))]
    text = verdict(plan(alone, idle=idle))
    assert text == (
        "Verdict: one machine trains the whole model, nothing is divided: "
        "0.909 batches/s (58.2 samples/s)."
    )


def test_one_machine_is_compared_with_a_faster_one_that_is_idle():
    alone = [cluster(0, stage(0, 1, provider(0), compute_s=4))]
    text = verdict(plan(alone, idle=[(provider(1, gflops=200), "not needed")]))
    assert text.startswith("Verdict: 4x SLOWER than one machine")
    assert "min_cluster_size" not in text


@pytest.mark.parametrize("step_s", [0.5, 1.0, 4.0])
def test_no_provider_can_hold_the_model(step_s):
    """The comparison is with a machine that nobody has, and every verdict says so."""
    assert "which no provider can)" in verdict(pair(step_s, memory_gb=3.0))


def test_the_fastest_machine_may_be_too_small_while_another_is_not():
    """Then the model fits somewhere, but training on the fastest alone is no way out."""
    small, large = provider(0, memory_gb=1, gflops=100), provider(1, memory_gb=64, gflops=50)
    pair = cluster(0, stage(0, 2, small, compute_s=4), stage(1, 2, large, compute_s=4))
    text = verdict(plan([pair]))
    assert "which it cannot)" in text
    assert "train on one machine" not in text


def test_an_idle_machine_that_can_hold_the_model_counts():
    given = pair(1.0, memory_gb=1.0, idle=[(provider(2, memory_gb=64), "not needed")])
    assert "could hold" not in verdict(given)
    assert "For speed alone, train on one machine." in verdict(given)


@pytest.mark.parametrize(
    ("compute_s", "link_s", "memory_gb", "advice"),
    [
        (0.1, 4.0, 8, "The links are the limit"),
        (4.0, 0.1, 8, "faster providers, or fewer slow ones"),
        (0.1, 4.0, 8, "twice the width, twice the traffic, four times the computing"),
        (4.0, 0.1, 8, "min_cluster_size=1 lets the 2 providers with 4 GB or more train the whole "),
        (4.0, 0.1, 3, "What the pool gives you here is memory, not speed."),
    ],
)
def test_a_slow_plan_comes_with_advice(compute_s, link_s, memory_gb, advice):
    who = [provider(i, memory_gb=memory_gb) for i in (0, 1)]
    pair = [stage(i, 2, who[i], compute_s=compute_s, link_s=link_s) for i in (0, 1)]
    assert advice in verdict(plan([cluster(0, *pair)]))


def test_whole_models_are_advised_where_they_would_be_faster():
    """Machines of 100 and 50 GFLOP/s that hold the model: 1.5 times the fastest one's rate."""
    who = provider(0, gflops=100), provider(1, gflops=50)
    pair = [stage(i, 2, who[i], compute_s=4) for i in (0, 1)]
    assert "train the whole model: about 1.5 batches/s." in verdict(plan([cluster(0, *pair)]))


# ---- the documented blocks --------------------------------------------------------------------


def test_blocks_follow_the_pipelines():
    """Users read Root → Leaf off the order of the blocks, so ids must not reorder them."""
    first = cluster(0, *(stage(i, 3, provider(n)) for i, n in enumerate((5, 2, 9))))
    second = cluster(1, *(stage(i, 2, provider(n)) for i, n in enumerate((7, 1))))
    heads = re.findall(
        r"^Node\((\d+), Cluster\((\d+)\)\) $", node_blocks(plan([first, second])), re.M
    )
    assert heads == [("5", "0"), ("2", "0"), ("9", "0"), ("7", "1"), ("1", "1")]


def test_a_thousand_providers_render():
    """Every provider has its row and its block, aligned in columns, within the test's patience."""
    clusters = [
        cluster(c, *(stage(i, 4, provider(4 * c + i)) for i in range(4))) for c in range(240)
    ]
    given = plan(clusters, idle=[(provider(960 + i), "not needed") for i in range(40)])
    report, blocks = render_report(given), node_blocks(given)
    numbers = [int(n) for n in re.findall(r"^  node_(\d+) ", report, re.M)]
    assert numbers == list(range(960))
    assert report.count("\nIdle: ") == 40
    assert len(blocks.split("\n\n\n")) == 1000
    rows = report.split("\n\n")[1].splitlines()[1:]
    starts = [[m.start() for m in re.finditer(r"(?<=  )\S", row)] for row in rows]
    assert all(one[:3] == other[:3] for one, other in pairwise(starts))
