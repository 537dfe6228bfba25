"""Whoever connects and says nothing, or does not listen, is let go."""

import asyncio
import contextlib
import gc
import hashlib
import inspect
import queue
import socket
import ssl
import struct
import weakref

import httpx
import pytest
import uvicorn
from servers import closed, running_server
from uvicorn.server import ServerState

from ravnest.server import door, sockets, strangers, taking
from ravnest.server.sockets import Sockets

WAIT_S = 30


@pytest.fixture
def doors(monkeypatch):
    """Those of the servers that are made."""
    made = []

    class Noted(door.Door):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(strangers, "Door", Noted)
    return made


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: "])
def test_a_connection_that_does_not_ask_is_closed(tmp_path, monkeypatch, doors, tls, said):
    monkeypatch.setattr(strangers, "SILENCE_S", 0.2)
    with (
        running_server(tmp_path, tls=tls) as server,
        socket.create_connection(("127.0.0.1", server.ready.port), WAIT_S) as connection,
    ):
        connection.sendall(b"" if tls else said)
        assert closed(connection)
    assert [one.silent for one in doors] == [0]


def test_a_connection_that_never_comes_to_the_point_is_closed(tmp_path, monkeypatch):
    """Something comes after the answer, and is no request."""
    monkeypatch.setattr(strangers, "SILENCE_S", 0.2)
    unfinished = b"POST /api/v1/enrol HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    complete = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running_server(tmp_path, tls=False) as server:
        for said, more in ((complete, b"\r\n"), (unfinished, b"}")):
            with socket.create_connection(("127.0.0.1", server.ready.port), WAIT_S) as connection:
                connection.sendall(said)
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1")
                connection.sendall(more)
                while connection.recv(1 << 16):
                    pass


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
    with (
        running_server(tmp_path, tls=False) as server,
        socket.create_connection(("127.0.0.1", server.ready.port), WAIT_S) as connection,
    ):
        connection.sendall(first)
        sent = 0
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while sent < 64 << 20:
                connection.sendall(more)
                sent += len(more)
        assert sent < 64 << 20
        assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_headers_that_are_complete_and_too_large_are_refused(tmp_path):
    with running_server(tmp_path, tls=False) as server:
        large = {"X": "x" * (strangers.MOST_HEADER_BYTES + 1)}
        assert httpx.get(f"{server.url}/healthz", headers=large).status_code == 400
        assert httpx.get(f"{server.url}/healthz", headers={"X": "x" * 9000}).status_code == 200


def test_a_body_in_tiny_chunks_is_a_body(tmp_path):
    """With far more around it than headers may have."""
    content = b"x" * 200_000
    with running_server(tmp_path, tls=False) as server:
        token = server.ready.operator_token.read_text().strip()
        head = (
            f"PUT /api/v1/blobs/{hashlib.sha256(content).hexdigest()} HTTP/1.1\r\n"
            f"Host: localhost\r\nAuthorization: Bearer {token}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"
        )
        where = ("127.0.0.1", server.ready.port)
        with socket.create_connection(where, WAIT_S) as connection:
            connection.sendall(head.encode() + b"1\r\nx\r\n" * len(content) + b"0\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 204"


# ---- WebSockets that are none


UPGRADE = b" / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
KEYS = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + b"MDAw" * 5 + b"MA==\r\n"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET" + UPGRADE + KEYS + b"Content-Length: 10\r\n\r\n", b"400"),
        (b"GET" + UPGRADE + KEYS + b"Content-Length: 00\r\n\r\n", b"400"),
        (b"GET" + UPGRADE + KEYS + b"Transfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"GET" + UPGRADE + KEYS + b"Content-Length: 1\r\n\r\nx", b"400"),
        (b"GET" + UPGRADE + KEYS + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"POST" + UPGRADE + KEYS + b"Content-Length: 10\r\n\r\n", b"400"),
        (b"GET" + UPGRADE + KEYS + b"X: " + b"x" * 9000 + b"\r\n\r\n", b"431"),
        (b"GET" + UPGRADE.replace(b"/", b"/\xff", 1) + KEYS + b"\r\n", b"400"),
        (b"GET" + UPGRADE + b"\r\n", b"400"),
        # One that is: there is nothing at this address.
        (b"GET" + UPGRADE + KEYS + b"Content-Length: 0\r\n\r\n", b"403"),
    ],
    ids=["length", "zeros", "chunked", "body", "chunk", "post", "header", "path", "keys", "good"],
)
@pytest.mark.parametrize("tls", [True, False])
def test_a_websocket_that_cannot_begin_is_answered_and_closed(tmp_path, doors, tls, said, status):
    with (
        running_server(tmp_path, tls=tls) as server,
        connected(server, tls=tls) as connection,
    ):
        connection.sendall(said)
        assert read_all(connection).startswith(b"HTTP/1.1 " + status)
    assert [one.silent for one in doors] == [0]


def test_a_websocket_that_cannot_begin_is_counted_until_it_is_gone(tmp_path, monkeypatch, doors):
    monkeypatch.setattr(strangers, "SILENCE_S", 0.2)
    lost = queue.SimpleQueue()
    really = Sockets.connection_lost

    def connection_lost(self, error):
        before = doors[0].silent
        really(self, error)
        lost.put((before, doors[0].silent))

    monkeypatch.setattr(Sockets, "connection_lost", connection_lost)
    with running_server(tmp_path) as server, connected(server, tls=True) as connection:
        connection.sendall(b"GET" + UPGRADE + b"\r\n")
        # It does not say goodbye, and the end of TLS waits for that far longer than this.
        assert lost.get(timeout=20) == (1, 0)


def test_nonsense_before_a_websocket_is_accepted_ends_it(caplog):
    async def story():
        undecided, begun, over = hears_of("websocket.disconnect")
        async with answered_by(undecided) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET" + UPGRADE + KEYS + b"\r\n")
            await begun.wait()
            writer.write(b"\xff" * 100)
            await over.wait()
            await reader.read()
            writer.close()

    asyncio.run(story())
    assert not [record for record in caplog.records if record.exc_info]


def connected(server, *, tls):
    where = ("127.0.0.1", server.ready.port)
    connection = socket.create_connection(where, WAIT_S)
    if not tls:
        return connection
    context = ssl.create_default_context(cadata=server.authority)
    return context.wrap_socket(connection, server_hostname="localhost")


def read_all(connection):
    said = b""
    while piece := connection.recv(1 << 16):
        said += piece
    return said


# ---- those who ask, and do not listen


@contextlib.asynccontextmanager
async def answered_by(app, **more):
    """The protocol with another application behind it."""
    options = {"lifespan": "off", "log_config": None, "ws_per_message_deflate": False} | more
    config = uvicorn.Config(app, http=strangers.Watched, ws=Sockets, **options)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: strangers.Watched(config=config, server_state=state, app_state={}), "127.0.0.1"
    )
    async with server, asyncio.timeout(WAIT_S):
        yield server.sockets[0].getsockname()[1]


def hears_of(end):
    """An application that answers nothing; when it has been asked; when it has heard of the end."""
    begun, over = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        await receive()
        begun.set()
        assert (await receive())["type"] == end
        over.set()

    return app, begun, over


ASKED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BEGIN = {"type": "http.response.start", "status": 200, "headers": []}


def test_a_connection_whose_answers_are_not_read_is_closed(monkeypatch):
    monkeypatch.setattr(taking, "UNTAKEN_S", 0.3)

    async def story():
        over = asyncio.Event()

        async def endless(scope, receive, send):
            async def end():
                while (await receive())["type"] != "http.disconnect":
                    pass

            ending = asyncio.create_task(end())
            await send(BEGIN)
            while not ending.done():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            over.set()

        async with answered_by(endless) as port:
            with socket.create_connection(("127.0.0.1", port), WAIT_S) as connection:
                connection.sendall(ASKED)
                await over.wait()

    asyncio.run(story())


class OneWhoTakes:
    """A connection on which so many bytes have arrived at the other side, of more."""

    def __init__(self):
        self.has_taken = 0
        self.aborted = False

    def get_extra_info(self, name):
        return name

    def abort(self):
        self.aborted = True


def test_whoever_takes_a_little_is_waited_for():
    async def story():
        other = OneWhoTakes()
        watch = taking.Taking(other, lambda connection: other.has_taken)
        for _ in range(1000):
            watch.look()
            other.has_taken += 1
        assert not other.aborted
        watch.look()
        other.has_taken = None  # all of it
        watch.look()
        watch.look()
        assert not other.aborted
        other.has_taken = 1001
        watch.look()
        assert not other.aborted
        watch.look()
        assert other.aborted
        watch.stop()

    asyncio.run(story())


def test_the_system_tells_what_has_been_taken():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), WAIT_S) as reader,
    ):
        writer, _ = listener.accept()
        with writer:
            assert taking.taken(writer) is None
            writer.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while writer.send(b"x" * 65536):
                    pass
            before = taking.taken(writer)
            assert before is not None
            while taking.taken(writer) == before:
                assert reader.recv(65536)
        assert taking.taken(writer) is None


def test_requests_that_come_before_an_answer_are_few(monkeypatch):
    async def story():
        asked, released = [], asyncio.Event()

        async def slow(scope, receive, send):
            asked.append(scope["path"])
            await released.wait()
            await send(BEGIN)
            await send({"type": "http.response.body", "body": b"good"})

        async with answered_by(slow) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASKED * 5000)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            assert asked == ["/"]
            writer.close()

            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASKED * (1 + strangers.MOST_WAITING))
            released.set()
            for _ in range(1 + strangers.MOST_WAITING):
                await reader.readuntil(b"good\r\n0\r\n\r\n")
            writer.close()

    asyncio.run(story())


def test_a_connection_with_too_many_requests_ends_without_a_failure(tmp_path, caplog):
    with (
        running_server(tmp_path) as server,
        connected(server, tls=True) as connection,
        contextlib.suppress(OSError),
    ):
        connection.sendall(ASKED.replace(b"/", b"/healthz", 1) * 1000)
        read_all(connection)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_request_with_others_behind_it_hears_that_nobody_listens_any_more():
    async def story():
        waiting, begun, over = hears_of("http.disconnect")
        async with answered_by(waiting) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASKED * 2)
            await begun.wait()
            writer.transport.abort()
            await over.wait()

    asyncio.run(story())


def test_a_websocket_does_not_begin_behind_a_request_that_is_not_answered():
    """What is said on it would come between the words of the answer."""

    async def story():
        asked = []
        waiting, _, over = hears_of("http.disconnect")

        async def noted(scope, receive, send):
            asked.append(scope["type"])
            await waiting(scope, receive, send)

        async with answered_by(noted) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASKED + b"GET" + UPGRADE + KEYS + b"\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400")
            await over.wait()
            assert asked == ["http"]
            writer.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("asked", "end"),
    [
        (ASKED, "http.disconnect"),
        (b"GET" + UPGRADE + KEYS + b"\r\n", "websocket.disconnect"),
    ],
)
def test_nobody_looks_after_a_connection_that_is_gone(monkeypatch, asked, end):
    """It would be for ever, and all that belongs to it would stay as long."""

    class Noted(taking.Taking):
        def __init__(self, transport):
            super().__init__(transport)
            self.stopped = asyncio.Event()
            watches.append(self)

        def stop(self):
            super().stop()
            self.stopped.set()

    watches = []
    monkeypatch.setattr(strangers, "Taking", Noted)

    async def story():
        waiting, begun, over = hears_of(end)
        async with answered_by(waiting) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(asked)
            await begun.wait()
            writer.transport.abort()
            await over.wait()
            (watch,) = watches
            await watch.stopped.wait()
            assert watch._timer.cancelled()

    asyncio.run(story())


def test_nothing_is_kept_of_a_connection_that_has_broken(monkeypatch):
    """It would be for as long as another request may come, with all that was not sent."""

    async def story():
        gone, made = asyncio.Event(), strangers.Watched.connection_made

        def connection_made(self, transport):
            weakref.finalize(self, gone.set)
            made(self, transport)

        monkeypatch.setattr(strangers.Watched, "connection_made", connection_made)

        async def good(scope, receive, send):
            await send(BEGIN)
            await send({"type": "http.response.body", "body": b"good"})

        async with answered_by(good, timeout_keep_alive=1000) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASKED)
            await reader.readuntil(b"good\r\n0\r\n\r\n")
            at_once = struct.pack("ii", 1, 0)
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            writer.transport.abort()
            await gone.wait()

    gc.disable()
    try:
        asyncio.run(story())
    finally:
        gc.enable()


def test_the_event_loop_is_as_before_after_the_server_was_made():
    async def story():
        before = asyncio.get_running_loop().create_server
        with strangers.our_door():
            pass
        assert asyncio.get_running_loop().create_server == before

    asyncio.run(story())


@pytest.mark.parametrize(
    ("ours", "new"),
    [
        # The parser calls on_chunk_header, whether the library wants it or not.
        (strangers.Watched, {"_gone", "_heard", "_lose_patience", "_wait", "on_chunk_header"}),
        (Sockets, {"_refuse"}),
        (sockets._Frames, {"_count"}),
    ],
)
def test_what_is_done_differently_is_there_to_be_done(ours, new):
    """Whatever of a library is overridden: under another name it would not be called at all."""
    (base,) = ours.__bases__
    own = {name for name, one in vars(ours).items() if inspect.isfunction(one)}
    assert {name for name in own if not hasattr(base, name)} == new
