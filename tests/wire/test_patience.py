"""A way that is gone for a while, as when a relay is restarted; on clocks of both kinds."""

import asyncio
import selectors

import pytest
from forwarder import Forwarder
from test_links import Party, free_address, numbered
from test_routes import grpc, keys_of, tcp

from ravnest.wire.link import Lost, Up
from ravnest.wire.memory import MemoryHub, MemoryNetwork
from ravnest.wire.peers import Patience, Peer
from ravnest.wire.routes import Routes
from ravnest.wire.streams import StreamError

LONG = Patience(resume_s=120, nobody_s=120)


class _Jumps(selectors.DefaultSelector):
    """Where everybody waits, time passes at once."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        found = super().select(0)
        if not found and timeout:
            self.now += timeout
        return found


def on_a_virtual_clock(scenario):
    jumps = _Jumps()
    loop = asyncio.SelectorEventLoop(jumps)
    loop.time = lambda: jumps.now
    try:
        loop.run_until_complete(scenario)
    finally:
        loop.close()


async def pair(patience):
    hub = MemoryHub()
    a, b = (Party(MemoryNetwork(hub), name) for name in "ab")
    for party in (a, b):
        party.endpoint._patience = patience
        await party.endpoint.listen(party.address)
    a.link, b.link = await a.endpoint.dial(b.peer), await b.endpoint.expect(a.peer)
    await a.events.get()
    await b.events.get()
    return hub, a, b


async def away(hub, party, seconds):
    """Nothing listens at its address for so long, though it lives."""
    handler = hub.handlers.pop(party.address)
    hub.cut(party.address)
    try:
        await asyncio.sleep(seconds)
    finally:
        hub.handlers[party.address] = handler


def test_a_patient_link_survives_a_minute_in_which_nobody_is_there():
    async def scenario():
        hub, a, b = await pair(LONG)
        for number in range(3):
            began = asyncio.get_running_loop().time()
            a.link.send(numbered(2 * number))
            b.link.send(numbered(2 * number + 1))
            await away(hub, b, 60)
            assert (await b.events.get()).parcel.message.number == 2 * number
            assert (await a.events.get()).parcel.message.number == 2 * number + 1
            assert asyncio.get_running_loop().time() - began < 62
        assert a.link.traffic.breaks == b.link.traffic.breaks == 3
        for party in (a, b):
            await party.endpoint.close(1)

    on_a_virtual_clock(scenario())


@pytest.mark.parametrize(("patience", "least", "most"), [(LONG, 119, 122), (Patience(), 2, 11)])
def test_it_ends_when_patience_does_on_both_sides(patience, least, most):
    async def scenario():
        hub, a, b = await pair(patience)
        began = asyncio.get_running_loop().time()
        gone = asyncio.ensure_future(away(hub, b, 1000))
        for party in (a, b):
            assert isinstance(await party.events.get(), Lost)
            assert least <= asyncio.get_running_loop().time() - began <= most
        gone.cancel()
        await asyncio.wait((gone,))
        for party in (a, b):
            await party.endpoint.close(1)

    on_a_virtual_clock(scenario())


def refusals_of(network, wanted):
    """Set when so many tries have been refused."""
    enough, dial, left = asyncio.Event(), network.dial, [wanted]

    async def counted(address):
        try:
            return await dial(address)
        except StreamError:
            left[0] -= 1
            if left[0] <= 0:
                enough.set()
            raise

    network.dial = counted
    return enough


@pytest.mark.parametrize(
    "kinds",
    [(tcp, tcp), (grpc(keys_of(1)), grpc(keys_of(2)))],
    ids=["tcp", "grpc with TLS"],
)
def test_a_relay_may_be_restarted(kinds):
    async def scenario():
        two = Party(kinds[1](None), "node_2")
        between = Forwarder(free_address(), two.address)
        network = kinds[0](Routes({"provider-2:1": between.address}))
        one = Party(network, "node_1")
        for party in (one, two):
            party.endpoint._patience = Patience(resume_s=50, nobody_s=50, retry_s=0.02)
        await between.open()
        await two.endpoint.listen(two.address)
        link = await one.endpoint.dial(Peer("node_2", "provider-2:1"))
        back = await two.endpoint.expect(Peer("node_1", "provider-1:1"))
        await one.next(Up)
        await two.next(Up)
        await between.shut()
        refused = refusals_of(network, 3)
        link.send(numbered(1))
        back.send(numbered(2))
        await asyncio.wait_for(refused.wait(), 30)
        await between.open()
        assert (await two.next()).message.number == 1
        assert (await one.next()).message.number == 2
        for party in (one, two):
            await party.endpoint.close(0.2)
        await between.shut()

    asyncio.run(scenario())
