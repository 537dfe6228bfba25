"""Requests, answers and the many ways in which there is none."""

import contextlib
import json
import socket
import ssl
import tracemalloc

import msgspec
import pytest
from certificates import Authority
from scripted import Scripted, body_of, break_off, say

from ravnest.api.requests import Health, JobAction
from ravnest.api.views import Changes, EventView, JobView, Me, Series
from ravnest.client import http
from ravnest.client.address import ServerAddress
from ravnest.client.answers import AnswerError, decode_plain, refusal
from ravnest.client.http import BrokenOffError, HttpClient
from ravnest.client.trust import fetch_authority
from ravnest.errors import JobError, ServerError, TokenError


@pytest.fixture(scope="module")
def server():
    with Scripted() as running:
        yield running


def test_structures_go_both_ways_with_the_bearer(server):
    seen = []

    def act(handler):
        seen.append(msgspec.json.decode(body_of(handler), type=JobAction))
        say(handler, 200, '{"status": "ok", "version": "9", "new": 1}')

    server.answers["POST", "/api/v1/jobs/j1/action"] = act
    with server.client() as client:
        health = client.post("/jobs/j1/action", JobAction(action="stop"), Health)
    assert health == Health(status="ok", version="9")
    assert seen == [JobAction(action="stop")]
    _, _, headers = server.seen[-1]
    assert headers["Authorization"] == "Bearer secret"
    assert headers["User-Agent"].startswith("ravnest/")


def test_texts_are_plain_wherever_they_are():
    said = b'{"role": "viewer", "name": "a\\u001b[2J"}'
    assert decode_plain(said, Me).name == "a\ufffd[2J"
    events = b'[{"number": 1, "at": 1, "level": "info", "text": "\\u202e"}]'
    assert decode_plain(events, list[EventView])[0].text == "\ufffd"
    curves = b'{"points": {"\\u0007": [[1, 2, 3, 4]]}}'
    assert decode_plain(curves, Series) == Series(points={"\ufffd": ((1.0, 2.0, 3.0, 4.0),)})


EMPTY = b"[" + b"{}," * 500_000 + b"{}]"


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (Me, b'{"role": "viewer", "name": "a", "more": %b}' % EMPTY),
        (Series, b'{"points": {"a": %b}}' % EMPTY),
        (Changes, b'{"points": {"a": [%b]}}' % EMPTY),
        (list[EventView], EMPTY),
    ],
)
def test_what_does_not_belong_to_an_answer_takes_no_memory(kind, answer):
    """Brackets of 24 MB took 1.2 GB: they were made into objects before the kind was asked."""
    tracemalloc.start()
    try:
        with contextlib.suppress(msgspec.ValidationError):
            decode_plain(answer, kind)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(answer)


def test_of_an_answer_about_one_thing_little_is_heard(server):
    long = f'{{"role": "viewer", "name": "a", "more": "{"x" * (1 << 20)}"}}'
    server.answers["GET", "/api/v1/whoami"] = lambda handler: say(handler, 200, long)
    server.answers["POST", "/api/v1/leave"] = lambda handler: say(handler, 200, long)
    server.answers["GET", "/api/v1/jobs/j1/series"] = lambda handler: say(
        handler, 200, f'{{"points": {{}}, "more": "{"x" * (1 << 20)}"}}'
    )
    with server.client() as client:
        with pytest.raises(ServerError, match="too large"):
            client.get("/whoami", Me)
        with pytest.raises(ServerError, match="too large"):
            client.post("/leave", None, type(None))
        assert client.get("/jobs/j1/series", Series) == Series(points={})


def test_a_query_is_part_of_the_request(server):
    server.answers["GET", "/api/v1/jobs/j1/plan"] = lambda handler: say(handler, 200, "a → b")
    with server.client() as client:
        assert client.get_text("/jobs/j1/plan", seconds=20) == "a → b"
    assert server.seen[-1][1] == "/api/v1/jobs/j1/plan?seconds=20"


def test_head_tells_whether_something_is_there(server):
    server.answers["HEAD", "/api/v1/blobs/aa"] = lambda handler: say(handler, 200, "")
    with server.client() as client:
        assert client.exists("/blobs/aa")
        assert not client.exists("/blobs/bb")


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/overview", 401, TokenError),
        ("/jobs/j1", 403, TokenError),
        ("/jobs", 409, JobError),
        ("/jobs", 422, JobError),
        ("/jobs", 429, ServerError),
        ("/jobs", 503, ServerError),
        ("/enrol", 400, ServerError),
    ],
)
def test_a_refusal_comes_out_in_the_servers_words(server, path, status, kind):
    problem = '{"error": "the token has expired; ask for another", "code": "unauthorized"}'
    server.answers["GET", f"/api/v1{path}"] = lambda handler: say(handler, status, problem)
    with server.client() as client, pytest.raises(kind) as refused:
        client.get(path, Health)
    assert str(refused.value) == "the token has expired; ask for another"
    assert isinstance(refused.value, AnswerError)
    assert (refused.value.status, refused.value.code) == (status, "unauthorized")
    assert refused.value.body == problem.encode()


def test_an_answer_in_nobodys_words_is_quoted_shortly(server):
    page = "<html>" + "x" * 1000
    server.answers["GET", "/api/v1/overview"] = lambda handler: say(handler, 502, page)
    with server.client() as client, pytest.raises(ServerError, match="status 502: <html>x") as said:
        client.get("/overview", Health)
    assert len(str(said.value)) < 300


def test_a_servers_words_do_not_steer_the_terminal():
    problem = b'{"error": "no\\u001b]0;owned\\u0007", "code": "invalid"}'
    for body in (problem, b"no\x1b]0;owned\x07"):
        error = refusal(400, body, "/overview")
        assert "owned" in str(error)
        assert str(error).isprintable()


def test_nothing_that_a_server_says_steers_the_terminal(server):
    """A hostile server, or a party whose words an honest one passes on."""
    evil = "\x1b]0;owned\x07\x9b31m\u202e"
    said = {"id": "7", "name": evil, "owner": "o", "state": "failed", "submitted_at": 1}
    view = json.dumps({**said, "reason": f"why{evil}\nsecond line", "metrics": {evil: 1}})
    server.answers["GET", "/api/v1/jobs/7"] = lambda handler: say(handler, 200, view)
    server.answers["GET", "/api/v1/jobs/7/plan"] = lambda handler: say(handler, 200, evil)
    with server.client() as client:
        job, plan = client.get("/jobs/7", JobView), client.get_text("/jobs/7/plan")
    assert job.reason.endswith("\nsecond line")
    shown = [job.name, *job.metrics, *job.reason.splitlines(), plan]
    assert all(text.isprintable() for text in shown)
    assert "owned" in job.name


def test_an_answer_of_another_kind_asks_for_the_same_version(server):
    server.answers["GET", "/api/v1/overview"] = lambda handler: say(handler, 200, '{"status": 7}')
    with server.client() as client, pytest.raises(ServerError, match="same version"):
        client.get("/overview", Health)


def test_a_connection_that_breaks_is_told_from_an_answer(server):
    server.answers["GET", "/api/v1/overview"] = break_off
    with server.client() as client, pytest.raises(BrokenOffError) as broken:
        client.get("/overview", Health)
    assert str(server.address) in str(broken.value)


def test_a_server_that_is_not_there_is_asked_about():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    address = ServerAddress("127.0.0.1", port)
    with pytest.raises(ServerError, match=f"is the server running at https://127.0.0.1:{port}"):
        fetch_authority(address, b"")


def test_a_server_that_says_nothing_is_not_waited_for_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = ServerAddress("127.0.0.1", silent.getsockname()[1], "http")
        with (
            HttpClient(address, authority=None) as client,
            pytest.raises(BrokenOffError, match="does not answer in time"),
            client.open("GET", "/overview", timeout_s=0.05),
        ):
            pass


# ---- who the server is ----


def test_the_authority_is_fetched_and_compared_with_the_token(server):
    token = server.token()
    assert fetch_authority(server.address, token.fingerprint) == server.keys.authority


def test_another_servers_token_does_not_fit(server):
    other = Authority().keys("x").authority.fingerprint
    with pytest.raises(TokenError, match="is not the server that the token is from"):
        fetch_authority(server.address, other)


def test_whoever_has_no_authority_is_no_server():
    with Scripted() as server:
        server.answers["GET", "/api/v1/authority"] = lambda handler: say(handler, 404, "<html>")
        with pytest.raises(ServerError, match=r"is no Ravnest server .*/authority .* status 404"):
            fetch_authority(server.address, b"")


@pytest.mark.parametrize("content", ["no certificate", "x" * 100_000])
def test_something_else_than_an_authority_is_refused(content):
    with Scripted() as server:
        server.answers["GET", "/api/v1/authority"] = lambda handler: say(handler, 200, content)
        with pytest.raises(ServerError, match="authority"):
            fetch_authority(server.address, b"")


def test_a_certificate_of_another_authority_is_not_trusted():
    with (
        Scripted() as server,
        HttpClient(server.address, authority=Scripted().keys.authority, bearer="secret") as client,
        pytest.raises(ServerError, match="not the server that is known here"),
    ):
        client.get("/overview", Health)
    assert server.seen == []


def test_a_providers_certificate_is_not_a_servers():
    """The authority signs both; a provider must not be able to pass for the server."""
    with (
        Scripted(dns=("provider-7", "127.0.0.1")) as server,
        server.client() as client,
        pytest.raises(ServerError, match="made out to somebody else"),
    ):
        client.get("/overview", Health)
    assert server.seen == []


def test_an_expired_certificate_speaks_of_clocks():
    with (
        Scripted(valid=False) as server,
        server.client() as client,
        pytest.raises(ServerError, match=r"has expired, if it is .* set the clock"),
    ):
        client.get("/overview", Health)


def test_a_server_without_tls_is_recognised():
    with Scripted(tls=False) as server:
        address = ServerAddress("127.0.0.1", server.address.port)
        with pytest.raises(ServerError, match="plain HTTP"):
            fetch_authority(address, b"")


def test_without_an_authority_there_is_no_client():
    with pytest.raises(ServerError, match="fetched first"):
        HttpClient(ServerAddress("127.0.0.1", 1), authority=None)


def test_the_name_is_pinned_also_for_libraries_that_ask_for_another(server):
    client = server.client()
    assert client.context is not None
    assert client.context.verify_mode == ssl.CERT_REQUIRED
    with (
        socket.create_connection(("127.0.0.1", server.address.port)) as plain,
        client.context.wrap_socket(plain, server_hostname="somewhere.else") as secure,
    ):
        assert secure.server_hostname == "ravnest-server"
    client.close()


class Endless:
    """An answer whose body goes on for as long as anybody reads it."""

    def __init__(self, status):
        self.status, self.sent = status, 0

    def __call__(self, handler):
        handler.send_response(self.status)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            while self.sent < 1 << 30:
                self.sent += handler.wfile.write(b"z" * 65536)


def test_of_a_refusal_without_end_only_the_beginning_is_read(server):
    """Each of them took as much memory as there was."""
    endless = server.answers["GET", "/api/v1/overview"] = Endless(404)
    with server.client() as client, pytest.raises(AnswerError) as caught:
        client.get_bytes("/overview")
    assert len(caught.value.body) == http._MOST_REFUSAL_BYTES
    assert endless.sent < 1 << 27


def test_of_a_refusal_that_drips_only_so_much_is_waited_for(server, monkeypatch):
    monkeypatch.setattr(http, "_LONGEST_REFUSAL_S", 0.0)
    monkeypatch.setattr(http, "_MOST_REFUSAL_BYTES", 1 << 40)
    endless = server.answers["GET", "/api/v1/overview"] = Endless(500)
    with server.client() as client, pytest.raises(AnswerError):
        client.get_bytes("/overview")
    assert endless.sent < 1 << 27


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_of_too_many_levels_is_not_understood(server, status):
    deep = '{"status": "ok", "version": "9", "new": ' + "[" * 100_000
    server.answers["GET", "/api/v1/health"] = lambda handler: say(handler, status, deep)
    with server.client() as client, pytest.raises(ServerError):
        client.get("/health", Health)


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [(200, ServerError, "sends /health packed"), (500, AnswerError, "answers with status 500")],
)
def test_nothing_is_unpacked(server, status, error, said):
    """A few bytes may unfold to more than there is memory. A refusal is one nevertheless."""
    server.answers["GET", "/api/v1/health"] = lambda handler: say(
        handler, status, "\x1f", Content_Encoding="gzip"
    )
    with server.client() as client, pytest.raises(error, match=said):
        client.get("/health", Health)


def test_a_client_that_was_closed_says_so(server):
    client = server.client()
    client.close()
    with pytest.raises(ServerError, match="its Session was closed"):
        client.get("/jobs", list)
