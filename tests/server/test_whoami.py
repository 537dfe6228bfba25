"""Who the server takes its callers for, and that it agrees with what it lets them do."""

import msgspec
import pytest
from a_job import make_job, submit, upload
from servers import running_server

from ravnest.api.views import JobView, Me


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


def me(client):
    return msgspec.json.decode(client.get("whoami").content, type=Me)


@pytest.mark.parametrize("role", ["requester", "viewer", "operator"])
def test_a_caller_is_told_their_role_and_name(server, role):
    with server.client(server.token(role, name="ann")) as client:
        assert me(client) == Me(role=role, name="ann")


def test_whoever_looks_without_a_token_is_an_onlooker(server):
    with server.client() as client:
        assert me(client).role == "onlooker"


def test_tokens_that_may_not_look_are_not_told(server):
    with server.client(server.token("provider")) as client:
        assert client.get("whoami").status_code == 403


def test_who_owns_a_job_is_who_may_steer_it(server, tmp_path):
    body, files = make_job(tmp_path)
    with server.client(server.token("requester", name="ann", replace=True)) as owner:
        upload(owner, files)
        job = msgspec.convert(submit(owner, body), JobView)
    others = [("requester", "ann"), ("requester", "bob"), ("viewer", "ann"), ("operator", "ann")]
    owning, steering = [], []
    for role, name in others:
        with server.client(server.token(role, name=name, replace=True)) as client:
            owning.append(me(client).owns(job))
            answer = client.post(f"jobs/{job.id}/action", json={"action": "start"})
            steering.append(answer.status_code != 403)
    assert owning == [True, False, False, False]
    assert steering == [True, False, False, True], "an operator may, without owning it"
