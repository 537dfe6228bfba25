"""Probes between providers: who gets an answer, and who does not."""

import asyncio
import datetime
import ssl
import struct

import pytest

from ravnest.agent import peers
from ravnest.agent.addresses import advertised, join_host_port, split_host_port
from ravnest.agent.identity import Identity
from ravnest.agent.pacing import Bucket
from ravnest.agent.peers import PeerListener, client_context, find, probe
from ravnest.api.control import PeerAddress
from ravnest.client.address import ServerAddress
from ravnest.errors import NodeError
from ravnest.server.authority import open_authority

NOW = datetime.datetime.now(datetime.UTC)


def identity(folder, authority, provider, *, signed_by=None):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from ravnest.agent.identity import _signing_request

    folder.mkdir(parents=True)
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    signer = signed_by or authority
    request = _signing_request(key, "any name")
    (folder / "certificate.pem").write_text(signer.sign_provider(provider, request, NOW))
    return Identity(folder, provider, "x", "credential", authority.pem)


@pytest.fixture
def authority(tmp_path):
    return open_authority(tmp_path / "authority", NOW)


def listening(one, talk, down=None):
    """Runs `talk` with the address of a listener of that identity."""

    async def inside():
        listener = PeerListener(one, "127.0.0.1", 0, down)
        await listener.open()
        try:
            return await talk(listener)
        finally:
            await listener.close()

    return asyncio.run(inside())


def test_a_provider_is_found_at_the_first_address_where_it_is_itself(tmp_path, authority):
    one, two = (identity(tmp_path / str(n), authority, n) for n in (1, 2))

    async def talk(listener):
        right = f"127.0.0.1:{listener.port}"
        found = await find(two, 1, ("127.0.0.1:1", right), measure=True)
        assert found.address == right
        assert min(found.mbps, found.latency_ms) > 0
        assert (await find(two, 1, (right,), measure=False)).mbps == 0
        # The same port answers, but as somebody else.
        assert await find(two, 3, (right,), measure=False) is None

    listening(one, talk)


def test_strangers_get_no_answer(tmp_path, authority):
    elsewhere = open_authority(tmp_path / "elsewhere", NOW)
    one = identity(tmp_path / "1", authority, 1)
    stranger = identity(tmp_path / "2", authority, 2, signed_by=elsewhere)

    async def talk(listener):
        address = f"127.0.0.1:{listener.port}"
        assert await find(stranger, 1, (address,), measure=False) is None
        nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        nobody.load_verify_locations(cadata=authority.pem)

        async def ask():
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=nobody, server_hostname="provider-1"
            )
            writer.write(struct.pack("!cI", b"P", 1))
            await reader.readexactly(5)

        with pytest.raises((ssl.SSLError, OSError, EOFError)):
            await ask()

    listening(one, talk)


@pytest.mark.parametrize("frame", [b"X\0\0\0\0", struct.pack("!cI", b"B", 1 << 31)])
def test_something_else_than_a_probe_ends_the_conversation(tmp_path, authority, frame):
    one, two = (identity(tmp_path / str(n), authority, n) for n in (1, 2))

    async def talk(listener):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            listener.port,
            ssl=client_context(two),
            server_hostname="provider-1",
        )
        writer.write(frame)
        async with asyncio.timeout(30):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.transport.abort()

    listening(one, talk)


@pytest.mark.parametrize("callers", [8, 16])
@pytest.mark.parametrize("measure", [False, True])
def test_everybody_finds_a_provider_that_all_look_for_at_once(
    tmp_path, authority, callers, measure
):
    """Four of them were told nothing, and took it for being unreachable."""
    one, *others = (identity(tmp_path / str(n), authority, n) for n in range(1, callers + 2))

    async def talk(listener):
        address = f"127.0.0.1:{listener.port}"
        return await asyncio.gather(
            *(find(other, 1, (address,), measure=measure) for other in others)
        )

    found = listening(one, talk)
    assert None not in found
    assert all(each.mbps > 0 for each in found) == measure


def test_everybody_measures_everybody_one_at_a_time(tmp_path, authority, monkeypatch):
    ours = [identity(tmp_path / str(n), authority, n) for n in range(1, 9)]
    receiving, most, count = {}, [], peers._count

    async def counted(reader, writer, down):
        port = writer.get_extra_info("sockname")[1]
        receiving[port] = receiving.get(port, 0) + 1
        most.append(receiving[port])
        try:
            await count(reader, writer, down)
        finally:
            receiving[port] -= 1

    monkeypatch.setattr(peers, "_count", counted)

    async def talk():
        listeners = {one.provider: PeerListener(one, "127.0.0.1", 0) for one in ours}
        for listener in listeners.values():
            await listener.open()
        known = [
            PeerAddress(provider=number, addresses=(f"127.0.0.1:{listener.port}",))
            for number, listener in listeners.items()
        ]
        try:
            return await asyncio.gather(
                *(
                    probe(one, [peer for peer in known if peer.provider != one.provider], lock)
                    for one, lock in ((one, asyncio.Lock()) for one in ours)
                )
            )
        finally:
            for listener in listeners.values():
                await listener.close()

    figures = asyncio.run(talk())
    assert [len(each) for each in figures] == [7] * 8
    assert all(figure.mbps > 0 for each in figures for figure in each)
    assert set(most) == {1}
    assert len(most) == 56


def test_who_is_put_off_comes_again_and_one_provider_has_few_conversations(
    tmp_path, authority, monkeypatch
):
    one, two = (identity(tmp_path / str(n), authority, n) for n in (1, 2))
    monkeypatch.setattr(peers, "_MOST_OF_ONE", 2)
    put_off, freed = peers._put_off, []

    async def talk(listener):
        async def held():
            reader, writer = await asyncio.open_connection(
                "127.0.0.1",
                listener.port,
                ssl=client_context(two),
                server_hostname="provider-1",
            )
            writer.write(struct.pack("!cI", b"P", 1))
            assert (await reader.readexactly(5))[:1] == b"P"
            return writer

        writers = [await held() for _ in range(2)]

        async def free_one(reader, writer):
            await put_off(reader, writer)
            if not freed:
                freed.append(True)
                writers.pop().transport.abort()

        monkeypatch.setattr(peers, "_put_off", free_one)
        found = await find(two, 1, (f"127.0.0.1:{listener.port}",), measure=False)
        assert len(listener._talking) <= 2
        writers.pop().transport.abort()
        return found

    assert listening(one, talk) is not None
    assert freed


def test_a_provider_that_is_always_busy_is_given_up_at_all_addresses_together(
    tmp_path, authority, monkeypatch
):
    """Each of its addresses held up whoever prepared an assignment with it."""
    one, two = (identity(tmp_path / str(n), authority, n) for n in (1, 2))
    monkeypatch.setattr(peers, "_BUSY_S", 0.5)
    tried, try_again = [], peers._try_again

    async def noting(identity, provider, address, *, measure, up):
        tried.append(address)
        return await try_again(identity, provider, address, measure=measure, up=up)

    async def talk(listener):
        monkeypatch.setattr(peers, "_try_again", noting)
        address = f"127.0.0.1:{listener.port}"
        return await find(two, 1, [address] * 16, measure=False)

    monkeypatch.setattr(PeerListener, "_answer", lambda _, *caller: peers._put_off(*caller))
    assert listening(one, talk) is None
    assert len(tried) == 1


def test_who_is_busy_is_asked_less_and_less_often(monkeypatch):
    pauses, found = [], peers.Found("somewhere")

    async def busy_for_long(*_, **__):
        if len(pauses) < 12:
            raise peers._BusyError
        return found

    async def noted(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(peers, "_try", busy_for_long)
    monkeypatch.setattr(peers.asyncio, "sleep", noted)
    monkeypatch.setattr(peers.random, "uniform", lambda least, most: 1.0)
    assert asyncio.run(find(None, 1, ["somewhere"], measure=False)) == found
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.2
    assert pauses[-1] == 5.0


def test_neighbours_are_measured_within_what_either_owner_allows(tmp_path, authority):
    """They were measured as the line is, whatever --bandwidth said."""
    one, two = (identity(tmp_path / str(n), authority, n) for n in (1, 2))
    taken = {"up": 0, "down": 0}

    class Counting(Bucket):
        def __init__(self, way):
            self.way = way

        def take(self, size):
            taken[self.way] += size
            return 0.0

    async def talk(listener):
        address = f"127.0.0.1:{listener.port}"
        await find(two, 1, (address,), measure=False, up=Counting("up"))
        assert taken == {"up": 0, "down": 0}
        return await find(two, 1, (address,), measure=True, up=Counting("up"))

    assert listening(one, talk, Counting("down")).mbps > 0
    assert taken["up"] == taken["down"] >= 64 << 10


def test_whoever_may_send_slowly_sends_small_pieces(tmp_path, authority):
    """Both sides waited for the whole of 64 kB, one after the other, and found half the speed."""
    one, two = (identity(tmp_path / str(n), authority, n) for n in (1, 2))
    pieces = []

    class Counting(Bucket):
        def __init__(self):
            pass

        def take(self, size):
            pieces.append(size)
            return 0.0

    async def talk(listener):
        address = f"127.0.0.1:{listener.port}"
        return await find(two, 1, (address,), measure=True, up=Counting())

    assert listening(one, talk).mbps > 0
    assert sum(pieces) >= 64 << 10
    assert max(pieces) <= 8 << 10


def test_the_port_is_free_between_close_and_open(tmp_path, authority):
    one = identity(tmp_path / "1", authority, 1)

    async def talk(listener):
        port = listener.port
        await listener.close()
        other = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
        other.close()
        await other.wait_closed()
        await listener.open()
        assert listener.port == port

    listening(one, talk)


def test_addresses_that_others_may_try():
    server = ServerAddress("203.0.113.7", 1)
    assert advertised(server, "192.0.2.9", 5) == ("192.0.2.9:5",)
    assert advertised(server, "2001:db8::9", 5) == ("[2001:db8::9]:5",)
    everywhere = advertised(server, "0.0.0.0", 5)
    assert not any(address.startswith("127.") for address in everywhere)
    assert "127.0.0.1:5" in advertised(ServerAddress("localhost", 1), "0.0.0.0", 5)


def test_host_and_port():
    assert split_host_port("[::1]:80", "--listen") == ("::1", 80)
    assert join_host_port(*split_host_port("[::1]:80", "--listen")) == "[::1]:80"
    for text in ("80", ":80", "host", "host:x", "host:99999", "::1:80"):
        with pytest.raises(NodeError, match="--listen"):
            split_host_port(text, "--listen")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1", "", ":", "a..b:1", "[::1%lo]:70000", "\0:1"],
)
def test_an_address_that_is_none_is_passed_over(tmp_path, authority, address):
    """One provider said that it is at port 99999, and the agents of all others ended."""
    one, two = (identity(tmp_path / str(n), authority, n) for n in (1, 2))

    async def talk(listener):
        right = f"127.0.0.1:{listener.port}"
        assert (await find(two, 1, (address, right), measure=False)).address == right
        assert await find(two, 1, (address,), measure=False) is None

    listening(one, talk)
