"""Workers that report beyond measure."""

import msgspec
import pytest

from ravnest.api.control import Ended, agent_decoder
from ravnest.api.work import MOST_METRICS, Point, WorkEnd, WorkReport
from ravnest.server.service.live import LiveRun
from ravnest.server.service.moderation import NOTES_OF_A_RUN, RATES, Moderation


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def told():
    return []


@pytest.fixture
def moderation(clock, told):
    return Moderation(lambda provider, how: told.append((provider, how)), clock)


@pytest.fixture
def run():
    return LiveRun.of("j", 1, [])


def points(count, first=0):
    return tuple(Point("train/loss", first + n, 0.0, 1.0, 1.0) for n in range(count))


def test_a_report_of_usual_size_is_left_as_it_is(moderation, run, told):
    report = WorkReport(at=1.0, points=points(100), notes=("memory is short",))
    for _ in range(50):
        assert moderation.moderated(1, run, report) is report
    assert not told


def test_of_too_many_points_the_last_ones_are_kept_and_the_others_counted(moderation, run, told):
    burst = int(RATES["points"].burst)
    for _ in range(burst // 2000):
        moderation.moderated(1, run, WorkReport(at=1.0, points=points(2000)))
    assert not told
    assert moderation.moderated(1, run, WorkReport(at=1.0, points=points(7))).points == ()
    assert told == [(1, "reports more than is taken; left out: 7 points")]


def test_another_provider_is_not_meant(moderation, run, told):
    for _ in range(10):
        moderation.moderated(1, run, WorkReport(at=1.0, points=points(2000)))
    assert len(moderation.moderated(2, run, WorkReport(at=1.0, points=points(2000))).points) == 2000


def test_time_makes_room_again(moderation, run, clock):
    for _ in range(6):
        moderation.moderated(1, run, WorkReport(at=1.0, points=points(2000)))
    clock.now += 1
    left = moderation.moderated(1, run, WorkReport(at=1.0, points=points(2000))).points
    assert len(left) == RATES["points"].per_s
    assert left[-1].step == 1999


def test_big_notes_are_limited_by_their_length(moderation, run, told):
    report = WorkReport(at=1.0, notes=("x" * 4000,) * 50)
    assert len(moderation.moderated(1, run, report).notes) == RATES["notes"].burst // 4000
    assert told == [(1, "reports more than is taken; left out: 45 notes")]


def test_it_is_told_now_and_then_with_all_that_was_left_out(moderation, run, told, clock):
    report = WorkReport(at=1.0, notes=("x" * 4000,) * 50)
    for _ in range(61):
        moderation.moderated(1, run, report)
        clock.now += 1
    assert [how for _, how in told] == [
        "reports more than is taken; left out: 45 notes",
        f"reports more than is taken; left out: {60 * 50 - 1:,} notes",
    ]


def test_what_is_left_out_soon_after_is_told_when_the_provider_falls_silent(moderation, run, told):
    report = WorkReport(at=1.0, notes=("x" * 4000,) * 50)
    for _ in range(3):
        moderation.moderated(1, run, report)
    assert len(told) == 1
    moderation.tell_rest(2)
    assert len(told) == 1
    for _ in range(2):
        moderation.tell_rest(1)
    assert told[1:] == [(1, "reports more than is taken; left out: 100 notes")]


def test_a_run_has_so_many_notes_and_others_are_counted(moderation, run, told):
    for provider in range(1, 8):
        moderation.moderated(provider, run, WorkReport(at=1.0, notes=("short",) * 80))
    assert run.notes == NOTES_OF_A_RUN
    assert told == [(7, "made the last of 500 notes; more are only counted")]
    report = WorkReport(at=1.0, points=points(3), notes=("short",))
    assert moderation.moderated(1, run, report) == WorkReport(at=1.0, points=points(3))
    assert len(told) == 1
    for provider in (1, 7):
        moderation.tell_rest(provider)
    assert [(who, how.rpartition(": ")[2]) for who, how in told[1:]] == [
        (1, "1 note"),
        (7, "60 notes"),
    ]


def test_an_end_has_a_bounded_number_of_metrics():
    def said(count):
        metrics = {f"m{n}": 1.0 for n in range(count)}
        end = Ended(assignment="a", end=WorkEnd(outcome="done", metrics=metrics))
        return agent_decoder.decode(msgspec.json.encode(end))

    assert len(said(MOST_METRICS).end.metrics) == MOST_METRICS
    with pytest.raises(msgspec.ValidationError, match="256"):
        said(MOST_METRICS + 1)
