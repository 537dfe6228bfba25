import contextlib
import threading

import pytest
from scripted import Scripted, break_off, say

from ravnest.client import stream as streams
from ravnest.client import transfers
from ravnest.client.http import BrokenOffError
from ravnest.client.stream import TIME_HAS_PASSED, ServerEvent, follow, parse_events
from ravnest.errors import ServerError, TokenError


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
    events = [ServerEvent("update", "{\n}"), ServerEvent("message", "x")]
    assert list(parse_events(lines)) == [TIME_HAS_PASSED, *events]


def test_lines_end_where_the_stream_says_so():
    pieces = [b"da", b"ta: a\xe2\x80", b"\xa8b\r\n\r", b"\ndata: y\n\nrest"]
    assert list(streams.lines_of(pieces)) == ["data: a\u2028b", "", "data: y", ""]


def test_a_line_without_end_is_given_up():
    """Of a hostile server: what its reader has waiting in memory is bounded."""

    def stream(handler):
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(200):
                handler.wfile.write(bytes(1 << 20))

    with Scripted() as server, server.client() as client:
        server.answers["GET", "/api/v1/stream"] = stream
        with pytest.raises(ServerError, match="without end"):
            list(follow(client, "/stream", attempts=1))


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


@pytest.mark.parametrize("said", ["event: overview\ndata: all\n\n", ": still here\n\n"])
def test_a_stream_of_a_server_that_has_nothing_to_say_ends_in_time(said):
    over = threading.Event()

    def stream(handler):
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(said.encode())
        handler.wfile.flush()
        over.wait(30)
        break_off(handler)

    with Scripted() as server, server.client() as client:
        server.answers["GET", "/api/v1/stream"] = stream
        try:
            assert len(list(follow(client, "/stream", for_s=0.5))) == 1
        finally:
            over.set()
