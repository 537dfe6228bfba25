"""Figures for Prometheus: of the server, and of each job."""

import re
from pathlib import Path

import msgspec
import pytest
from a_job import make_job, submit, upload
from prometheus_client.parser import text_string_to_metric_families
from servers import running_server

from ravnest.api.views import JobView
from ravnest.server.metrics import MOST_JOBS, Metrics
from ravnest.server.state.world import World

JOB = JobView(
    id="j1",
    name='a "job"\n',
    owner="ann",
    state="running",
    submitted_at=10.0,
    epoch=1.5,
    epochs=4,
    batch_size=32,
    step=70,
    samples_per_second=640.0,
    loss=0.25,
)


def read(text):
    """(name, labels) → value"""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def figures(*jobs):
    metrics = Metrics(World())
    metrics.watch_jobs(lambda: jobs)
    return read(metrics.text())


def test_every_job_has_its_state_and_its_figures():
    found = figures(JOB)
    labels = {"job": "j1", "name": 'a "job"\n', "owner": "ann", "state": "running"}
    assert found[("ravnest_job_state", *sorted(labels.items()))] == 1
    expected = {
        "epoch": 1.5,
        "epochs": 4,
        "step": 70,
        "loss": 0.25,
        "samples_per_second": 640,
        "batches_per_second": 20,
    }
    for name, value in expected.items():
        assert found[(f"ravnest_job_{name}", ("job", "j1"))] == value


def test_what_is_not_known_is_left_out():
    found = figures(msgspec.structs.replace(JOB, loss=None, batch_size=0))
    assert ("ravnest_job_epoch", ("job", "j1")) in found
    assert not [key for key in found if key[0].endswith(("loss", "batches_per_second"))]


def test_the_number_of_series_is_bounded_and_jobs_at_work_come_first():
    def job(number, state):
        return msgspec.structs.replace(JOB, id=f"j{number}", state=state, submitted_at=number)

    many = [job(number, "done") for number in range(1000, 3000)]
    found = figures(*many, job(1, "running"))
    shown = {dict(key[1:])["job"] for key in found if key[0] == "ravnest_job_state"}
    newest = {f"j{number}" for number in range(3000 - MOST_JOBS + 1, 3000)}
    assert shown == {"j1"} | newest


@pytest.fixture
def server(tmp_path):
    with running_server(tmp_path / "server") as server:
        yield server


def test_a_job_that_was_submitted_is_there_to_be_scraped(server, tmp_path):
    body, files = make_job(tmp_path)
    with server.client(server.token("requester", name="ann")) as requester:
        upload(requester, files)
        id = submit(requester, body)["id"]
    with server.client(server.token("viewer")) as viewer:
        found = read(viewer.get("metrics").content)
    (state,) = [dict(key[1:]) for key in found if key[0] == "ravnest_job_state"]
    assert (state["job"], state["owner"]) == (id, "ann")
    assert found[("ravnest_job_epochs", ("job", id))] == 2
    assert found[("ravnest_job_batches_per_second", ("job", id))] == 0


def test_the_documentation_names_the_figures_of_jobs():
    text = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(ravnest_job_\w+)", text))
    assert named == {key[0] for key in figures(JOB) if key[0].startswith("ravnest_job_")}
