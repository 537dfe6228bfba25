"""A job followed through a stream, and an overview kept current by it: no server, no clock."""

import io
import itertools

import msgspec
import pytest
from msgspec.structs import replace
from web.simulation import Simulation

from ravnest.api.views import Changes, EventView, JobView, Overview
from ravnest.client.stream import ServerEvent
from ravnest.errors import JobError, ServerError
from ravnest.session.following import job_updates, within
from ravnest.session.overview import with_changes
from ravnest.session.showing import Bar, Lines


def as_event(value):
    name = "overview" if isinstance(value, Overview) else "update"
    return ServerEvent(name, msgspec.json.encode(value).decode())


def job(**changes):
    plain = JobView(id="j1", name="digits", owner="ada", state="running", submitted_at=1.0)
    return replace(plain, **changes)


def event(number, text="something", job_id="j1", level="info"):
    return EventView(number=number, at=5.0, level=level, text=text, job=job_id)


@pytest.fixture
def stream():
    """Makes the events of a stream around one server view."""
    server = Simulation(machines=0).server()
    empty = {"providers": (), "runs": (), "server": server}

    def make(*parts):
        for kind, jobs, events in parts:
            if kind == "overview":
                yield as_event(Overview(**empty, jobs=jobs, events=events))
            else:
                gone = tuple(one for one in jobs if isinstance(one, str))
                changed = tuple(one for one in jobs if not isinstance(one, str))
                changes = Changes(server=server, jobs=changed, gone_jobs=gone, events=events)
                yield as_event(changes)

    return make


def test_applied_changes_are_what_a_new_overview_says():
    simulation = Simulation()
    now = simulation.overview()
    for _ in range(40):
        changes = simulation.advance(3.0)
        now = with_changes(now, changes)
        # The simulation draws the traffic of a run anew for everybody who asks.
        assert now == replace(simulation.overview(), runs=changes.runs)
    simulation.act_on_job("job-digits", "delete")
    now = with_changes(now, simulation.changes())
    assert "job-digits" not in {one.id for one in now.jobs}


def test_a_job_is_told_until_it_has_ended(stream):
    told = list(
        job_updates(
            stream(
                ("overview", (job(), job(id="j2")), (event(1), event(2, job_id="j2"))),
                ("update", (job(id="j2", state="done"),), ()),
                ("update", (job(step=3),), (event(3),)),
                ("update", (job(state="done"),), ()),
                ("update", (job(state="running"),), ()),
            ),
            "j1",
        )
    )
    assert [(one.job.state, one.job.step) for one in told] == [
        ("running", 0),
        ("running", 3),
        ("done", 0),
    ]
    assert [[each.number for each in one.events] for one in told] == [[1], [3], []]


def test_after_a_break_nothing_is_told_twice(stream):
    again = ("overview", (job(step=4),), (event(1), event(2)))
    told = list(job_updates(stream(again, again, ("update", (job(state="failed"),), ())), "j1"))
    assert [len(one.events) for one in told] == [2, 0]
    assert [one.job.state for one in told] == ["running", "failed"]


def test_points_of_the_curves_come_along(stream):
    (begun,) = stream(("overview", (job(),), ()))
    changes = Changes(
        server=Simulation(machines=0).server(),
        points={"j1": (("train/loss", 0, 1, 0.1, 5.0, 2.5),), "j2": ()},
    )
    updates = job_updates(iter([begun, as_event(changes)]), "j1")
    next(updates)
    assert next(updates).points == (("train/loss", 0, 1, 0.1, 5.0, 2.5),)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([("overview", (), ())], "no job j1"),
        ([("overview", (job(),), ()), ("update", ("j1",), ())], "deleted"),
    ],
)
def test_a_job_that_is_gone_is_an_error(stream, parts, message):
    with pytest.raises(JobError, match=message):
        list(job_updates(stream(*parts), "j1"))


def test_an_event_of_another_release_is_named():
    with pytest.raises(ServerError, match="same version"):
        list(job_updates([ServerEvent("overview", "{}")], "j1"))
    assert list(job_updates([ServerEvent("news", "{}")], "j1")) == []


def test_waiting_has_an_end(stream):
    clock = itertools.count(0.0, 10.0)
    events = stream(*[("overview", (job(state="planning"),), ())] * 9)
    with pytest.raises(JobError, match="waited 25 s for a plan"):
        list(within(25.0, lambda: "a plan", events, lambda: next(clock), remedy="…"))


# ---- for people --------------------------------------------------------------------------------


def shown(stream, *parts, times):
    out = io.StringIO()
    clock = iter(times)
    lines = Lines(out, 5.0, lambda: next(clock))
    for update in job_updates(stream(*parts), "j1"):
        lines.show(update)
    return [line.split("  ", 1)[1] for line in out.getvalue().splitlines()]


def test_lines_say_states_events_and_now_and_then_the_progress(stream):
    said = shown(
        stream,
        ("overview", (job(state="waiting", reason="two more machines are needed"),), ()),
        ("update", (job(),), (event(1, "Run 1 begins"), event(2, "slow link", level="warning"))),
        ("update", (job(step=1, epoch=0.1, loss=2.3, samples_per_second=80.0),), ()),
        ("update", (job(step=2, epoch=0.2, loss=2.2),), ()),
        ("update", (job(step=3, epoch=0.3, loss=2.1),), ()),
        ("update", (job(state="done", step=9, epoch=1.0, metrics={"accuracy": 0.9712}),), ()),
        times=[0.0, 1.0, 10.0, 11.0, 16.0, 17.0],
    )
    assert said == [
        "waiting: two more machines are needed",
        "Run 1 begins",
        "warning: slow link",
        "running",
        "epoch 0.1 of 1, step 1, loss 2.3, 80 samples/s",
        "epoch 0.3 of 1, step 3, loss 2.1",
        "done",
        "epoch 1 of 1, step 9; validation: accuracy 0.9712",
    ]


def test_the_bar_shows_the_same(stream, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    parts = (
        ("overview", (job(),), (event(1, "Run 1 begins [bold]"),)),
        ("update", (job(step=7, epoch=0.5, loss=1.25),), ()),
        ("update", (job(state="failed", reason="node_2 is gone"),), ()),
    )
    with Bar(out) as bar:
        for update in job_updates(stream(*parts), "j1"):
            bar.show(update)
    text = out.getvalue()
    assert "Run 1 begins [bold]" in text
    assert "loss 1.25" in text
    assert "failed: node_2 is gone" in text
    assert "\x1b[3" not in text  # no colour


@pytest.mark.parametrize("at", ["start", "stop"])
def test_an_interrupt_of_the_bar_leaves_the_cursor_visible(monkeypatch, at):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def interrupted(progress):
        progress.console.show_cursor(False)
        raise KeyboardInterrupt

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(f"rich.progress.Progress.{at}", interrupted)
    out = Terminal()
    with pytest.raises(KeyboardInterrupt), Bar(out):
        pass
    assert out.getvalue().endswith("\x1b[?25h")


def test_what_a_stream_says_does_not_steer_the_terminal(stream):
    evil = "\x1b]0;owned\x07\x9b31m"
    (update,) = job_updates(
        stream(("overview", [job(name=evil, state="done")], [event(1, evil)])), "j1"
    )
    shown = io.StringIO()
    Lines(shown).show(update)
    assert "owned" in shown.getvalue()
    assert all(line.isprintable() for line in shown.getvalue().splitlines())
    assert update.job.name.isprintable()
