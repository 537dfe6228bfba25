"""Probes between providers: who gets an answer, and who does not."""

import asyncio
import datetime
import ipaddress
import ssl
import struct

import pytest

from ravnest.agent import peers
from ravnest.agent.addresses import Dialling, advertised, join_host_port, split_host_port
from ravnest.agent.identity import Identity
from ravnest.agent.pacing import Bucket
from ravnest.agent.peers import PeerListener, client_context, probe
from ravnest.api.control import PeerAddress
from ravnest.api.dialling import Endpoint, chosen, from_here
from ravnest.api.trust_anchor import TrustAnchor
from ravnest.client.address import ServerAddress
from ravnest.errors import NodeError
from ravnest.server.authority import open_authority

NOW = datetime.datetime.now(datetime.UTC)


class AllHere:
    """All providers of these tests are on this machine, wherever they say that they are."""

    def has(self, provider, endpoint):
        return True


def no_server():
    """Its address does not matter here."""


async def find(identity, provider, addresses, **how):
    return await peers.find(identity, provider, addresses, Dialling(AllHere(), no_server), **how)


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
    return Identity(folder, provider, "x", "credential", TrustAnchor(authority.certificate))


@pytest.fixture
def authority(tmp_path):
    return open_authority(tmp_path / "authority", NOW)


def listening(one, talk, down=None):
    """Runs `talk` with the address of a listener of that identity."""

    async def inside():
        listener = PeerListener(one, "127.0.0.1", 0, down)
        listener.admit_neighbours("a1", range(64))
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


def test_a_neighbour_that_was_removed_is_answered_no_more(tmp_path, authority):
    """It was let in by the assignment, which names it as long as the run lasts."""
    one, two = (identity(tmp_path / str(n), authority, n) for n in (1, 2))
    ping, busy = struct.pack("!cI", b"P", 7), struct.pack("!cI", b"!", 0)

    async def answer(listener):
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=client_context(two), server_hostname="provider-1"
            )
            writer.write(ping)
            said = await reader.readexactly(len(ping))
            writer.transport.abort()
        return said

    async def talk(listener):
        assert await answer(listener) == ping
        listener.admit(2, 0.0)
        assert await answer(listener) == busy

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
            listener.admit_neighbours("a1", listeners)
            await listener.open()
        known = [
            PeerAddress(provider=number, addresses=(f"127.0.0.1:{listener.port}",))
            for number, listener in listeners.items()
        ]
        try:
            return await asyncio.gather(
                *(
                    probe(
                        one,
                        [peer for peer in known if peer.provider != one.provider],
                        Dialling(AllHere(), no_server),
                        asyncio.Lock(),
                    )
                    for one in ours
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
    monkeypatch.setattr(peers, "_NOT_REACHED_S", 2.0)
    tried, converse = [], peers._converse

    async def noting(identity, provider, endpoint, line, *, measure, up):
        tried.append(endpoint)
        return await converse(identity, provider, endpoint, line, measure=measure, up=up)

    async def talk(listener):
        monkeypatch.setattr(peers, "_converse", noting)
        address = f"127.0.0.1:{listener.port}"
        return await find(two, 1, [address] * 16, measure=False)

    monkeypatch.setattr(PeerListener, "_answer", lambda _, *caller: peers._put_off(*caller))
    assert listening(one, talk) is None
    assert len(tried) == 1


def test_who_is_busy_is_asked_less_and_less_often(monkeypatch):
    pauses, found = [], peers.Found(Endpoint.parse("127.0.0.1:7700"))

    async def busy_for_long(*_, **__):
        if len(pauses) < 13:
            raise peers._BusyError
        return found

    async def noted(seconds):
        pauses.append(seconds)

    async def dialled(*_):
        pass

    monkeypatch.setattr(peers, "_dial", dialled)
    monkeypatch.setattr(peers, "_measured", busy_for_long)
    monkeypatch.setattr(peers.asyncio, "sleep", noted)
    monkeypatch.setattr(peers.random, "uniform", lambda least, most: 1.0)
    assert asyncio.run(find(None, 1, [found.address], measure=False)) == found
    assert pauses.pop(0) == 0  # before the first address
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
    assert advertised(server, "192.168.2.9", 5) == ("192.168.2.9:5",)
    assert advertised(server, "2600::9", 5) == ("[2600::9]:5",)
    assert advertised(server, "localhost", 5)[0] in ("127.0.0.1:5", "[::1]:5")
    for host in ("169.254.1.1", "no-such-host.invalid"):
        with pytest.raises(NodeError, match=rf"--listen {host}:5: (no other provider|there is no)"):
            advertised(server, host, 5)
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
def test_an_address_that_is_none_is_passed_over(tmp_path, authority, address, monkeypatch):
    """One provider said that it is at port 99999, and the agents of all others ended."""
    one, two = (identity(tmp_path / str(n), authority, n) for n in (1, 2))

    async def talk(listener):
        right = f"127.0.0.1:{listener.port}"
        assert (await find(two, 1, (address, right), measure=False)).address == right
        monkeypatch.setattr(peers, "_NOT_REACHED_S", 0.1)
        assert await find(two, 1, (address,), measure=False) is None

    listening(one, talk)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Nobody waits: whenever there is nothing to do, it is as late as the next timer wants."""

    def __init__(self):
        super().__init__()
        self._now, select = 0.0, self._selector.select

        def jump(timeout=None):
            assert timeout is not None, "this would wait for ever"
            self._now += timeout
            return select(0)

        self._selector.select = jump

    def time(self):
        return self._now


class Anywhere(Dialling):
    """Of an agent in 10.0.0.0/24, whose server is far away."""

    judging_s = 0.0

    async def allowed(self, provider, addresses):
        await asyncio.sleep(self.judging_s)
        return chosen(addresses, from_here(None, [ipaddress.ip_interface("10.0.0.1/24")]))


def virtually(monkeypatch, behaviour, addresses, dialling=None):
    """What is found, when, and what was dialled when; `behaviour` says what answers where."""
    dialled = []

    async def dial(identity, provider, endpoint):
        dialled.append((str(endpoint), asyncio.get_running_loop().time()))
        await behaviour(str(endpoint))

    async def converse(identity, provider, endpoint, line, *, measure, up):
        return peers.Found(endpoint)

    monkeypatch.setattr(peers, "_dial", dial)
    monkeypatch.setattr(peers, "_converse", converse)

    async def scenario():
        around = dialling or Anywhere(AllHere(), no_server)
        found = await peers.find(None, 1, addresses, around, measure=False)
        return found and found.address, asyncio.get_running_loop().time(), dialled

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario())


async def refused(_):
    raise ConnectionRefusedError


async def filtered(_):
    await asyncio.Event().wait()


async def no_tls(_):
    await asyncio.sleep(1.3)
    raise ssl.SSLError


async def somebody_else(_):
    await asyncio.sleep(4.85)  # as late as it can be
    raise ssl.SSLCertVerificationError


@pytest.mark.parametrize(
    ("behaviour", "addresses"),
    [
        (refused, ["7.7.7.7:7700"]),
        (filtered, ["7.7.7.7:7700"]),
        (filtered, [f"7.7.7.{n}:{7700 + n % 2}" for n in range(16)]),
        (no_tls, ["7.7.7.7:7700", "10.0.0.5:7700"]),
        (somebody_else, ["7.7.7.7:7700"] * 16),
        (somebody_else, [f"7.7.7.7:{7700 + n}" for n in range(16)]),
        (refused, ["127.0.0.1:6379"]),
        (refused, ["192.168.1.1:8080", "localhost:22", "169.254.169.254:80", "nonsense"]),
    ],
)
@pytest.mark.parametrize("judging_s", [0.0, 2.0])
def test_not_reached_is_said_after_the_same_time_whatever_is_there(
    monkeypatch, behaviour, addresses, judging_s
):
    """4.01 s for an open port and 0.00 s for a closed one told a provider which is which; so did
    7 s and 5 s, where the clock ran while the addresses were judged."""
    dialling = Anywhere(AllHere(), no_server)
    dialling.judging_s = judging_s
    found, after, dialled = virtually(monkeypatch, behaviour, addresses, dialling)
    assert found is None
    assert after == pytest.approx(judging_s + peers._NOT_REACHED_S)
    # Each of them had its time.
    last = max((at for _, at in dialled), default=judging_s)
    assert last + peers._CONNECT_S < after - peers._MARGIN_S


def test_addresses_are_tried_beside_each_other_and_the_first_that_answers_is_enough(monkeypatch):
    """Each one that did not answer held up the next for four seconds."""

    async def third(address):
        if not address.startswith("7.7.7.3"):
            await filtered(address)

    names = [f"7.7.7.{n}:7700" for n in range(1, 5)]
    found, after, dialled = virtually(monkeypatch, third, names)
    assert found == names[2]
    assert [address for address, _ in dialled] == names[:3]
    assert after == dialled[-1][1] < peers._CONNECT_S


def test_what_an_agent_must_not_dial_is_not_dialled(monkeypatch):
    bad = ["127.0.0.1:6379", "169.254.169.254:80", "localhost:22", "[::ffff:127.0.0.1]:22"]
    bad += ["example.org:80", "10.1.0.5:7700", "10.0.0.5:22", "[::1]:7700", "100.100.100.200:8080"]
    _, _, dialled = virtually(monkeypatch, refused, [*bad, "10.0.0.5:7700", "7.7.7.7:7700"])
    assert [address for address, _ in dialled] == ["10.0.0.5:7700", "7.7.7.7:7700"]


def test_a_host_where_no_provider_answers_is_left_alone_for_a_while(monkeypatch):
    """Any number of agents could be made to dial a third party, as often as one likes."""
    now, count = [0.0], 0
    dialling = Anywhere(AllHere(), no_server, clock=lambda: now[0])
    for n in range(10):
        # Another port, and of IPv6 another address of the same host: it is the host that counts.
        names = [f"7.7.7.7:{7700 + n}", f"[2600::{n + 1}]:7700"]
        count += len(virtually(monkeypatch, refused, names, dialling)[2])
    assert count == 12
    _, after, dialled = virtually(monkeypatch, refused, ["7.7.7.7:7700"], dialling)
    assert (after, dialled) == (pytest.approx(peers._NOT_REACHED_S), [])
    assert len(virtually(monkeypatch, refused, ["8.8.8.8:7700"], dialling)[2]) == 1
    now[0] += 61
    assert len(virtually(monkeypatch, refused, ["7.7.7.7:7700"], dialling)[2]) == 1
    assert len(dialling._in_vain) == 1


def all_at_once(monkeypatch, behaviour, named):
    """What is found of these providers, and what was dialled."""
    dialled = []

    async def dial(identity, provider, endpoint):
        dialled.append(str(endpoint))
        await behaviour(str(endpoint))

    async def converse(identity, provider, endpoint, line, *, measure, up):
        return peers.Found(endpoint)

    monkeypatch.setattr(peers, "_dial", dial)
    monkeypatch.setattr(peers, "_converse", converse)

    async def scenario():
        around = Anywhere(AllHere(), no_server)
        each = (peers.find(None, n, names, around, measure=False) for n, names in named.items())
        return await asyncio.gather(*each), dialled

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario())


@pytest.mark.parametrize("behaviour", [refused, filtered, no_tls])
def test_a_host_is_left_alone_also_by_those_who_begin_at_once(monkeypatch, behaviour):
    """48 dials of one host began before the first of them had failed and was counted."""
    named = {n: [f"7.7.7.7:{7700 + 6 * n + k}" for k in range(6)] for n in range(16)}
    found, dialled = all_at_once(monkeypatch, behaviour, named)
    assert found == [None] * 16
    assert len(dialled) == 6


def test_many_providers_on_one_host_are_all_found(monkeypatch):
    async def slow(_):
        await asyncio.sleep(0.4)

    named = {n: [f"7.7.7.7:{7700 + n}"] for n in range(24)}
    found, _ = all_at_once(monkeypatch, slow, named)
    assert [each and each.address for each in found] == [names[0] for names in named.values()]


def test_the_provider_itself_may_be_dialled_as_often_as_one_likes(monkeypatch):
    async def there(_):
        pass

    dialling = Anywhere(AllHere(), no_server)
    for _ in range(50):
        assert virtually(monkeypatch, there, ["7.7.7.7:7700"], dialling)[0] == "7.7.7.7:7700"
