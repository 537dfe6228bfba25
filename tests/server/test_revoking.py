"""A provider that was removed still has its certificate, which opens nothing any more: neither the
port of an agent that waits for work nor that of a worker, under no name."""

import asyncio
import struct
import types

import pytest
from fake_agent import FACTS
from running import Running
from servers import running_server
from test_links import Party
from test_routes import BRIEF
from toyserver import WAIT_S

from ravnest.agent.identity import enrol, load_identity
from ravnest.agent.peers import client_context
from ravnest.api.machine import Caps
from ravnest.api.tokens import Token
from ravnest.client.address import ServerAddress
from ravnest.wire.grpc_network import GrpcNetwork
from ravnest.wire.link import Lost
from ravnest.wire.peers import Peer
from ravnest.wire.routes import Routes
from ravnest.wire.security import TlsFiles

PING = struct.pack("!cI", b"P", 7)
BUSY = struct.pack("!cI", b"!", 0)


@pytest.fixture
def server(tmp_path):
    with running_server(tmp_path / "server") as running:
        yield running


def met_by(server):
    """As an agent knows it."""
    return types.SimpleNamespace(
        address=ServerAddress.parse(server.url),
        token=lambda: Token.parse(server.token("provider")),
    )


async def answer_to(caller, port, name):
    """What the agent at that port says to a ping of the one with that certificate."""
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client_context(caller), server_hostname=name
        )
        writer.write(PING)
        said = await reader.readexactly(len(PING))
        writer.transport.abort()
    return said


async def until(answer, *call):
    async with asyncio.timeout(WAIT_S):
        while await answer_to(*call) != answer:
            await asyncio.sleep(0.05)


async def enrolled(running, home, server):
    await running.tells("joined")
    return load_identity(home, server.address)


def remove(server, provider):
    with server.client(server.operator) as operator:
        answer = operator.post(f"providers/{provider}/action", json={"action": "remove"})
        assert answer.status_code == 204


def test_the_port_of_an_agent_that_waits_for_work(server, tmp_path):
    known = met_by(server)

    async def story():
        homes = [tmp_path / name for name in ("stays", "removed", "comes later")]
        async with Running(known, homes[0]) as one, Running(known, homes[1]) as two:
            staying = await enrolled(one, homes[0], known)
            removed = await enrolled(two, homes[1], known)
            port, name = staying.port, f"provider-{staying.provider}"
            # The server has asked both to measure the line between them.
            await until(PING, removed, port, name)
            await asyncio.to_thread(remove, server, removed.provider)
            await until(BUSY, removed, port, name)
            # Another one that comes is introduced, and that does not let the removed one in.
            async with Running(known, homes[2]) as three:
                coming = await enrolled(three, homes[2], known)
                await until(PING, coming, port, name)
                assert await answer_to(removed, port, name) == BUSY

    asyncio.run(story())


def test_a_certificate_that_the_server_has_not_named_gets_no_answer(server, tmp_path):
    known = met_by(server)

    async def story():
        async with Running(known, tmp_path / "one") as one:
            alone = await enrolled(one, tmp_path / "one", known)
            name = f"provider-{alone.provider}"
            assert await answer_to(alone, alone.port, name) == BUSY

    asyncio.run(story())


@pytest.mark.parametrize("claims", ["its own number", "that of the one that came after it"])
def test_the_port_of_a_worker(server, tmp_path, claims):
    """It works with the machine that has enrolled again, and got another number."""
    known = met_by(server)
    neighbour, removed, again = (
        enrol(tmp_path / name, known.address, known.token(), name="x", facts=FACTS, caps=Caps())
        for name in ("neighbour", "removed", "again")
    )
    remove(server, removed.provider)
    claimed = removed if claims == "its own number" else again
    node, plan_address = f"node_{neighbour.provider}", f"provider-{neighbour.provider}:1"

    async def story():
        worker = Party(network(neighbour), node)
        await worker.endpoint.listen(worker.address)
        await worker.endpoint.expect(Peer(f"node_{again.provider}", "provider-3:1"))
        routes = Routes({plan_address: worker.address})
        caller = Party(network(removed, routes), f"node_{claimed.provider}")
        caller.endpoint._patience = BRIEF
        await caller.endpoint.dial(Peer(node, plan_address))
        error = (await caller.next(Lost)).error
        for party in (caller, worker):
            await party.endpoint.close(0.2)
        assert worker.events.empty()
        return str(error)

    why = "does not expect a call" if claimed is removed else "is not what the caller's certificate"
    assert why in asyncio.run(story())


def network(identity, routes=None):
    files = (identity.folder / name for name in ("ca.pem", "certificate.pem", "key.pem"))
    return GrpcNetwork(TlsFiles(*files, names="provider").read(), routes)
