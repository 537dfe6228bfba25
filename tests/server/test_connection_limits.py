"""Connections: how many, how long without a request, how slowly read; headers without end."""

import asyncio
import contextlib
import inspect
import socket
import ssl
import struct
import time

import httpx
import pytest
import uvicorn
from fake_agent import FakeAgent
from servers import closed, running_server
from starlette.requests import HTTPConnection
from uvicorn.server import ServerState

from ravnest.server import connection_limits
from ravnest.server.access import ONLOOKER, Access
from ravnest.server.connection_limits import (
    ConnectionLimits,
    HttpProtocol,
    WebSocketProtocol,
    address_group,
    listen,
)
from ravnest.server.service import stream
from ravnest.server.service.calls import whose
from ravnest.server.service.gate import Gate
from ravnest.server.service.problems import Refusal

WAIT_S = 30
HERE, THERE = "127.0.0.1", "127.0.0.2"
ASKED = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SILENT_TLS = b"\x16"
"""The first byte of a handshake: without one the kernel keeps the connection to itself."""


@pytest.fixture
def limits(monkeypatch):
    """Those of the servers that are started."""
    made = []
    really = ConnectionLimits.__init__

    def init(self, **options):
        really(self, **options)
        made.append(self)

    monkeypatch.setattr(ConnectionLimits, "__init__", init)
    return made


def connect(server, address=HERE, said=b""):
    connection = socket.create_connection((HERE, server.ready.port), WAIT_S, (address, 0))
    connection.sendall(said)
    return connection


def answers(server, tls=True):
    context = ssl.create_default_context(cadata=server.authority) if tls else True
    return httpx.get(f"{server.url}/healthz", verify=context).status_code == 200


@pytest.mark.parametrize("said", [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: "])
@pytest.mark.parametrize("tls", [True, False])
def test_a_connection_without_a_request_is_closed(tmp_path, monkeypatch, tls, said):
    monkeypatch.setattr(connection_limits, "PENDING_S", 0.2)
    monkeypatch.setattr(connection_limits, "_LINUX_OPTIONS", {})
    with running_server(tmp_path, tls=tls) as server:
        with connect(server, said=SILENT_TLS if tls else said) as connection:
            assert closed(connection)
        assert answers(server, tls)


@pytest.mark.parametrize(
    "first",
    [
        ASKED,
        # Refused before its body has come.
        b"POST /api/v1/enrol HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    ],
)
def test_a_second_request_has_no_more_time_than_the_first(tmp_path, monkeypatch, first):
    monkeypatch.setattr(connection_limits, "PENDING_S", 0.2)
    with running_server(tmp_path, tls=False) as server, connect(server, said=first) as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1")
        connection.sendall(b"G")
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1 << 16):
                pass


def test_a_request_that_is_being_answered_has_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(connection_limits, "PENDING_S", 0.2)
    monkeypatch.setattr(stream, "ALIVE_S", 0.1)
    with running_server(tmp_path, tls=False) as server:
        asked = ASKED.replace(b"/healthz", b"/api/v1/stream")
        with connect(server, said=asked) as connection:
            said = b""
            while said.count(b"still here") < 5:
                piece = connection.recv(1 << 16)
                assert piece, "the connection was closed"
                said += piece


def test_the_oldest_silent_connection_of_an_address_makes_room(tmp_path, monkeypatch):
    """So a caller gets in that shares its address with a flood."""
    monkeypatch.setattr(connection_limits, "MAX_PER_CALLER", 3)
    with running_server(tmp_path) as server, contextlib.ExitStack() as stack:
        other = stack.enter_context(connect(server, THERE, SILENT_TLS))
        silent = [stack.enter_context(connect(server, HERE, SILENT_TLS)) for _ in range(5)]
        for connection in silent[:2]:
            assert closed(connection)
        assert answers(server)  # at the cost of the third
        assert closed(silent[2])
        for connection in (other, *silent[3:]):
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):
                connection.recv(1)


def test_the_address_with_most_silent_connections_makes_room_for_others(tmp_path, monkeypatch):
    monkeypatch.setattr(connection_limits, "MAX_STRANGERS", 4)
    with running_server(tmp_path) as server, contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(server, THERE, SILENT_TLS))
        flood = [stack.enter_context(connect(server, HERE, SILENT_TLS)) for _ in range(3)]
        second = stack.enter_context(connect(server, "127.0.0.3", SILENT_TLS))
        assert closed(flood[0])
        for connection in (first, second):
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):
                connection.recv(1)


def test_behind_a_proxy_one_address_may_have_all(tmp_path, monkeypatch):
    monkeypatch.setattr(connection_limits, "MAX_PER_CALLER", 1)
    with (
        running_server(tmp_path, behind_proxy=True) as server,
        connect(server, said=SILENT_TLS) as first,
        connect(server, said=SILENT_TLS),
    ):
        assert answers(server)
        first.settimeout(0.1)
        with pytest.raises(TimeoutError):
            first.recv(1)


def test_two_thousand_silent_connections_are_held_and_an_agent_is_answered(tmp_path, limits):
    with running_server(tmp_path) as server, contextlib.ExitStack() as stack:
        for _ in range(2000):
            with contextlib.suppress(OSError):
                stack.enter_context(connect(server, HERE, SILENT_TLS))
        with server.client(server.operator) as client:
            assert client.get("whoami").status_code == 200
            assert limits[0].strangers <= 500


PAGE = b"GET /static/vendor/uplot/uPlot.iife.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"


WATCHING = b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n"


def slow_reader(server, said, address=HERE, window=2304):
    """Has asked, and takes next to nothing of the answer."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    plain.settimeout(WAIT_S)
    plain.bind((address, 0))
    plain.connect((HERE, server.ready.port))
    context = ssl.create_default_context(cadata=server.authority)
    connection = context.wrap_socket(plain, server_hostname="localhost")
    connection.sendall(said)
    return connection


def slow_readers(server, stack, count, said=PAGE * 60, address=HERE):
    return [stack.enter_context(slow_reader(server, said, address)) for _ in range(count)]


def is_open(connection, wait_s=0.1):
    connection.settimeout(wait_s)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


@pytest.mark.parametrize("address", [HERE, THERE])
def test_slow_readers_lock_no_caller_out(tmp_path, monkeypatch, address):
    """However many there are: the oldest make room, also while they are answered."""
    monkeypatch.setattr(connection_limits, "for_callers", lambda: 20)
    with running_server(tmp_path) as server, contextlib.ExitStack() as stack:
        slow_readers(server, stack, 40, address=address)
        with server.client(server.operator) as client:
            assert client.get("whoami").status_code == 200
        assert answers(server)


def test_connections_that_are_answered_count_for_their_address(tmp_path, monkeypatch, limits):
    monkeypatch.setattr(connection_limits, "MAX_PER_CALLER", 10, raising=False)
    with running_server(tmp_path) as server, contextlib.ExitStack() as stack:
        slow_readers(server, stack, 15)
        assert answers(server)
        assert limits[0].open <= 11


def test_connections_with_a_token_count_for_the_token(tmp_path, monkeypatch):
    """Neither strangers nor other tokens are in their way, and a token has so many and no more."""
    monkeypatch.setattr(connection_limits, "MAX_PER_CALLER", 3, raising=False)
    with running_server(tmp_path) as server, contextlib.ExitStack() as stack:
        tokens = [server.token("viewer").encode() for _ in range(2)]
        first, *more = [
            slow_readers(server, stack, 1, WATCHING % token)[0]
            for token in (tokens[0], tokens[1], tokens[1], tokens[1], tokens[1])
        ]
        strangers = slow_readers(server, stack, 6)
        assert not is_open(more[0], WAIT_S)
        assert not is_open(strangers[0], WAIT_S)
        assert all(map(is_open, (first, *more[1:])))


def test_the_oldest_connection_makes_room_when_descriptors_run_short(tmp_path, monkeypatch):
    monkeypatch.setattr(connection_limits, "for_callers", lambda: 1)
    with running_server(tmp_path, tls=False) as server, connect(server, said=ASKED) as first:
        assert first.recv(12) == b"HTTP/1.1 200"
        with connect(server, said=ASKED) as second:
            assert second.recv(12) == b"HTTP/1.1 200"
            assert not is_open(first)


def test_at_the_limit_of_descriptors_strangers_make_room_and_agents_stay(
    tmp_path, monkeypatch, limits
):
    monkeypatch.setattr(connection_limits, "for_callers", lambda: 20)

    async def story(server):
        agent = await FakeAgent.enrol(
            server.url, server.token("provider"), authority=server.authority
        )
        async with agent.connected():
            with contextlib.ExitStack() as stack:
                await asyncio.to_thread(slow_readers, server, stack, 60)
                assert limits[0].open <= 21
                assert server.ready.service.connections.get(agent.provider) is not None

    with running_server(tmp_path) as server:
        asyncio.run(story(server))


def test_at_the_limit_of_descriptors_the_token_that_has_most_makes_room(tmp_path, monkeypatch):
    monkeypatch.setattr(connection_limits, "for_callers", lambda: 20)
    with running_server(tmp_path) as server, contextlib.ExitStack() as stack:
        token = server.token("viewer").encode()
        watching = slow_readers(server, stack, 25, WATCHING % token)
        strangers = [stack.enter_context(connect(server, said=SILENT_TLS)) for _ in range(5)]
        assert answers(server)
        assert not is_open(watching[0], WAIT_S)
        assert all(map(is_open, strangers))


def few_bytes_in_the_kernel(monkeypatch):
    made = HttpProtocol.connection_made

    def connection_made(self, transport):
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(HttpProtocol, "connection_made", connection_made)


def impatient(monkeypatch):
    few_bytes_in_the_kernel(monkeypatch)
    monkeypatch.setattr(connection_limits, "READ_PATIENCE_S", 2.0, raising=False)
    monkeypatch.setattr(connection_limits._Connection, "patience", 2.0, raising=False)
    monkeypatch.setattr(connection_limits, "READ_BYTES_PER_S", 20_000.0, raising=False)


def read_slowly(connection, size, pause_s):
    """What comes until the end, or for some seconds."""
    taken, ends = 0, time.monotonic() + 15
    connection.settimeout(WAIT_S)
    with contextlib.suppress(OSError):
        while time.monotonic() < ends:
            piece = connection.recv(size)
            if not piece:
                return taken, True
            taken += len(piece)
            time.sleep(pause_s)
        return taken, False
    return taken, True


def test_an_answer_that_is_read_too_slowly_ends(tmp_path, monkeypatch):
    """Also one that is one of many, and read a little all the time, which the kernel takes for a
    reader."""
    impatient(monkeypatch)
    with (
        running_server(tmp_path) as server,
        slow_reader(server, PAGE * 60) as connection,
    ):
        taken, ended = read_slowly(connection, 1400, 0.2)
        assert ended
        assert taken < 200_000


def test_a_thin_line_gets_all_of_its_answers(tmp_path, monkeypatch):
    impatient(monkeypatch)
    with running_server(tmp_path, tls=True) as server:
        path = PAGE.split()[1].decode()
        with server.client() as client:
            length = len(client.get(f"{server.url}{path}").content)
        with slow_reader(server, PAGE * 8, window=32 << 10) as connection:
            taken, _ = read_slowly(connection, 8192, 0.08)  # about 100 kB in a second
            assert taken > 8 * length


def test_a_closed_connection_is_not_counted(tmp_path, limits):
    """Whatever has become of it: TLS that was none, a request, a WebSocket that was refused."""
    upgrade = (
        b"GET /api/v1/agent HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
        + b"MDAw" * 5
        + b"MA==\r\n\r\n"
    )
    for number, tls in enumerate([True, False]):
        with running_server(tmp_path / str(number), tls=tls) as server:
            for said in (b"nonsense\r\n\r\n", ASKED, upgrade):
                with connect(server) as plain, contextlib.ExitStack() as stack:
                    connection = plain
                    if tls and said is not ASKED:
                        context = ssl.create_default_context(cadata=server.authority)
                        connection = stack.enter_context(
                            context.wrap_socket(plain, server_hostname=HERE)
                        )
                    connection.sendall(said)
                    with contextlib.suppress(OSError):
                        while connection.recv(1 << 16):
                            connection.shutdown(socket.SHUT_WR)
        assert (limits[number].open, limits[number].strangers) == (0, 0)


def test_the_end_of_an_answer_has_its_time(tmp_path, monkeypatch):
    """asyncio has all of it, the handler is done, and a thin line is still reading."""
    few_bytes_in_the_kernel(monkeypatch)
    monkeypatch.setattr(connection_limits, "PENDING_S", 0.5)
    with running_server(tmp_path) as server:
        path = PAGE.split()[1].decode()
        with server.client() as client:
            length = len(client.get(f"{server.url}{path}").content)
        with slow_reader(server, PAGE, window=8192) as connection:
            taken, ended = read_slowly(connection, 2048, 0.1)
            assert taken > length
            assert ended


def test_a_peer_that_comes_back_from_the_same_port_is_another_connection():
    """Before the end of the first one was noticed."""

    def come(listener, port):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.bind((HERE, port))
        peer.connect(listener.getsockname())
        peer.sendall(ASKED)
        accepted, (_, port) = listener.accept()
        peer.close()
        return accepted, port

    async def story():
        limits = ConnectionLimits()
        with listen(HERE, 0, 10, limits) as listener:
            first, port = come(listener, 0)
            second, _ = come(listener, port)
            assert limits.open == 2
            first.close()
            assert limits.open == 1
            second.close()
            assert limits.open == 0

    asyncio.run(story())


def test_an_answer_that_is_not_read_ends_with_its_connection(monkeypatch):
    """The kernel finds out; nothing here looks at the clock."""
    monkeypatch.setitem(connection_limits._LINUX_OPTIONS, "TCP_USER_TIMEOUT", 300)

    async def story():
        over = asyncio.Event()

        async def endless(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            ending = asyncio.create_task(until_gone(receive))
            while not ending.done():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            over.set()

        async def until_gone(receive):
            while (await receive())["type"] != "http.disconnect":
                pass

        config = uvicorn.Config(
            endless, http=HttpProtocol, ws=WebSocketProtocol, lifespan="off", log_config=None
        )
        config.load()
        state, loop = ServerState(), asyncio.get_running_loop()
        with listen(HERE, 0, 10, ConnectionLimits()) as listener:
            server = await loop.create_server(
                lambda: HttpProtocol(config=config, server_state=state, app_state={}),
                sock=listener,
            )
            async with server, asyncio.timeout(WAIT_S):
                with socket.create_connection(listener.getsockname(), WAIT_S) as connection:
                    connection.sendall(ASKED)
                    await over.wait()

    asyncio.run(story())


@pytest.mark.parametrize("shape", ["one", "many", "url", "trailer", "extension"])
def test_headers_without_end_are_refused(tmp_path, shape):
    begins = b"POST /api/v1/enrol HTTP/1.1\r\nHost: localhost\r\n"
    chunked = begins + b"Transfer-Encoding: chunked\r\n\r\n"
    first, more = {
        "one": (begins + b"X: ", b"x" * (1 << 16)),
        "many": (begins, b"X: y\r\n" * (1 << 13)),
        "url": (b"GET /", b"x" * (1 << 16)),
        "trailer": (chunked + b"0\r\nX: ", b"x" * (1 << 16)),
        "extension": (chunked + b"1;", b"x" * (1 << 16)),
    }[shape]
    with running_server(tmp_path, tls=False) as server, connect(server, said=first) as connection:
        sent = 0
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while sent < 64 << 20:
                connection.sendall(more)
                sent += len(more)
        assert sent < 64 << 20
        assert answers(server, tls=False)


def test_requests_that_come_before_an_answer_wait_in_their_connection(tmp_path):
    with running_server(tmp_path, tls=False) as server, connect(server) as connection:
        connection.settimeout(1.0)
        connection.sendall(ASKED * 20)
        said = b""
        while said.count(b"HTTP/1.1 200") < 20:
            said += connection.recv(1 << 16)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%lo", "fe80::2%lo", True),
    ],
)
def test_which_addresses_are_counted_as_one(one, other, same):
    assert (address_group(one) == address_group(other)) is same


@pytest.mark.parametrize("what", ["wrong tokens", "no token", "an open dashboard"])
def test_requests_are_counted_for_the_addresses_that_connections_are(what):
    """Whoever has 64 bits of IPv6 was never slowed down: each address had a count of its own."""
    gate = Gate(Access(b"\0" * 16, [], lambda number: None), clock=lambda: 0.0)
    first, now, others = "2001:db8:1:2::", 0, "2001:db8:1:3::1"

    def refused(address):
        try:
            if what == "wrong tokens":
                gate.caller({"authorization": "Bearer rvt1_wrong"}, address)
            elif what == "no token":
                gate.allow(None, "look", address)
            else:
                scope = {"type": "http", "client": (address, 1), "headers": []}
                gate.limit("wrong", whose(ONLOOKER, HTTPConnection(scope)))
        except Refusal as refusal:
            return refusal.code
        return ""

    while refused(f"{first}{now:x}") != "limited":
        now += 1
        assert now < 5000
    assert refused(f"{first}ffff") == "limited"
    assert refused(others) != "limited"


@pytest.mark.parametrize(("ours", "new"), [(HttpProtocol, set()), (WebSocketProtocol, {"_count"})])
def test_what_of_uvicorn_is_overridden_is_there(ours, new):
    """Under another name it would not be called at all."""
    (base,) = ours.__bases__
    own = {name for name, one in vars(ours).items() if inspect.isfunction(one)}
    assert {name for name in own if not hasattr(base, name)} == new
