"""A right is lost while the body of a request is on its way: nothing is done about that request.

The caller decides how long a body takes, so whoever has a token may hold requests ready for the
moment at which it is revoked.
"""

import asyncio
import json
import threading

import pytest
from fake_agent import FakeAgent, key_request
from servers import running_server

from ravnest.api.tokens import Token
from ravnest.server.service.app import table

BODIES = {
    "/api/v1/providers/me/certificate": json.dumps({"key_request": key_request()}),
    "/api/v1/providers/{provider:number}/action": '{"action": "remove"}',
    "/api/v1/providers/me/action": '{"action": "pause"}',
    "/api/v1/tokens": '{"role": "operator", "name": "next"}',
    "/api/v1/jobs/{job}/action": '{"action": "delete"}',
}
"""That do something as they are. Of all other routes it is enough that the caller is refused."""
WITHOUT_BODY = {"/api/v1/leave"}
BEHIND_AN_ASSIGNMENT = {"/api/v1/assignments/{assignment}/results/{path}"}
"""An agent that was removed has none; `RunFiles.receive` reads by the same `Call.stream`."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server") / "s", dashboard="local") as running:
        yield running


@pytest.fixture
def endpoints(server):
    taking = [one for one in table(server.ready.service) if one.method in ("PUT", "POST")]
    found = {one.path: one for one in taking if one.right is not None}
    assert found.keys() >= BODIES.keys() | WITHOUT_BODY | BEHIND_AN_ASSIGNMENT
    return {path: found[path] for path in found.keys() - WITHOUT_BODY - BEHIND_AN_ASSIGNMENT}


def bearer_for(server, right):
    """What opens routes of that right, and how it is taken away."""
    operator = server.client(server.operator)
    if right == "work":
        agent = asyncio.run(
            FakeAgent.enrol(
                server.url, server.token("provider"), authority=server.authority, name="goes"
            )
        )
        body = {"action": "remove"}
        return agent.credential, lambda: operator.post(
            f"providers/{agent.provider}/action", json=body
        )
    role = {"enrol": "provider", "submit": "requester", "steer": "requester"}.get(right, "operator")
    token = server.token(role)
    return token, lambda: operator.delete(f"tokens/{Token.parse(token).id}")


def test_every_route_looks_again_when_the_body_is_there(server, endpoints, monkeypatch):
    desk = server.ready.service.desk
    admitted = threading.Event()
    admit, asked = desk.admit, ""

    def watched(connection, right, limit):
        caller = admit(connection, right, limit)
        if connection.scope["path"] == asked:
            admitted.set()
        return caller

    monkeypatch.setattr(desk, "admit", watched)
    found = {}
    for path, endpoint in sorted(endpoints.items()):
        asked = ""
        bearer, revoke = bearer_for(server, endpoint.right)
        asked = path.replace("{provider:number}", "1").replace("{job}", "j1")
        asked = asked.replace("{sha256}", "0" * 64)
        body = BODIES.get(path, "{}").encode()
        admitted.clear()

        def pieces(body=body, revoke=revoke):
            yield body[:1]
            assert admitted.wait(30)
            assert revoke().status_code in (200, 204)
            yield body[1:]

        with server.client(bearer) as client:
            answer = client.request(endpoint.method, f"{server.url}{asked}", content=pieces())
            assert client.get("whoami").status_code == 401
        found[path] = (answer.status_code, answer.json()["code"])
    assert found == dict.fromkeys(found, (401, "unauthorized"))
    with server.client(server.operator) as operator:
        assert not any(token["name"] == "next" for token in operator.get("tokens").json())
