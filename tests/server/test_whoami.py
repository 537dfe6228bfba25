"""Who the server takes its callers for, and that it agrees with what it lets them do."""

import dataclasses

import msgspec
import pytest
from a_job import make_job, submit, upload
from servers import running_server

from ravnest.agent.identity import check_token
from ravnest.api.tokens import Token
from ravnest.api.views import JobView, Me
from ravnest.client.address import ServerAddress
from ravnest.errors import RavnestError


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


def me(client):
    return msgspec.json.decode(client.get("whoami").content, type=Me)


@pytest.mark.parametrize("role", ["requester", "viewer", "operator", "provider"])
def test_a_caller_is_told_their_role_and_name(server, role):
    with server.client(server.token(role, name="ann")) as client:
        assert me(client) == Me(role=role, name="ann")


def test_whoever_looks_without_a_token_is_an_onlooker(server):
    with server.client() as client:
        assert me(client).role == "onlooker"


def test_a_machine_that_tries_its_token_is_not_refused(tmp_path, caplog):
    """Refusals are logged and counted: many good machines behind one address were an attack."""
    with running_server(tmp_path) as server:
        address = ServerAddress.parse(server.url)
        token = Token.parse(server.token("provider"))
        for _ in range(40):
            check_token(address, token)
        assert "refused" not in caplog.text


def test_a_token_that_is_not_accepted_is_never_taken_for_a_good_one(tmp_path, caplog):
    """Also when so many were wrong that the server only says that they are too many."""
    with running_server(tmp_path) as server:
        address = ServerAddress.parse(server.url)
        genuine = Token.parse(server.token("provider"))
        wrong = dataclasses.replace(genuine, secret="0" * len(genuine.secret))
        told = set()
        for _ in range(60):
            with pytest.raises(RavnestError) as refused:
                check_token(address, wrong)
            told.add(refused.value.status)
        assert told == {401, 429}
        assert "refused GET /api/v1/whoami" in caplog.text
        check_token(address, genuine)


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
