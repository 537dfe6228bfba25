"""What a provider says about its addresses, and what of it others are told: over real sockets."""

import asyncio

import msgspec
import pytest
from fake_agent import FakeAgent, figures
from servers import running_server
from state_simulation import FACTS, SETTINGS

from ravnest.api.control import Probe
from ravnest.api.dialling import bare_ip
from ravnest.api.machine import Caps
from ravnest.server.folders import Folders
from ravnest.server.service.files import Files, Quota
from ravnest.server.service.runfiles import RunFiles
from ravnest.server.state.introducing import addresses_for
from ravnest.server.state.records import Provider
from ravnest.server.state.world import World

HOSTILE = (
    *("169.254.169.254:80", "localhost:22", "evil.example.org:7700", "[::ffff:127.0.0.1]:22"),
    *("10.0.0.5:22", "10.0.0.5:7700", "192.168.1.1:8080", "[fe80::1]:7700", "[fd00:ec2::254]:8080"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


async def told(server, addresses):
    """What an agent is told to dial, of what another one on the same machine has named."""
    token = server.token("provider")
    one, other = [
        await FakeAgent.enrol(server.url, token, authority=server.authority, name=name)
        for name in ("hostile", "honest")
    ]
    async with one.connected(), other.connected():
        await one.measure(addresses=addresses)
        await other.measure(addresses=("127.0.0.1:7701",))
        (peer,) = (await other.expect(Probe)).peers
        assert peer.provider == one.provider
        return peer.addresses


def test_of_what_a_provider_names_others_are_told_what_they_may_dial(server):
    """All of it was passed on, and dialled."""
    assert asyncio.run(told(server, ("127.0.0.1:7700", *HOSTILE))) == ("127.0.0.1:7700",)


def test_a_proxy_in_front_hides_where_agents_are(server):
    """Behind one, all of them seem to be on the server's machine."""

    async def scenario():
        token = server.token("provider")
        agent = await FakeAgent.enrol(server.url, token, authority=server.authority, name="far")
        async with agent.connected():
            presence = server.ready.service.world.heard_of(agent.provider)
            assert presence.source == bare_ip("127.0.0.1")
        agent.headers = {"X-Forwarded-For": "7.7.7.7"}
        async with agent.connected():
            assert server.ready.service.world.heard_of(agent.provider).source is None
        agent.headers = {}
        server.ready.service.gate.per_address = False  # as with --behind-proxy
        async with agent.connected():
            assert server.ready.service.world.heard_of(agent.provider).source is None

    asyncio.run(scenario())


def world_of(**seen):
    """Providers that have all named the same addresses, and where each connects from."""
    world = World(settings=SETTINGS)
    named = ("127.0.0.1:7700", "10.0.0.5:7700", "7.7.7.7:7700", "7.7.7.7:80", *HOSTILE)
    for id, (source, lan) in enumerate(seen.values(), 1):
        world.providers[id] = Provider(
            id=id,
            name="p",
            digest="",
            facts=FACTS,
            caps=Caps(lan=lan),
            figures=figures(addresses=named),
        )
        world.heard_of(id).source = bare_ip(source)
    return world


def test_who_dials_decides_what_of_it_is_told():
    world = world_of(
        far=("8.8.8.8", False),
        home=("7.7.7.7", False),
        same_home=("7.7.7.7", False),
        vpn=("9.9.9.9", True),
        unknown=("", False),
    )
    assert addresses_for(world, 1, 2) == ("7.7.7.7:7700", "7.7.7.7:80")
    private = ("10.0.0.5:7700", "7.7.7.7:7700", "7.7.7.7:80", "192.168.1.1:8080")
    # Behind one router, whose own low ports are its services, seen from inside.
    assert addresses_for(world, 3, 2) == tuple(each for each in private if each != "7.7.7.7:80")
    assert addresses_for(world, 4, 2) == private
    assert addresses_for(world, 5, 2) == ("7.7.7.7:7700", "7.7.7.7:80")
    assert addresses_for(world, 1, 5) == ("7.7.7.7:7700",)
    assert addresses_for(world, 2, 5) == ()  # its own router, named by a stranger
    assert addresses_for(world, 1, 99) == addresses_for(world, 99, 1) == ()


def test_an_assignment_has_the_addresses_that_its_provider_may_dial(tmp_path, monkeypatch):
    from ravnest.api.work import Neighbour

    world = world_of(far=("8.8.8.8", False), home=("7.7.7.7", False), other=("7.7.7.7", False))
    folders = Folders(tmp_path)
    folders.make()
    files = Files(folders, most_bytes=1 << 30, quota=Quota(1 << 30))

    class Planned(msgspec.Struct):
        neighbours: tuple[Neighbour, ...]

    near = Neighbour(provider=2, node="node_2", plan_address="provider-2:1")
    monkeypatch.setattr(RunFiles, "_assignment", lambda *_: Planned((near,)))
    run_files = RunFiles(folders, files, world)

    def told_to(provider):
        part = type("Part", (), {"id": f"j-1-{provider}", "provider": provider})
        text = asyncio.run(run_files.written_assignment(part))
        return msgspec.json.decode(text)["assignment"]["neighbours"][0]["addresses"]

    assert told_to(1) == ["7.7.7.7:7700", "7.7.7.7:80"]
    assert told_to(3)[0] == "10.0.0.5:7700"
    # It comes from elsewhere now: what was written before is not said again.
    world.heard_of(3).source = bare_ip("8.8.8.8")
    assert told_to(3) == ["7.7.7.7:7700", "7.7.7.7:80"]
    files.close()
