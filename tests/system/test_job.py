"""The whole way of a job, with real processes: server, four providers, two clusters, one model."""

import pytest
from cast import Cast, cast, idle
from digits import accuracy, submit


@pytest.fixture
def four(tmp_path):
    """A server and four unequal providers that wait for work."""
    with cast(tmp_path) as made:
        for name, memory in (("ada", "4"), ("ben", "3"), ("cleo", "3"), ("dan", "2")):
            made.join(name, "--memory", memory)
        made.wait_for_pool(4)
        yield made


def test_two_clusters_of_four_providers_train_a_model_that_is_fused_and_scored(four: Cast):
    with four.session() as session:
        job = submit(session, max_clusters=2)
        four.wait_for_job(job.id, "running", "done")
        four.wait_for_job(job.id, "done")
        assert "cluster 1" in job.plan().lower()
        score = accuracy(job.result())
        assert score > 0.9
        assert job.metrics["accuracy"] == pytest.approx(score, abs=0.01)
        points = job.series().points
        assert {"train/loss@0", "train/loss@1", "eval/accuracy@0"} <= set(points)
        assert points["train/loss@0"][-1][-1] < points["train/loss@0"][0][-1] / 2
    # Everybody is back in the pool, and nothing of the job is left on their disks.
    assert len(idle(four.wait_for_pool(4))) == 4
    assert list(four.folder.glob("*/work/*/package")) == []
