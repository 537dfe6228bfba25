"""What those who look on are told: on a made-up clock, of pipelines at work, and of rounds."""

import threading
from collections import Counter, defaultdict

import msgspec
import pytest
import torch
from pipelines import pipeline, settings_for
from test_pipeline import ADAMW, SGD
from torch import nn

from ravnest.provider.schedule import pipeline as plan
from ravnest.provider.telemetry import Round, Sample, Span, Standing, Telemetry


def on_a_made_up_clock(**options):
    """It began at 100 by this provider's clock, which was 1000 by the calendar."""
    return Telemetry(clock=lambda: 100.0, wall=lambda: 1000.0, **options)


def test_times_are_those_of_the_calendar():
    telemetry = on_a_made_up_clock()
    telemetry.did("forward", 3, 1, 101.0, 102.5)
    telemetry.round_ended(Round(ring=4, number=2, began=103.0, ended=104.0, outcome="applied"))
    sample = telemetry.drain()
    assert sample.spans == (Span("forward", 3, 1, 1001.0, 1002.5),)
    assert [(one.began, one.ended) for one in sample.rounds] == [(1003.0, 1004.0)]
    assert sample.at == 1000.0
    assert telemetry.drain().spans == telemetry.drain().rounds == ()


def test_what_nobody_fetched_in_time_is_counted():
    telemetry = on_a_made_up_clock(spans_kept=10)
    for number in range(25):
        telemetry.did("forward", number, 0, 0.0, 1.0)
    sample = telemetry.drain()
    assert [span.batch for span in sample.spans] == list(range(15, 25))
    assert sample.spans_dropped == 15
    telemetry.did("forward", 25, 0, 0.0, 1.0)
    sample = telemetry.drain()
    assert ([span.batch for span in sample.spans], sample.spans_dropped) == ([25], 0)


def test_nothing_is_lost_or_told_twice_while_two_threads_are_at_it():
    telemetry, seen, dropped = Telemetry(spans_kept=64), [], 0
    total = 20_000

    def work():
        for number in range(total):
            telemetry.did("forward", number, 0, 0.0, 1.0)

    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        sample = telemetry.drain()
        seen += [span.batch for span in sample.spans]
        dropped += sample.spans_dropped
    sample = telemetry.drain()
    seen += [span.batch for span in sample.spans]
    dropped += sample.spans_dropped
    assert seen == sorted(set(seen))
    assert len(seen) + dropped == total


def test_a_wait_ends_with_the_next_work_and_is_seen_while_it_lasts():
    telemetry = on_a_made_up_clock()
    telemetry.waits("input", 100.0)
    telemetry.waits("input", 101.0)
    waiting = telemetry.drain()
    assert (waiting.waits_for, waiting.waits_since, waiting.spans) == ("input", 1000.0, ())
    telemetry.waits("gradients", 102.0)
    telemetry.did("backward", 0, 0, 103.0, 104.0)
    sample = telemetry.drain()
    assert sample.waits_for is None
    assert [(span.kind, span.start, span.end) for span in sample.spans] == [
        ("wait/input", 1000.0, 1002.0),
        ("wait/gradients", 1002.0, 1003.0),
        ("backward", 1003.0, 1004.0),
    ]


def test_a_wait_that_is_none_is_not_told():
    telemetry = on_a_made_up_clock()
    telemetry.waits("input", 100.0)
    telemetry.did("forward", 0, 0, 100.00001, 101.0)
    assert [span.kind for span in telemetry.drain().spans] == ["forward"]


def ready(batch, *, update=None):
    return plan.ForwardReady(plan.Key(batch, 0), batch if update is None else update, True)


def test_a_stage_knows_what_it_waits_for():
    stage = plan.StageSchedule(
        plan.Rules(is_last=False, schedule="sync", waits_for_permission=True), limit=1
    )
    assert stage.awaits == "input"
    stage.handle(ready(0))
    assert isinstance(stage.next(), plan.Forward)
    assert stage.next() is None
    assert stage.awaits == "gradients"
    stage.handle(ready(1))
    assert stage.awaits == "gradients"
    stage.handle(plan.BackwardReady(plan.Key(0, 0)))
    assert isinstance(stage.next(), plan.Backward)
    stage.next()
    assert stage.awaits == "permission"
    stage.handle(plan.UpdateAllowed(0))
    assert isinstance(stage.next(), plan.Update)


def test_a_sample_survives_a_trip_through_json():
    telemetry = on_a_made_up_clock()
    telemetry.did("forward", 0, 0, 1.0, 2.0)
    telemetry.watch(lambda: Standing(in_flight=2, links={"node_1": (3, 4)}))
    sample = telemetry.drain()
    assert msgspec.json.decode(msgspec.json.encode(sample), type=Sample) == sample


def square(outputs, batch):
    return outputs.square().mean()


def chain(layers=6):
    return nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(4, 4), nn.ReLU())))


@pytest.mark.parametrize("update", [SGD, ADAMW], ids=["plain", "clipped"])
def test_a_pipeline_at_work_is_seen_from_outside(tmp_path, update):
    batches = [torch.randn(4, 4) for _ in range(5)]
    seen = defaultdict(Telemetry)
    settings = settings_for(batches, square, update)
    with pipeline(
        chain(), (batches[0],), tmp_path, settings, parts=2, telemetry=seen.__getitem__
    ) as cluster:
        for batch in batches:
            cluster.train(batch)
        cluster.order("epoch")
        for runtime in cluster.runtimes:  # the last one replies before it notes that it has
            runtime.user.ask(lambda: None)
        samples = {node: telemetry.drain() for node, telemetry in seen.items()}
        assert sorted(samples) == ["node_0", "node_1", "node_2"]
        for sample in samples.values():
            kinds = Counter(span.kind for span in sample.spans)
            assert (kinds["forward"], kinds["backward"], kinds["epoch"]) == (10, 10, 1)
            totals = sample.standing.totals
            assert (totals.forwards, totals.backwards) == (10, 10)
            assert kinds["update"] == totals.updates > 0
            assert totals.batches == 5
            assert sample.standing.in_flight == sample.spans_dropped == 0
            parts = [(s.batch, s.part) for s in sample.spans if s.kind == "forward"]
            assert parts == [(batch, part) for batch in range(5) for part in range(2)]
            times = [time for span in sample.spans for time in (span.start, span.end)]
            assert times == sorted(times), "one thread does one thing at a time"
        middle = samples["node_1"].standing.links
        assert set(middle) == {"node_0", "node_2"}
        assert all(sent > 0 and received > 0 for sent, received in middle.values())
        carried = 10 * 2 * 4 * 4  # parts of two rows of four numbers
        assert samples["node_0"].standing.links["node_1"][0] > carried


class Watched(Telemetry):
    """Says when there is nothing to do but wait for input."""

    def __init__(self):
        super().__init__()
        self.is_idle = threading.Event()

    def did(self, *what):
        self.is_idle.clear()
        super().did(*what)

    def waits(self, what, now):
        super().waits(what, now)
        if what == "input":
            self.is_idle.set()


def test_a_pause_is_a_wait_for_input_on_every_stage(tmp_path):
    batches = [torch.randn(4, 4) for _ in range(2)]
    seen = defaultdict(Watched)
    settings = settings_for(batches, square, SGD)
    with pipeline(
        chain(), (batches[0],), tmp_path, settings, telemetry=seen.__getitem__
    ) as cluster:
        cluster.train(batches[0])
        cluster.order("flush")
        for telemetry in seen.values():
            assert telemetry.is_idle.wait(10)
        assert {telemetry.drain().waits_for for telemetry in seen.values()} == {"input"}


def test_nothing_is_noted_unless_asked_for(tmp_path):
    batches = [torch.randn(4, 4)]
    settings = settings_for(batches, square, SGD)
    with pipeline(chain(), (batches[0],), tmp_path, settings) as cluster:
        assert all(runtime.runner._telemetry is None for runtime in cluster.runtimes)
