"""Rounds, as those who look on are told of them."""

from collections import defaultdict

from clusters import clusters
from test_clusters import NEVER, SGD, Normed, feed, rows, settings, square

from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.telemetry import Telemetry


def test_rounds_are_told_with_who_took_part_and_what_came_of_them(tmp_path):
    data = [rows(0), rows(1, batches=3)]
    seen = defaultdict(Telemetry)
    with clusters(
        Normed(),
        (data[0][0],),
        tmp_path,
        settings(data, square, SGD, NEVER),
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
        Normed(),
        (data[0][0],),
        tmp_path,
        settings(data, square, SGD, 2, blocking=True),
        stages=[1, 1],
        averaging=Averaging(mode="blocking", connect_s=20),
        telemetry=seen.__getitem__,
    ) as both:
        both.all(feed(data))
        kinds = {span.kind for telemetry in seen.values() for span in telemetry.drain().spans}
    assert "wait/clusters" in kinds
