"""Addresses of a plan that are only names, the ways that lead there, and who may answer or call."""

import asyncio

import pytest
from certificates import Authority, our_authority
from forwarder import Forwarder
from test_links import Party, free_address, numbered

from ravnest.errors import NodeError
from ravnest.wire.grpc_network import GrpcNetwork
from ravnest.wire.link import Lost, Up
from ravnest.wire.networks import network_for
from ravnest.wire.peers import Patience, Peer
from ravnest.wire.routes import Routes, split_address
from ravnest.wire.security import TlsFiles, provider_name
from ravnest.wire.tcp_network import TcpNetwork

BRIEF = Patience(connect_s=2, hello_s=1, retry_s=0.05, report_s=1)


def keys_of(number, authority=None, *, name=None):
    """As the authority of a pool signs them: for the provider's name and nothing else."""
    name = name or f"provider-{number}"
    return (authority or our_authority()).keys(
        name, dns=(name,), trusts=our_authority().certificate, name_of=provider_name
    )


class Pool:
    """Providers 1 and 2, of which 1 dials 2 by the name that the plan has for it."""

    def __init__(self, caller, answering, *, claims="node_1", through=None):
        self.two = Party(answering(None), "node_2")
        way = through or self.two.address
        self.one = Party(caller(Routes({"provider-2:1": way})), claims)
        for party in (self.one, self.two):
            party.endpoint._patience = BRIEF

    async def __aenter__(self):
        await self.two.endpoint.listen(self.two.address)
        self.link = await self.one.endpoint.dial(Peer("node_2", "provider-2:1"))
        self.back = await self.two.endpoint.expect(Peer("node_1", "provider-1:1"))
        return self

    async def __aexit__(self, *error):
        for party in (self.one, self.two):
            await party.endpoint.close(0.2)

    async def meet(self):
        await self.one.next(Up)
        await self.two.next(Up)
        self.link.send(numbered(7))
        assert (await self.two.next()).message.number == 7


def grpc(keys):
    return lambda routes: GrpcNetwork(keys, routes)


def tcp(routes):
    return TcpNetwork(routes=routes)


@pytest.mark.parametrize(
    "kinds",
    [(tcp, tcp), (grpc(None), grpc(None)), (grpc(keys_of(1)), grpc(keys_of(2)))],
    ids=["tcp", "grpc", "grpc with TLS"],
)
def test_a_route_leads_through_a_forwarder(kinds):
    async def scenario():
        pool = Pool(*kinds, through=(way := free_address()))
        between = Forwarder(way, pool.two.address)
        await between.open()
        async with pool:
            await pool.meet()
            assert between.passed
        await between.shut()

    asyncio.run(scenario())


def lost_by_the_caller(caller, answering, **options):
    async def scenario():
        async with Pool(grpc(caller), grpc(answering), **options) as pool:
            error = (await pool.one.next(Lost)).error
            heard = [event for event in iter_now(pool.two.events) if isinstance(event, Up)]
            return str(error), heard

    return asyncio.run(scenario())


def iter_now(queue):
    while not queue.empty():
        yield queue.get_nowait()


def test_whoever_answers_at_the_end_of_a_route_must_be_the_one_of_the_plan():
    """Another member of the pool, at whose machine the way happens to end."""
    error, heard = lost_by_the_caller(keys_of(1), keys_of(3))
    assert "never reached" in error
    assert not heard


def test_an_authority_of_ones_own_does_not_make_a_provider():
    stranger = Authority("another pool")
    for caller, answering in (
        (keys_of(1, stranger), keys_of(2)),
        (keys_of(1), keys_of(2, stranger)),
    ):
        error, heard = lost_by_the_caller(caller, answering)
        assert "never reached" in error
        assert not heard


def test_a_member_that_claims_to_be_another_node_is_refused(caplog):
    error, heard = lost_by_the_caller(keys_of(3), keys_of(2))
    assert "node_1 is not what the caller's certificate says, which is made out to provider-3" in (
        error
    )
    assert "refused a caller: node_1 is not" in caplog.text
    assert not heard


def test_a_refused_claim_does_not_disturb_the_one_it_claimed_to_be():
    async def scenario():
        async with Pool(grpc(keys_of(1)), grpc(keys_of(2))) as pool:
            await pool.meet()
            routes = Routes({"provider-2:1": pool.two.address})
            other = Party(GrpcNetwork(keys_of(3), routes), "node_1")
            await other.endpoint.dial(Peer("node_2", "provider-2:1"))
            assert "provider-3" in str((await other.next(Lost)).error)
            await other.endpoint.close(0.2)
            pool.link.send(numbered(8))
            assert (await pool.two.next()).message.number == 8
            assert pool.back.traffic.breaks == 0

    asyncio.run(scenario())


def test_without_the_setting_names_of_certificates_do_not_matter():
    keys = [our_authority().keys("anything", dns=("provider-2",)) for _ in range(2)]

    async def scenario():
        async with Pool(*(grpc(each) for each in keys)) as pool:
            await pool.meet()

    asyncio.run(scenario())


def test_a_common_name_counts_only_without_other_names():
    """As for whoever dials: else a certificate would be two people."""
    keys = our_authority().keys("provider-1", dns=("provider-3",), name_of=provider_name)
    error, _ = lost_by_the_caller(keys, keys_of(2))
    assert "made out to provider-3" in error


@pytest.mark.parametrize("node", ["node_1", "node_17"])
def test_a_node_belongs_to_the_provider_of_its_number(node):
    assert provider_name(node) == f"provider-{node[5:]}"
    assert keys_of(1).doubt(node, {"provider-1"}) == (
        None
        if node == "node_1"
        else "node_17 is not what the caller's certificate says, which is made out to provider-1"
    )


def test_what_is_no_node_belongs_to_nobody():
    assert keys_of(1).doubt("provider-1", {"provider-1"}) is not None
    assert keys_of(1).doubt("", set()) is not None


NO_ADDRESSES = ["provider-7", ":80", "host:", "host:0", "host:65536", "::1:80", "host:-1"]
NO_ADDRESSES += ["a b:80", "http://host:80", "[::1]", "[host]:80", 7, None]


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_what_is_no_address_is_named(address):
    with pytest.raises(NodeError, match=r"is no address; expected host:port") as caught:
        Routes({"provider-7:1": address})
    assert repr(address) in str(caught.value)
    with pytest.raises(NodeError, match="the route from"):
        Routes({address: "127.0.0.1:80"})


def test_addresses_are_taken_apart():
    assert split_address("provider-7:1", "it") == ("provider-7", 1)
    assert split_address("[fe80::1%eth0]:65535", "it") == ("fe80::1%eth0", 65535)
    routes = Routes({"provider-7:1": "[::1]:80"})
    assert (routes.real("provider-7:1"), routes.name_of("provider-7:1")) == (
        "[::1]:80",
        "provider-7",
    )
    by_hand = Routes()
    assert (by_hand.real("10.0.0.1:80"), by_hand.name_of("10.0.0.1:80")) == ("10.0.0.1:80", None)


@pytest.mark.parametrize("make", [grpc(None), tcp], ids=["grpc", "tcp"])
def test_with_a_table_of_routes_nothing_else_is_dialled(make):
    """A plan of a server named a place in its provider's network, and the worker dialled it."""

    async def scenario():
        called = []
        server = await asyncio.start_server(lambda *_: called.append(True), "127.0.0.1", 0)
        victim = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        one = Party(make(Routes({"provider-2:1": "127.0.0.1:1"})), "node_1")
        await one.endpoint.dial(Peer("node_2", victim))
        lost = await one.next(Lost)
        assert f"routes do not say where {victim} is" in str(lost.error)
        await one.endpoint.close(0.2)
        server.close()
        assert called == []

    asyncio.run(scenario())


def test_a_table_of_routes_must_be_one():
    with pytest.raises(NodeError, match=r"routes is \['provider-7:1'\]"):
        Routes(["provider-7:1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"names": "node"}, "names='node'"), ({"names": provider_name, "mutual": False}, "mutual")],
)
def test_names_that_cannot_be_checked_are_refused(tmp_path, options, message):
    for name in "abc":
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(NodeError, match=message):
        network_for("grpc", TlsFiles(tmp_path / "a", tmp_path / "b", tmp_path / "c", **options))
