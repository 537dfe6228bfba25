import pytest
from scripted import Scripted, break_off, say

from ravnest.client import transfers
from ravnest.client.http import BrokenOffError
from ravnest.client.stream import ServerEvent, follow, parse_events
from ravnest.errors import TokenError


def test_events_are_cut_out_of_lines():
    lines = [
        ": hello",
        "event: update",
        "data: {",
        "data:}",
        "id: 3",
        "",
        "",
        "data: x",
        "",
        "data: y",
    ]
    assert list(parse_events(lines)) == [ServerEvent("update", "{\n}"), ServerEvent("message", "x")]


def test_a_broken_stream_is_taken_up_again(monkeypatch):
    monkeypatch.setattr(transfers, "_FIRST_DELAY_S", 0.0)
    turns = iter(["one", "two", "three"])

    def stream(handler):
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(f"event: overview\ndata: {next(turns)}\n\ndata: cut".encode())
        break_off(handler)

    with Scripted() as server, server.client() as client:
        server.answers["GET", "/api/v1/stream"] = stream
        events = follow(client, "/stream")
        assert [next(events).data for _ in range(3)] == ["one", "two", "three"]
        events.close()


def test_a_stream_that_is_refused_or_never_begins_is_an_error():
    with Scripted() as server, server.client() as client:
        refused = '{"error": "no", "code": "forbidden"}'
        server.answers["GET", "/api/v1/stream"] = lambda handler: say(handler, 403, refused)
        with pytest.raises(TokenError, match="no"):
            next(follow(client, "/stream"))
        server.answers["GET", "/api/v1/stream"] = break_off
        with pytest.raises(BrokenOffError):
            next(follow(client, "/stream"))
