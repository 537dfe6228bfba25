"""Connections that have not asked for anything: how many, whose, and who makes room for whom."""

import asyncio
import asyncio.sslproto
import contextlib
import errno
import gc
import logging
import queue
import socket
import ssl
import weakref

import httpx
import pytest
from servers import closed, running_server

from ravnest.server import door

WAIT_S = 30
HERE, THERE = "127.0.0.1", "127.0.0.2"
ASKED = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Visitor(asyncio.Protocol):
    """One that the door has let in to speak."""

    when_heard = None

    def __init__(self, inside):
        self._inside = inside
        self.gone = asyncio.Event()

    def connection_made(self, transport):
        self.address = transport.get_extra_info("peername")
        self._inside.put_nowait(self)

    def connection_lost(self, error):
        self.gone.set()
        self.when_heard()


class House:
    """A door, who comes in through it, and those who have come to it."""

    def __init__(self, listener, stack):
        self._where, self._stack = listener.getsockname(), stack
        self.inside = asyncio.Queue()
        self.door = door.Door(lambda: Visitor(self.inside), listener, None, WAIT_S)

    def comes(self, address):
        connection = socket.create_connection(self._where, WAIT_S, (address, 0))
        return self._stack.enter_context(connection)

    async def enters(self):
        """Who is the next to speak, and from where."""
        visitor = await self.inside.get()
        return visitor, visitor.address[0]


@contextlib.asynccontextmanager
async def house():
    async with asyncio.timeout(WAIT_S):
        with contextlib.ExitStack() as stack:
            here = House(stack.enter_context(socket.create_server((HERE, 0))), stack)
            yield here
            here.door.close()
            await here.door.wait_closed()


@pytest.mark.parametrize("tls", [True, False])
def test_one_address_has_a_bounded_number_of_silent_connections(tmp_path, monkeypatch, tls):
    """Also before TLS has begun."""
    monkeypatch.setattr(door, "MOST_SILENT", 2)
    with running_server(tmp_path, tls=tls) as server:
        where = (HERE, server.ready.port)
        context = ssl.create_default_context(cadata=server.authority)
        silent = [socket.create_connection(where, WAIT_S) for _ in range(2)]
        with socket.create_connection(where, WAIT_S) as third:
            assert closed(third)
        for plain in silent:
            connection = context.wrap_socket(plain, server_hostname=HERE) if tls else plain
            with connection:
                connection.sendall(ASKED)
                assert connection.recv(12) == b"HTTP/1.1 200"
        assert httpx.get(f"{server.url}/healthz", verify=context).status_code == 200


def test_those_of_one_address_who_may_not_speak_yet_wait_and_no_others_do(monkeypatch):
    monkeypatch.setattr(door, "MOST_SPEAKING", 2)

    async def story():
        async with house() as here:
            for _ in range(4):
                here.comes(HERE)
            here.comes(THERE)
            entered = [await here.enters() for _ in range(3)]
            assert [address for _, address in entered] == [HERE, HERE, THERE]
            assert here.door.silent == 5
            first, second = entered[0][0], entered[1][0]
            first.when_heard()
            assert (await here.enters())[1] == HERE
            second.when_heard()
            second.when_heard()  # more than once is as good
            assert (await here.enters())[1] == HERE
            assert here.door.silent == 3

    asyncio.run(story())


def test_all_of_many_who_come_at_once_get_in(tmp_path, monkeypatch):
    """Machines behind one address, when their server is there again."""
    monkeypatch.setattr(door, "MOST_SPEAKING", 2)

    async def story(server):
        context = ssl.create_default_context(cadata=server.authority)

        async def one():
            reader, writer = await asyncio.open_connection(HERE, server.ready.port, ssl=context)
            writer.write(ASKED)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()

        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(one() for _ in range(20)))

    with running_server(tmp_path) as server:
        asyncio.run(story(server))


@pytest.mark.parametrize("speaking", [1, 10])
def test_who_has_come_with_many_makes_room_for_others(monkeypatch, speaking):
    monkeypatch.setattr(door, "MOST_IN_ALL", 5)
    monkeypatch.setattr(door, "_MANY", 3)
    monkeypatch.setattr(door, "MOST_SPEAKING", speaking)

    async def story():
        async with house() as here:
            for _ in range(5):
                here.comes(HERE)
            here.comes(THERE)
            first, last = await here.enters(), await here.enters()
            while last[1] != THERE:
                last = await here.enters()
            if speaking == 1:  # whoever speaks goes on, those who wait have lost their places
                assert not first[0].gone.is_set()
            else:
                await first[0].gone.wait()
            assert here.door.silent <= 5

    asyncio.run(story())


def test_if_nobody_has_many_the_next_waits_until_somebody_has_asked(monkeypatch):
    monkeypatch.setattr(door, "MOST_IN_ALL", 2)

    async def story():
        async with house() as here:
            for _ in range(3):
                here.comes(HERE)
            first, _ = await here.enters()
            await here.enters()
            assert here.inside.empty()
            assert here.door.silent == 2
            first.when_heard()
            await here.enters()
            assert here.door.silent == 2

    asyncio.run(story())


def test_half_of_the_descriptors_are_not_for_strangers(monkeypatch):
    monkeypatch.setattr(door, "for_callers", lambda: 1)

    async def story():
        async with house() as here:
            here.comes(HERE)
            here.comes(HERE)
            first, _ = await here.enters()
            assert here.door.silent == 1
            first.when_heard()
            await here.enters()

    asyncio.run(story())


def test_what_cannot_be_taken_now_is_tried_again_and_said_once(monkeypatch, caplog):
    monkeypatch.setattr(door, "_RETRY_S", 0)
    failures = [errno.EMFILE, errno.ENOMEM, errno.ECONNABORTED] * 100

    async def story():
        loop = asyncio.get_running_loop()
        really = loop.sock_accept

        async def sock_accept(listener):
            if failures:
                code = failures.pop()
                raise OSError(code, "no")
            return await really(listener)

        loop.sock_accept = sock_accept
        async with house() as here:
            here.comes(HERE)
            await here.enters()

    with caplog.at_level(logging.INFO):
        asyncio.run(story())
    (said,) = [record for record in caplog.records if record.name == door.logger.name]
    assert "ulimit" in said.getMessage()
    assert not said.exc_info


def test_nothing_is_kept_of_a_connection_that_does_not_finish_tls(tmp_path, monkeypatch):
    """Its buffers are large; garbage that is in use of itself is seldom collected."""
    gone = queue.SimpleQueue()

    class Noted(asyncio.sslproto.SSLProtocol):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            weakref.finalize(self, gone.put, "gone")

    monkeypatch.setattr(asyncio.sslproto, "SSLProtocol", Noted)
    gc.disable()
    try:
        with running_server(tmp_path) as server:
            socket.create_connection((HERE, server.ready.port), WAIT_S).close()
            assert gone.get(timeout=WAIT_S) == "gone"
    finally:
        gc.enable()


def test_a_door_that_closes_leaves_nobody_waiting(monkeypatch):
    monkeypatch.setattr(door, "MOST_SPEAKING", 1)

    async def story():
        async with house() as here:
            here.comes(HERE)
            last = here.comes(HERE)
            here.comes(THERE)
            for _ in range(2):
                await here.enters()
            assert here.door.silent == 3
            here.door.close()
            assert closed(last)

    asyncio.run(story())


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
def test_whose_connections_are_counted_together(one, other, same):
    assert (door.origin_of(one) == door.origin_of(other)) is same
