"""Answers that are large, and what they hold until they have been taken."""

import asyncio
import queue
import socket
import ssl

import msgspec
import pytest
from servers import running_server
from starlette.responses import Response

from ravnest.api.requests import Problem
from ravnest.api.views import ProviderView
from ravnest.server.connection_limits import HttpProtocol
from ravnest.server.service import ratelimit
from ravnest.server.service.ratelimit import Lease, MemoryBudget
from ravnest.server.service.responses import PIECE_BYTES, LargeResponse, pieces
from ravnest.server.service.stream import Stream

WAIT_S = 30


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES])
def test_pieces_are_the_whole(size):
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    found = list(pieces(content))
    assert b"".join(found) == content
    assert all(0 < len(piece) <= PIECE_BYTES for piece in found)


def test_an_answer_is_counted_until_its_last_piece_can_be_followed_by_another():
    async def story():
        answers, sent, go_on = MemoryBudget(), asyncio.Queue(), asyncio.Queue()
        content = b"x" * (3 * PIECE_BYTES)

        async def send(message):
            await go_on.get()
            sent.put_nowait(message)

        lease = Lease(answers, "viewer")
        lease.resize(len(content))
        held = answers.in_use
        outgoing = LargeResponse(Response(content), lease)
        going = asyncio.create_task(outgoing({"type": "http"}, None, send))
        for _ in range(4):
            go_on.put_nowait(None)
        _, *middle = [await sent.get() for _ in range(4)]
        assert b"".join(message["body"] for message in middle) == content
        assert all(message["more_body"] for message in middle)
        assert answers.in_use == held > 0
        go_on.put_nowait(None)
        await going
        assert sent.get_nowait() == {"type": "http.response.body", "body": b""}
        assert answers.in_use == 0

    asyncio.run(story())


def test_answers_that_are_not_read_are_few_for_each_caller(tmp_path, monkeypatch):
    view = ProviderView(id=1, name="n" * 100, state="idle", since=0, seen_at=0)
    many = [view] * (300_000 // len(msgspec.json.encode(view)))
    monkeypatch.setattr(Stream, "providers", lambda self: many)
    monkeypatch.setattr(ratelimit, "MAX_BYTES_PER_CALLER", 400_000)
    given_back = queue.SimpleQueue()
    really, made = MemoryBudget.give_back, HttpProtocol.connection_made

    def give_back(self, *arguments):
        really(self, *arguments)
        given_back.put(self)

    def connection_made(self, transport):
        # Or the system would take all of it, whether somebody reads or not.
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(MemoryBudget, "give_back", give_back)
    monkeypatch.setattr(HttpProtocol, "connection_made", connection_made)
    with running_server(tmp_path) as server:
        tokens = [server.token("viewer"), server.token("viewer")]
        with unread(server, "/api/v1/providers", tokens[0]) as first:
            assert first.recv(12) == b"HTTP/1.1 200"
            with server.client(tokens[0]) as same, server.client(tokens[1]) as other:
                refused = same.get("providers")
                assert refused.status_code == 429
                assert msgspec.json.decode(refused.content, type=Problem).code == "limited"
                answer = other.get("providers")
                assert len(msgspec.json.decode(answer.content, type=list[ProviderView])) == len(
                    many
                )
                budget = server.ready.service.desk.memory
                assert given_back.get(timeout=WAIT_S) is budget  # the other's
                assert budget.in_use > 0
                first.close()
                assert given_back.get(timeout=WAIT_S) is budget
                assert same.get("providers").status_code == 200


def unread(server, path, bearer):
    """A request by somebody who takes little of the answer."""
    context = ssl.create_default_context(cadata=server.authority)
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    plain.settimeout(WAIT_S)
    plain.connect(("127.0.0.1", server.ready.port))
    connection = context.wrap_socket(plain, server_hostname="localhost")
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {bearer}\r\n\r\n"
    connection.sendall(head.encode())
    return connection
