"""What the description says is answered is what is answered."""

import a_job
import pytest
from servers import running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def client(server):
    with server.client(server.operator) as client:
        yield client


def described(client, method, path):
    return client.get("openapi.json").json()["paths"][path][method]["responses"]


@pytest.mark.parametrize("path", ["/openapi.json", "/api/v1/openapi.json"])
def test_the_description_describes_itself(server, client, path):
    answers = described(client, "get", path)
    assert answers.keys() == {"200", "default"}
    assert answers["200"]["content"]["application/json"]["schema"]["type"] == "object"
    assert client.get(f"{server.url}{path}").status_code == 200


def test_a_job_that_is_steered_is_shown_and_one_that_is_deleted_is_not(client, tmp_path):
    answers = described(client, "post", "/api/v1/jobs/{job}/action")
    assert answers.keys() == {"200", "204", "default"}
    shown = answers["200"]["content"]["application/json"]["schema"]
    assert shown == {"$ref": "#/components/schemas/JobView"}
    assert "content" not in answers["204"]
    spec, files = a_job.make_job(tmp_path)
    a_job.upload(client, files)
    job = a_job.submit(client, spec)["id"]
    stopped = client.post(f"jobs/{job}/action", json={"action": "stop"})
    assert (stopped.status_code, stopped.json()["id"]) == (200, job)
    deleted = client.post(f"jobs/{job}/action", json={"action": "delete"})
    assert (deleted.status_code, deleted.content) == (204, b"")
