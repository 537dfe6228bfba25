"""Providers on hosts of their own: some near each other, one behind a line to the server only."""

import pytest
from cast import Cast, cast, idle
from digits import accuracy, submit
from namespaces import entered, network

pytestmark = pytest.mark.needs("namespaces")

FAST, SLOW = 400.0, 8.0


@pytest.fixture
def hosts(tmp_path):
    with network() as net, cast(tmp_path, host=net.server) as made, entered(net.server):
        yield net, made


def paths(made: Cast, job: str) -> dict[frozenset[str], str]:
    """How each pair of neighbours of the running job talks, by their names."""
    now = made.wait(
        "links of the run",
        lambda now: any(
            run.job == job and run.links and all(link.path != "unknown" for link in run.links)
            for run in now.runs
        ),
    )
    names = {one.id: one.name for one in now.providers}
    run = next(run for run in now.runs if run.job == job)
    return {frozenset((names[one.source], names[one.target])): one.path for one in run.links}


def test_a_provider_that_nobody_reaches_trains_through_the_relay(hosts):
    net, made = hosts
    made.join("near", "--memory", "2", host=net.near())
    made.join("behind a router", "--memory", "2", "--no-listen", host=net.apart())
    made.wait_for_pool(2)
    with made.session() as session:
        job = submit(session, epochs=15, max_clusters=1)
        made.wait_for_job(job.id, "running")
        assert paths(made, job.id) == {frozenset(("near", "behind a router")): "relay"}
        made.wait("traffic", lambda now: now.server.relayed_bytes > 100_000)
        made.wait_for_job(job.id, "done")
        assert accuracy(job.result()) > 0.9


def test_measured_lines_decide_the_plan_and_near_hosts_talk_directly(hosts):
    """Four equal machines, one of them on a thin line: it is the one that is left out."""
    net, made = hosts
    for name in ("one", "two", "three"):
        made.join(name, "--memory", "2", host=net.near(FAST))
    made.join("thin", "--memory", "2", "--no-listen", host=net.apart(SLOW))
    pool = {one.name: one for one in idle(made.wait_for_pool(4))}
    assert pool["thin"].up_mbps < 2 * SLOW < pool["one"].up_mbps
    with made.session() as session:
        job = submit(session, epochs=15, max_clusters=1, idle_gain=1.0)
        made.wait_for_job(job.id, "running")
        used = {name for pair in paths(made, job.id) for name in pair}
        assert "thin" not in used
        assert set(paths(made, job.id).values()) == {"direct"}
        made.wait_for_job(job.id, "done")
        assert made.wait("the end", lambda now: True).server.relayed_bytes == 0
