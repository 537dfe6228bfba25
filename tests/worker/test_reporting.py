"""What a worker says while it works, and what it hears; without processes."""

import io
import logging
import math
import os
import threading
from types import SimpleNamespace

import msgspec
import pytest
import torch
from runs import RECIPE

from ravnest.api.work import End, Line, Point, Report, Started, WorkEnd, WorkReport
from ravnest.callbacks import Progress
from ravnest.provider.telemetry import Round, Standing, Telemetry, Totals
from ravnest.worker import scripted
from ravnest.worker.hearing import ReportsTo
from ravnest.worker.journal import Journal, Notes, thinned
from ravnest.worker.reporting import Reporter
from ravnest.worker.speech import Speech
from ravnest.worker.steering import Steering


def journal(**more):
    return Journal(
        RECIPE, **{"batches_per_epoch": 4, "epochs_before": 0, "clock_offset_s": 0.0, **more}
    )


def point(step, value):
    return Point("train/loss", step, step / 4, 0.0, value)


def test_steps_go_on_where_an_earlier_run_has_ended():
    found = journal(epochs_before=3)
    found.on_step_end(Progress(step=1, samples=8, loss=0.5))
    (first,) = found.take()
    assert (first.step, first.epoch, first.value) == (13, 13 / 4, 0.5)
    assert found.far.samples == 8
    assert found.take() == ()


def test_a_loss_that_is_no_number_is_told_as_such():
    found = journal()
    found.on_step_end(Progress(step=1, loss=math.inf))
    found.on_evaluate(Progress(metrics={"loss": math.nan, "accuracy": 0.5}))
    assert [p.value for p in found.take()] == [None, None, 0.5]
    assert found.metrics == {"eval/accuracy": 0.5}


def test_whatever_a_script_calls_its_metrics_can_be_told():
    found = journal()
    found.on_evaluate(Progress(metrics={"top-1 (%)\x1b": 0.5, "long " * 40: 1.0}))
    end = WorkEnd(outcome="done", metrics=found.metrics)
    assert msgspec.json.decode(msgspec.json.encode(end), type=WorkEnd) == end
    assert found.metrics["eval/top-1 ____"] == 0.5
    assert msgspec.convert([msgspec.to_builtins(p) for p in found.take()], list[Point])


def test_very_many_points_become_their_means():
    many = [point(step, float(step)) for step in range(1000)]
    few = thinned(many, 100)
    assert len(few) == 100
    assert few[0].value == 4.5
    assert few[0].step == 9
    assert few[-1].step == 999
    assert thinned(many[:100], 100) == many[:100]
    assert thinned([point(0, 1.0), point(1, None)], 1)[0].value is None


def reporter(telemetry, speech=None, **more):
    return Reporter(speech or Speech(io.BytesIO()), telemetry, Notes(), **more)


def standing(**totals):
    return Standing(in_flight=2, links={"node_1": (10, 20)}, totals=Totals(**totals))


def test_a_report_counts_since_the_last_one():
    now = [0.0]
    telemetry = Telemetry(clock=lambda: now[0], wall=lambda: 1000.0)
    totals = [standing()]
    telemetry.watch(lambda: totals[0])
    told = reporter(telemetry, clock_offset_s=5.0, epochs_before=2)
    told.report()
    now[0] = 2.0
    totals[0] = standing(backwards=4, staleness=6, busy_s=0.5, updates=3, epochs=1)
    telemetry.did("forward", 7, 1, 0.5, 0.75)
    telemetry.did("epoch", -1, -1, 0.8, 0.9)
    telemetry.did("save", -1, -1, 0.9, 0.95)
    telemetry.round_ended(
        Round(ring=1, number=4, began=1.0, ended=1.5, members=("a", "b"), outcome="applied")
    )
    found = told.report()
    assert found.at == 1007.0
    assert (found.busy, found.staleness, found.updates, found.in_flight) == (0.25, 1.5, 3, 2)
    assert found.epoch == told.epochs_done == 3
    # Orders and waits are not computing.
    (span,) = found.spans
    assert (span.kind, span.batch, span.part, span.start) == ("forward", 7, 1, 1005.5)
    (ended,) = found.rounds
    assert (ended.members, ended.began, ended.outcome) == (2, 1006.0, "applied")
    (link,) = found.links
    assert (link.node, link.sent, link.received) == ("node_1", 10, 20)
    assert msgspec.json.decode(msgspec.json.encode(found), type=WorkReport) == found


def test_more_spans_than_fit_are_counted_as_dropped():
    telemetry = Telemetry(clock=lambda: 0.0)
    for number in range(2500):
        telemetry.did("forward", number, 0, 0.0, 1.0)
    found = reporter(telemetry).report()
    assert len(found.spans) == 2000
    assert found.spans[-1].batch == 2499
    assert found.spans_dropped == 500


def test_epochs_are_counted_however_many_spans_are_dropped():
    """A finished run was taken for a stopped one, and trained again."""
    telemetry = Telemetry(clock=lambda: 0.0)
    telemetry.watch(lambda: standing(epochs=2))
    for _ in range(2):
        telemetry.did("epoch", -1, -1, 0.0, 1.0)
    for number in range(17_000):
        telemetry.did("forward", number, 0, 0.0, 1.0)
    told = reporter(telemetry, epochs_before=1)
    assert told.report().epoch == told.epochs_done == 3
    # A stage that has ended has nothing to say any more.
    telemetry.watch(Standing)
    assert told.report().epoch == 3


def test_a_rate_is_over_the_last_seconds():
    now = [0.0]
    own = journal()
    told = reporter(Telemetry(clock=lambda: now[0]), journal=own)
    rates = []
    for second in range(30):
        now[0] = float(second)
        own.on_step_end(Progress(step=second, samples=100 * second if second < 15 else 1500))
        rates.append(told.report().samples_per_second)
    assert rates[0] == 0.0
    assert rates[10] == pytest.approx(100.0)
    assert rates[-1] == 0.0


def test_warnings_of_the_library_are_notes():
    notes, logger = Notes(), logging.getLogger("ravnest.test")
    logger.addHandler(notes)
    logger.warning("ring %d goes on without %s", 3, "node_1")
    logger.info("nothing of interest")
    logger.removeHandler(notes)
    assert notes.take() == ("ring 3 goes on without node_1",)
    assert notes.take() == ()


def test_the_last_report_comes_before_the_end_and_nothing_after_it():
    stream = io.BytesIO()
    speech = Speech(stream)
    told = reporter(Telemetry(), speech, every_s=600.0)
    speech.say(Started())
    told.start()
    told.stop()
    speech.say(End(WorkEnd(outcome="done")))
    told._say()
    lines = [msgspec.json.decode(line, type=Line) for line in stream.getvalue().splitlines()]
    assert [type(line) for line in lines] == [Started, Report, End]


def test_a_line_that_would_be_too_long_is_not_said():
    stream = io.BytesIO()
    notes = tuple("x" * 4000 for _ in range(300))
    Speech(stream).say(Report(WorkReport(at=0.0, notes=notes)))
    assert stream.getvalue() == b""


class _Broken(io.BytesIO):
    def write(self, content):
        raise BrokenPipeError


def test_an_agent_that_does_not_listen_any_more_is_no_failure():
    Speech(_Broken()).say(Started())


def test_what_is_said_early_is_kept_and_the_end_is_noticed():
    gone, obeyed = threading.Event(), []
    said = b'{"action":"pause"}\nnonsense\n{"action":"explode"}\n\xff\n{"action":"stop"}\n'
    steering = Steering(io.BytesIO(said), gone.set)
    steering.start()
    assert gone.wait(10)
    steering.obey_with(obeyed.append)
    assert obeyed == ["pause", "stop"]


def test_the_memory_of_any_kind_of_device_is_counted(monkeypatch, tmp_path):
    made = []

    def note(*_, **options):
        made.append(options["device_bytes"])
        return SimpleNamespace(start=lambda: None, stop=lambda: None)

    monkeypatch.setattr(scripted, "Reporter", note)
    monkeypatch.setattr(torch.xpu, "memory_allocated", lambda device: 10**15 + device.index)
    with (tmp_path / "reports").open("wb") as file:
        to = ReportsTo(descriptor=os.dup(file.fileno()), every_s=1.0, clock_offset_s=0.0)
        monkeypatch.setenv(scripted.REPORTS, msgspec.json.encode(to).decode())
        device = torch.device("xpu:1")
        node = SimpleNamespace(telemetry=Telemetry(), is_root=False, device=device)
        assert scripted.begin_reports(node, None, 0) == []
    report = reporter(Telemetry(), device_bytes=made[0]).report()
    assert 10**15 + 1 < report.memory_bytes < 2 * 10**15
