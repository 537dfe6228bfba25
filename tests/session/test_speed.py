"""How fast a job was, by its curves, and when nobody can say."""

import pytest
from msgspec.structs import replace

from ravnest.api.views import JobDetail, JobView, PlanView, Series
from ravnest.session.speed import mean_speed, speed_words

PLAN = PlanView(
    steps_per_s=4.0,
    single_machine_steps_per_s=1.0,
    batch_size=10,
    parameters=1,
    model="Net",
    clusters=2,
    providers=4,
)
JOB = JobView(
    id="j", name="j", owner="ada", state="done", submitted_at=0.0, run=1, batch_size=10, epochs=2
)
DONE = JobDetail(job=JOB, plan=PLAN)


def curves(**points):
    named = {f"train/loss@{name[1:]}": value for name, value in points.items()}
    scores = {"eval/accuracy@0": ((1, 0.5, 0.0, 0.1), (900, 1.0, 2.0, 0.2))}
    return Series(points=named | scores)


def test_the_clusters_add_up_and_validation_does_not_count():
    """20 steps in ten seconds, and 10 in five, of ten rows each."""
    two = curves(
        c0=((1, 0.1, 100.0, 0.5), (11, 0.6, 104.0, 0.4), (21, 1.1, 110.0, 0.3)),
        c1=((1, 0.1, 100.0, 0.5), (11, 1.1, 105.0, 0.3)),
    )
    assert mean_speed(DONE, two) == pytest.approx(40)
    assert speed_words(DONE, two) == (
        "40 samples/s on average, 100% of the 40 that the plan has expected"
    )


def test_much_less_than_expected_is_wondered_at():
    slow = curves(c0=((1, 0.1, 100.0, 0.5), (11, 0.6, 111.0, 0.4)))
    assert speed_words(DONE, slow).endswith("expected: is something else running on the machines?")


def test_validation_may_have_taken_most_of_the_time():
    half = curves(c0=((1, 0.1, 100.0, 0.5), (11, 0.6, 105.0, 0.4), (21, 0.6, 120.0, 0.4)))
    assert speed_words(DONE, half).endswith("25% of the 40 that the plan has expected")


PAUSED = {
    "every step": (
        *((n, 0, n / 4, 1) for n in range(9)),
        *((n, 1, 600 + n / 4, 1) for n in (9, 10)),
    ),
    "every hundredth": ((1, 0, 0.0, 1), (101, 0, 25.0, 1), (201, 0, 650.0, 1), (301, 1, 675.0, 1)),
    "once": ((1, 0, 0.0, 1), (241, 0, 60.0, 1), (242, 0, 660.0, 1), (482, 1, 720.0, 1)),
}


@pytest.mark.parametrize("points", PAUSED.values(), ids=PAUSED)
def test_a_pause_is_not_slowness(points):
    assert mean_speed(DONE, curves(c0=points)) == pytest.approx(40)


def test_steps_that_are_told_in_bundles_are_no_pauses():
    """Most of them seem to take no time at all."""
    bundles = tuple((n, 0.1, n // 8 * 2.0, 0.5) for n in range(41))
    assert mean_speed(DONE, curves(c0=bundles)) == pytest.approx(40)


@pytest.mark.parametrize(
    "detail",
    [
        replace(DONE, plan=None),
        replace(DONE, job=replace(JOB, run=2)),
        replace(DONE, job=replace(JOB, batch_size=64)),
        replace(DONE, job=replace(JOB, batch_size=0)),
    ],
    ids=["no plan", "resumed", "another size of steps", "unknown size"],
)
def test_what_is_not_known_is_not_said(detail):
    points = curves(c0=((1, 0.1, 100.0, 0.5), (11, 0.6, 110.0, 0.4)))
    assert speed_words(DONE, points)
    assert speed_words(detail, points) == ""


@pytest.mark.parametrize("points", [(), ((1, 0.1, 100.0, 0.5),), ((1, 0, 9.0, 1), (9, 1, 9.1, 1))])
def test_too_few_points_say_nothing(points):
    assert speed_words(DONE, curves(c0=points)) == ""
