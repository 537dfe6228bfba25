"""A hostile provider, and a hostile server, name the services of an honest machine and its network.

All are hosts of their own. Where nobody must connect, and where somebody may, listeners count.
"""

import asyncio
import contextlib
import socket
import subprocess

import pytest
from cast import PATIENCE_S, cast, idle
from fake_agent import FakeAgent
from namespaces import entered, network
from running import Running
from toyserver import ToyServer

from ravnest.api.control import Measured, PeerAddress, Probe

pytestmark = pytest.mark.needs("namespaces")

METADATA, ELSEWHERE = "169.254.169.254", "192.168.50.1"
OWN = "5.5.5.7"
"""A global address of the honest host, whose firewall keeps others from its services."""
UNPLUGGED, ON_LOOPBACK, ROUTED, ROUTED_SIX = "5.5.6.1", "5.5.8.77", "5.5.9.5", "2600:9::7"
"""As global, and as much its own: of an interface without a line, in a prefix of loopback, and in
networks that a route leads to the host."""
SERVICES = f"{UNPLUGGED}:8080", f"{ON_LOOPBACK}:8080", f"{ROUTED}:8080", f"[{ROUTED_SIX}]:8080"
OWN_ROUTES = (
    "ip link add idle type veth peer name off",
    f"ip addr add {UNPLUGGED}/29 dev idle",
    "ip link set idle up",
    "ip addr add 5.5.8.1/24 dev lo",
    "ip route add local 5.5.9.0/24 dev lo",
    "ip -6 route add local 2600:9::/64 dev lo",
)


class Listeners:
    """Of any hosts; each connection waits in its backlog until it is asked for."""

    def __init__(self):
        self._stack = contextlib.ExitStack()
        self._open = {}

    def listen(self, host, address, port):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with entered(host):
            made = self._stack.enter_context(socket.create_server((address, port), family=family))
        made.settimeout(PATIENCE_S)
        self._open[f"{address}:{port}"] = made

    def wait_for(self, name):
        self._open[name].accept()[0].close()

    def called(self):
        """Those at which somebody has called, and was not waited for."""
        found = set()
        for name, listener in self._open.items():
            listener.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                found.add(name)
        return found

    def close(self):
        self._stack.close()


@pytest.fixture
def hosts():
    """The network, and an honest host in it with services that are nobody else's."""
    with network() as net:
        honest, listeners = net.near(), Listeners()
        run = [
            honest.inside(f"ip addr add {METADATA}/32 dev lo".split()),
            honest.inside(f"ip addr add {OWN}/32 dev lo".split()),
            *(honest.inside(command.split()) for command in OWN_ROUTES),
            net.server.inside(f"ip addr add {ELSEWHERE}/32 dev lo".split()),
            honest.inside(f"ip route add {ELSEWHERE}/32 via {net.server.address}".split()),
        ]
        for command in run:
            subprocess.run(command, check=True)
        listeners.listen(honest, "127.0.0.1", 6379)
        listeners.listen(honest, METADATA, 8080)
        for own in (OWN, UNPLUGGED, ON_LOOPBACK, ROUTED, "::"):
            listeners.listen(honest, own, 8080)
        listeners.listen(honest, honest.address, 8081)
        listeners.listen(net.server, ELSEWHERE, 8080)
        listeners.listen(net.server, net.server.address, 22)
        yield net, honest, listeners
        listeners.close()


FORBIDDEN = (
    *("127.0.0.1:6379", "localhost:6379", "[::ffff:127.0.0.1]:6379", "0.0.0.0:6379"),
    *(f"{METADATA}:8080", f"[::ffff:{METADATA}]:8080", f"{ELSEWHERE}:8080", f"{OWN}:8080"),
)


def test_a_provider_makes_nobody_dial_what_is_not_its_own(hosts, tmp_path):
    """Each of these was dialled by every agent that the server introduced to such a provider."""
    net, honest, listeners = hosts
    hostile = net.near()
    its_own = f"{hostile.address}:7700"
    listeners.listen(hostile, hostile.address, 7700)
    with cast(tmp_path, host=net.server) as made, entered(net.server):
        made.join("honest", "--memory", "2", host=honest)
        made.wait("the honest one", lambda now: len(idle(now)) == 1)
        authority = (tmp_path / "server" / "authority" / "ca.pem").read_text()

        async def scenario():
            agent = await FakeAgent.enrol(
                made.server.url,
                made.server.ready["join_token"],
                authority=authority,
                name="hostile",
            )
            async with agent.connected():
                bad = (*FORBIDDEN, f"{net.server.address}:22", f"{honest.address}:8081")
                await agent.measure(addresses=(*bad, its_own))
                # The last one of all that it names, and so dialled after the others.
                await asyncio.to_thread(listeners.wait_for, its_own)

        with entered(hostile):
            asyncio.run(scenario())
        assert listeners.called() - {its_own} == set()


@pytest.mark.parametrize("name", ["", "evil.example"])
def test_a_server_makes_nobody_dial_what_is_the_owners_own(hosts, tmp_path, monkeypatch, name):
    """A server that has a name says by DNS which addresses it has: loopback as well, in which case
    it was believed to be on the machine of whoever joined it."""
    net, honest, listeners = hosts
    allowed = f"{net.server.address}:7700"
    listeners.listen(net.server, net.server.address, 7700)
    look_up = socket.getaddrinfo

    def resolved(host, *rest, **options):
        places = ("127.0.0.1", net.server.address) if host == "evil.example" else (host,)
        return [found for place in places for found in look_up(place, *rest, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)

    async def scenario():
        server = ToyServer(tmp_path / "server")
        server.host = net.server.address
        with entered(net.server):
            await server.start()
        server.host = name or server.host
        with entered(honest):
            async with Running(server, tmp_path / "home", listen=f"{honest.address}:0"):
                await server.hear(Measured)
                bad = (*FORBIDDEN, *SERVICES, f"{net.server.address}:22", f"{honest.address}:8081")
                peers = tuple(
                    PeerAddress(provider=8 + n, addresses=(address,))
                    for n, address in enumerate((*bad, allowed))
                )
                await server.say(7, Probe(peers=peers))
                measured = await server.hear(Measured)
                assert [peer.mbps for peer in measured.figures.peers] == [0.0] * len(peers)
        await server.stop()

    asyncio.run(scenario())
    assert listeners.called() == {allowed}
