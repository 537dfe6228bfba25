"""Rounds, as those who look on are told of them."""

from collections import defaultdict

import torch
from clusters import clusters
from pipelines import settings_for
from torch import nn

from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Rules
from ravnest.provider.compute.updating import UpdateSettings
from ravnest.provider.telemetry import Telemetry

SGD = UpdateSettings(optimizer=torch.optim.SGD, optimizer_params={"lr": 0.1})
AT_THE_END = 10**9


def model():
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.Tanh())))


def rows(cluster, batches=6):
    torch.manual_seed(100 + cluster)
    return [torch.randn(8, 6) for _ in range(batches)]


def square(outputs, batch):
    return (outputs - batch.flip(1)).square().mean()


def settings(data, every, *, blocking=False):
    rules = Rules(every, blocking)
    return lambda cluster: settings_for(data[cluster], square, SGD, averaging=rules)


def feed(data):
    def work(cluster, c):
        for batch in data[c]:
            cluster.train(batch)
        cluster.order("epoch")
        cluster.order("average")

    return work


def test_rounds_are_told_with_who_took_part_and_what_came_of_them(tmp_path):
    data = [rows(0), rows(1, batches=3)]
    seen = defaultdict(Telemetry)
    with clusters(
        model(),
        (data[0][0],),
        tmp_path,
        settings(data, AT_THE_END),
        stages=[2, 1],
        telemetry=seen.__getitem__,
    ) as both:
        both.all(feed(data))
        samples = {node: telemetry.drain() for node, telemetry in seen.items()}
    assert sorted(samples) == ["node_0", "node_1", "node_2"]
    for node, sample in samples.items():
        applied = [one for one in sample.rounds if one.outcome == "applied"]
        assert applied, node
        assert all(len(one.members) == len(one.weights) == 2 for one in applied)
        assert all(node in one.members for one in applied)
        assert all(one.began <= one.ended and one.sent_bytes > 0 for one in applied)
        assert [span for span in sample.spans if span.kind == "average"]
        times = [time for span in sample.spans for time in (span.start, span.end)]
        assert times == sorted(times)
    shared = samples["node_2"].standing.links
    assert set(shared) == {"node_0", "node_1"}
    assert all(sent > 0 and received > 0 for sent, received in shared.values())


def test_a_cluster_that_stands_still_waits_for_the_others(tmp_path):
    data = [rows(0), rows(1, batches=2)]
    seen = defaultdict(Telemetry)
    with clusters(
        model(),
        (data[0][0],),
        tmp_path,
        settings(data, 2, blocking=True),
        stages=[1, 1],
        averaging=Averaging(mode="blocking", connect_s=20),
        telemetry=seen.__getitem__,
    ) as both:
        both.all(feed(data))
        kinds = {span.kind for telemetry in seen.values() for span in telemetry.drain().spans}
    assert "wait/clusters" in kinds
