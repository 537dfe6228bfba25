"""A body that does not get on is not waited for."""

import asyncio
import hashlib
import socket

import pytest
from servers import running_server

from ravnest.server.service.problems import Refusal
from ravnest.server.service.ratelimit import UploadSpeed

WAIT_S = 30
LONG_S = 3600.0


class Sender:
    """Pieces with the seconds before each, by a clock that only they move."""

    def __init__(self, *pieces, then_silent=False):
        self.pieces = pieces
        self.then_silent = then_silent
        self.now = 0.0

    async def __aiter__(self):
        for seconds, piece in self.pieces:
            self.now += seconds
            yield piece
        if self.then_silent:
            await asyncio.Event().wait()

    async def received(self, speed):
        body = speed.enforce(aiter(self), clock=lambda: self.now)
        return b"".join([piece async for piece in body])


def test_a_body_that_comes_is_passed_on_whole():
    sender = Sender((1, b"one"), (1, b""), (1, b"two"))
    assert asyncio.run(sender.received(UploadSpeed())) == b"onetwo"


def test_a_body_that_stands_still_is_refused():
    sender = Sender((0, b"half"), then_silent=True)
    with pytest.raises(
        Refusal, match=r"nothing has come for 0\.01 seconds, after 4 bytes"
    ) as found:
        asyncio.run(sender.received(UploadSpeed(idle_s=0.01)))
    assert found.value.status == 408


def test_a_body_that_trickles_is_refused_after_a_while():
    speed = UploadSpeed(idle_s=LONG_S, least_bytes_per_s=10, free_s=60)
    drops = [(20, b"x")] * 4
    with pytest.raises(Refusal, match="4 bytes in 80 seconds are too few"):
        asyncio.run(Sender(*drops).received(speed))
    assert asyncio.run(Sender(*drops[:3]).received(speed)) == b"xxx"


def test_a_slow_body_that_is_fast_enough_may_take_its_time():
    speed = UploadSpeed(idle_s=LONG_S, least_bytes_per_s=10, free_s=60)
    assert len(asyncio.run(Sender(*[(50, bytes(500))] * 20).received(speed))) == 10_000


def test_the_time_that_the_receiver_takes_is_not_the_senders_fault():
    sender = Sender((1, b"x"), (1, b"y"), (1, b"z"))

    async def go():
        body = UploadSpeed(least_bytes_per_s=0.5, free_s=2).enforce(
            aiter(sender), lambda: sender.now
        )
        async for _ in body:
            sender.now += LONG_S

    asyncio.run(go())


def test_an_upload_that_stalls_is_answered_and_leaves_nothing(tmp_path):
    content = bytes(100_000)
    sha256 = hashlib.sha256(content).hexdigest()
    speed = UploadSpeed(idle_s=1.0)
    with running_server(tmp_path, tls=False, upload_speed=speed) as server:
        where = ("127.0.0.1", server.ready.port)
        head = (
            f"PUT /api/v1/blobs/{sha256} HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {server.operator}\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        with socket.create_connection(where, WAIT_S) as connection:
            connection.sendall(head.encode() + content[:50_000])
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert b'"code":"late"' in answer
        assert not list((tmp_path / "incoming").iterdir())
        with server.client(server.operator) as client:
            assert client.put(f"blobs/{sha256}", content=content).status_code == 204
