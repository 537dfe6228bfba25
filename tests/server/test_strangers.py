"""Whoever connects and says nothing is let go."""

import asyncio
import resource
import socket

import httpx
import pytest
from servers import running_server

from ravnest.server import strangers

WAIT_S = 30


def closed(connection):
    """Waits for the other side's end of the connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: "])
def test_a_connection_that_does_not_ask_is_closed(tmp_path, monkeypatch, tls, said):
    monkeypatch.setattr(strangers, "SILENCE_S", 0.2)
    with (
        running_server(tmp_path, tls=tls) as server,
        socket.create_connection(("127.0.0.1", server.ready.port), WAIT_S) as connection,
    ):
        connection.sendall(b"" if tls else said)
        assert closed(connection)
    assert not strangers.Watched.silent


def test_one_address_has_a_bounded_number_of_silent_connections(tmp_path, monkeypatch):
    monkeypatch.setattr(strangers, "MOST_SILENT", 2)
    with running_server(tmp_path, tls=False) as server:
        where = ("127.0.0.1", server.ready.port)
        silent = [socket.create_connection(where, WAIT_S) for _ in range(2)]
        with socket.create_connection(where, WAIT_S) as third:
            assert closed(third)
        for connection in silent:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        for connection in silent:
            connection.close()


def test_a_server_may_open_as_many_files_as_the_system_allows(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        strangers.allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_event_loop_is_as_before_after_the_server_was_made():
    async def story():
        before = asyncio.get_running_loop().create_server
        with strangers.short_handshakes():
            pass
        assert asyncio.get_running_loop().create_server == before

    asyncio.run(story())
