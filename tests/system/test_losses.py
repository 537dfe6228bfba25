"""Providers that die, leave or are paused, and requesters who stop and resume."""

import pytest
from cast import Cast, cast, idle, job_in
from digits import accuracy, submit


@pytest.fixture
def three(tmp_path):
    with cast(tmp_path, "--away", "5") as made:
        for name in ("ada", "ben", "cleo"):
            made.join(name, "--memory", "2")
        made.wait_for_pool(3)
        yield made


def training(made: Cast, job: str, epoch: float = 1.0) -> None:
    """Until the job has made progress that can be lost."""
    made.wait(f"epoch {epoch}", lambda now: job_in(now, job).epoch >= epoch)


def workers(made: Cast, job: str) -> set[str]:
    """Who is at work on it."""
    now = made.wait("a run", lambda now: any(run.job == job for run in now.runs))
    run = next(run for run in now.runs if run.job == job)
    return {stage.name for cluster in run.clusters for stage in cluster.stages}


def test_a_provider_that_is_killed_costs_its_run_and_not_the_job(three: Cast):
    with three.session() as session:
        job = submit(session, epochs=24, max_clusters=1)
        training(three, job.id)
        lost = sorted(workers(three, job.id))[0]
        three.providers[lost].kill()
        three.wait("the second run", lambda now: job_in(now, job.id).run == 2)
        three.wait_for_job(job.id, "done")
        assert accuracy(job.result()) > 0.9
        assert any(lost in event.text for event in job.events() if event.level == "warning")


def test_a_provider_that_leaves_takes_nothing_with_it(three: Cast):
    with three.session() as session:
        job = submit(session, epochs=30, max_clusters=1)
        training(three, job.id, epoch=3.0)
        leaving = sorted(workers(three, job.id))[0]
        three.providers[leaving].interrupt()
        assert three.providers[leaving].process.wait(120) == 0
        now = three.wait("the second run", lambda now: job_in(now, job.id).run == 2)
        # It goes on from the weights that the first one has left.
        assert any("epochs are fused" in event.text for event in now.events)
        three.wait_for_job(job.id, "done")
        assert accuracy(job.result()) > 0.9
        assert not any(event.level == "error" for event in job.events())


def test_a_job_can_be_paused_stopped_fetched_and_resumed(three: Cast):
    with three.session() as session:
        job = submit(session, epochs=24, max_clusters=1)
        training(three, job.id, epoch=2.0)
        job.pause()
        three.wait_for_job(job.id, "paused")
        job.go_on()
        three.wait_for_job(job.id, "running")
        job.stop()
        stopped = three.wait_for_job(job.id, "stopped")
        assert 2 <= stopped.epoch < 24
        before = accuracy(job.result())
        assert before > 0.5
        assert len(idle(three.wait_for_pool(3))) == 3
        job.resume()
        three.wait_for_job(job.id, "done")
        assert accuracy(job.result()) >= before - 0.02
        assert job.view.epoch == 24
