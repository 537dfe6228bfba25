"""The server is killed at every part of a job and started again; the job ends all the same."""

import pytest
from cast import Cast, cast
from digits import accuracy, submit


@pytest.fixture
def three(tmp_path):
    with cast(tmp_path) as made:
        for name in ("ada", "ben", "cleo"):
            made.join(name, "--memory", "2")
        made.wait_for_pool(3)
        yield made


@pytest.mark.parametrize("state", ["planning", "preparing", "running", "fusing"])
def test_a_server_that_is_killed_goes_on_where_it_was(three: Cast, state):
    with three.session() as session:
        job = submit(session, epochs=12, max_clusters=1)
    three.wait_for_job(job.id, state, "done")
    three.server.restart()
    three.wait_for_job(job.id, "done")
    with three.session() as session:
        again = session.job(job.id)
        assert accuracy(again.result()) > 0.9
        assert len(session.providers()) == 3
        # The run that was under way is the one that ended: nothing was trained twice.
        assert again.view.run == 1
        assert again.view.epoch == 12


def test_what_is_registered_survives_any_number_of_kills(three: Cast):
    with three.session() as session:
        job = submit(session, epochs=3, start="asked")
    three.wait_for_job(job.id, "planned")
    token = three.server.operator_token
    for _ in range(5):
        three.server.restart()
    assert three.server.operator_token == token
    three.wait_for_pool(3)
    three.wait_for_job(job.id, "planned")
    with three.session() as session:
        session.job(job.id).start()
        three.wait_for_job(job.id, "done")
        assert accuracy(session.job(job.id).result()) > 0.8
