"""A worker that reports more often than the server wants to hear it."""

import asyncio

import msgspec
from made import report

from ravnest.agent import reports
from ravnest.agent.thinning import Thinning
from ravnest.api.work import Point, WorkReport


def points(first, count):
    return tuple(Point("train/loss", step, 0.0, 1.0, 2.0) for step in range(first, first + count))


def passed_on(*reports, every_s=3600.0):
    async def inside():
        found = []
        thin = Thinning(every_s, found.append)
        for each in reports:
            thin.take(each)
        before = list(found)
        thin.finish()
        thin.finish()
        return before, found

    return asyncio.run(inside())


def test_of_many_reports_at_once_the_last_figures_and_all_points_are_passed_on():
    many = [report(n, step=n, points=points(n, 1), notes=(f"{n}",)) for n in range(100)]
    before, found = passed_on(*many)
    assert before == many[:1]
    assert len(found) == 2
    assert (found[1].epoch, found[1].step) == (99, 99)
    assert [point.step for point in found[1].points] == [*range(1, 100)]
    assert found[1].notes == tuple(f"{n}" for n in range(50, 100))


def test_what_is_too_much_for_one_report_is_left_out_the_oldest_first(monkeypatch):
    _, found = passed_on(*(report(n, points=points(1500 * n, 1500)) for n in range(4)))
    assert [point.step for point in found[1].points] == [*range(4500, 6000)]
    monkeypatch.setattr(reports, "MOST_LINE_BYTES", 3000)
    _, found = passed_on(*(report(n, notes=("x" * 2000,)) for n in range(4)))
    assert [each.notes for each in found] == [("x" * 2000,)] * 2


def test_what_was_held_goes_on_when_it_is_time():
    async def inside():
        heard = asyncio.Queue()
        thin = Thinning(0.02, heard.put_nowait)
        for n in range(3):
            thin.take(report(n))
        async with asyncio.timeout(30):
            return [(await heard.get()).epoch for _ in range(2)]

    assert asyncio.run(inside()) == [0, 2]


def test_what_a_worker_says_of_itself_does_not_make_a_report_that_nobody_understands():
    """The server closed the connection to a provider whose script said the largest of numbers."""
    largest = report(spans_dropped=1 << 40)
    _, found = passed_on(largest, largest, largest)
    msgspec.json.decode(msgspec.json.encode(found[1]), type=WorkReport)
