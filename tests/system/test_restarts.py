"""The server is killed at every part of a job and started again; the job ends all the same."""

import contextlib

import pytest
from cast import Cast, cast
from digits import accuracy, submit
from holding import TASKS, Hold, agents, stored_state


@pytest.fixture
def hold(tmp_path):
    return Hold(tmp_path / "hold")


@pytest.fixture
def three(tmp_path, hold):
    with cast(tmp_path, environment=hold.environment) as made:
        for name in ("ada", "ben", "cleo"):
            made.join(name, "--memory", "2")
        made.wait_for_pool(3)
        yield made


@pytest.mark.parametrize("state", ["planning", "preparing", "running", "fusing"])
def test_a_server_that_is_killed_goes_on_where_it_was(three: Cast, hold: Hold, state):
    with contextlib.ExitStack() as held:
        held.enter_context(hold.processes(state))
        with three.session() as session:
            start = "asked" if state == "preparing" else "at once"
            job = submit(session, epochs=12, max_clusters=1, start=start)
            if state == "preparing":
                three.wait_for_job(job.id, "planned")
                held.enter_context(agents(three))
                job.start()
        three.wait_for_job(job.id, state)
        if state in TASKS:
            hold.wait()
        if state == "running":
            held.enter_context(agents(three))
        three.server.kill()
        assert stored_state(three, job.id) == state
    three.server.start()
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
