"""How often an agent connects again, and to where it does not."""

import asyncio
import contextlib
import ipaddress
import socket
from types import SimpleNamespace

import pytest
from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.http11 import Response

from ravnest.agent import channel
from ravnest.agent.channel import Channel, open_socket
from ravnest.client.address import ServerAddress
from ravnest.errors import RavnestError

WAIT_S = 30.0
LOCAL = ServerAddress("127.0.0.1", 1)


class ClosedAtOnce:
    """A connection that the server takes, and ends before anything is said."""

    remote_address = ("127.0.0.1", 1)

    def __aiter__(self):
        return self

    async def __anext__(self):
        raise StopAsyncIteration


class FourPauses:
    """After how many failures each; then it is enough."""

    def __init__(self, longest_s):
        self.longest_s = longest_s
        self.failures = []
        self.channel = None

    def after(self, failures):
        self.failures.append(failures)
        if len(self.failures) == 4:
            self.channel.close()
        return 0.0


class Nobody:
    def opened(self):
        pass

    def heard(self, message):
        pass

    def closed(self, why):
        pass


@pytest.mark.parametrize(("lasts", "failures"), [(False, [0, 1, 2, 3]), (True, [0, 0, 0, 0])])
def test_a_connection_that_is_closed_at_once_counts_as_one_that_failed(
    monkeypatch, lasts, failures
):
    """Two agents with one identity sent each other away twice a second, for ever."""

    @contextlib.asynccontextmanager
    async def open_socket(client, path, *, most):
        yield ClosedAtOnce()

    monkeypatch.setattr(channel, "open_socket", open_socket)
    pauses = FourPauses(longest_s=0.0 if lasts else 3600.0)

    async def talk():
        pauses.channel = Channel(SimpleNamespace(address=LOCAL), Nobody(), pauses)
        async with asyncio.timeout(WAIT_S):
            await pauses.channel.run()

    asyncio.run(talk())
    assert pauses.failures == failures


def test_a_redirect_leads_nowhere(tmp_path):
    """A server could make an agent connect to any port in the network of the agent's owner."""

    async def scenario():
        called = []
        victim = await asyncio.start_server(lambda *_: called.append(True), "127.0.0.1", 0)
        place = f"ws://127.0.0.1:{victim.sockets[0].getsockname()[1]}/"

        def elsewhere(connection, request):
            return Response(302, "Found", Headers(Location=place, Connection="close"))

        async with serve(None, "127.0.0.1", 0, process_request=elsewhere) as server:
            address = ServerAddress("127.0.0.1", server.sockets[0].getsockname()[1], "http")
            client = SimpleNamespace(address=address, context=None, bearer="secret")
            with pytest.raises(RavnestError):
                async with asyncio.timeout(WAIT_S), open_socket(client, "/agent", most=1 << 20):
                    pass
        victim.close()
        assert called == []

    asyncio.run(scenario())


async def http_proxy(reader, writer):
    """Whatever it is asked for, it connects to the port of that on this machine."""
    asked = await reader.readuntil(b"\r\n\r\n")
    port = int(asked.split()[1].rpartition(b":")[2])
    server = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

    async def copy(source, target):
        while piece := await source.read(1 << 16):
            target.write(piece)
        target.close()

    await asyncio.gather(copy(reader, server[1]), copy(server[0], writer))


class Opened(Nobody):
    """Notes where the server is while the connection stands, and ends it."""

    async def of(self, host, port):
        address = ServerAddress(host, port, "http")
        client = SimpleNamespace(address=address, context=None, bearer="secret")
        self.channel = Channel(client, self)
        async with asyncio.timeout(WAIT_S):
            await self.channel.run()
        assert self.channel.server_ip is None
        return self.seen

    def opened(self):
        self.seen = self.channel.server_ip
        self.channel.close()


@pytest.mark.parametrize("proxied", [False, True])
def test_where_the_server_is_the_connection_tells_and_not_its_name(monkeypatch, proxied):
    """A name may stand for many addresses; the first one was believed, reached or not."""
    look_up = socket.getaddrinfo

    def resolved(host, *rest, **options):
        places = ("127.0.0.9", "127.0.0.1") if host == "evil.example" else (host,)
        return [found for place in places for found in look_up(place, *rest, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)

    async def scenario():
        proxy = await asyncio.start_server(http_proxy, "127.0.0.1", 0)
        if proxied:
            place = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
            monkeypatch.setenv("http_proxy", place)
        async with serve(lambda socket: socket.wait_closed(), "127.0.0.1", 0) as server:
            found = await Opened().of("evil.example", server.sockets[0].getsockname()[1])
        proxy.close()
        return found

    for name in ("http_proxy", "https_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    found = asyncio.run(scenario())
    assert found == (None if proxied else ipaddress.ip_address("127.0.0.1"))
