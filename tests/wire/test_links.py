"""What a link promises, over every network there is."""

import asyncio
import contextlib
import gc
import logging
import socket
import threading
from dataclasses import replace

import pytest
import torch
from certificates import our_authority

from ravnest.errors import PeerError
from ravnest.wire import flow, grpc_network, tcp_network
from ravnest.wire.encoding import Parcel, encode
from ravnest.wire.endpoint import Endpoint
from ravnest.wire.framing import CHUNK_BYTES, Ack, Limits, ack_chunk, chunks
from ravnest.wire.greeting import read_greeting
from ravnest.wire.grpc_network import GrpcNetwork
from ravnest.wire.link import Arrived, Lost, Up
from ravnest.wire.memory import MemoryHub, MemoryNetwork
from ravnest.wire.messages import PROTOCOL, Command, Hello
from ravnest.wire.peers import Patience, Peer
from ravnest.wire.session import Window
from ravnest.wire.streams import ListenError, StreamError
from ravnest.wire.tcp_network import TcpNetwork

QUICK = Patience(
    connect_s=5, resume_s=1.0, nobody_s=0.4, hello_s=2, retry_s=0.02, ack_s=0.01, report_s=0.2
)


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Party:
    """One endpoint with what it has heard."""

    def __init__(self, network, node, run="run", uses=True, **options):
        self.events = asyncio.Queue()
        self.uses = uses
        self.address = free_address()
        self.endpoint = Endpoint(
            network, run=run, node=node, on_event=self._heard, patience=QUICK, **options
        )
        self.peer = Peer(node, self.address)

    def _heard(self, event):
        if self.uses and isinstance(event, Arrived):
            event.link.consumed()
        self.events.put_nowait(event)

    async def next(self, kind=Arrived):
        event = await asyncio.wait_for(self.events.get(), 10)
        assert isinstance(event, kind), event
        return event.parcel if kind is Arrived else event


class World:
    """A network of one kind, and the parties on it."""

    def __init__(self, kind):
        self.hub = MemoryHub() if kind == "memory" else None
        self.encrypted = kind == "grpc with TLS"
        self.plain = kind == "tcp"
        self.parties = []

    def network(self, node):
        if self.hub:
            return MemoryNetwork(self.hub)
        if self.plain:
            return TcpNetwork()
        return GrpcNetwork(our_authority().keys(node) if self.encrypted else None)

    def party(self, node, **options):
        party = Party(self.network(node), node, **options)
        self.parties.append(party)
        return party

    async def pair(self, **options):
        """Two parties, connected: the first one dials."""
        a, b = self.party("a", **options), self.party("b", **options)
        await a.endpoint.listen(a.address)
        await b.endpoint.listen(b.address)
        a.link = await a.endpoint.dial(b.peer)
        b.link = await b.endpoint.expect(a.peer)
        await a.next(Up)
        await b.next(Up)
        return a, b

    async def end(self):
        for party in self.parties:
            await party.endpoint.close(0.2)


@pytest.fixture(params=["memory", "grpc", "grpc with TLS", "tcp"])
def run(request):
    """Runs a test's coroutine in a fresh world."""

    def run(scenario):
        async def main():
            world = World(request.param)
            try:
                await asyncio.wait_for(scenario(world), 60)
            finally:
                await world.end()

        asyncio.run(main())

    return run


def numbered(number, *tensors):
    return Parcel(Command(order="flush", number=number), tensors)


async def until(link, reached):
    """Its traffic is such; whatever is counted there wakes this up."""
    counted = asyncio.Event()

    class Noticed(flow.Traffic):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            counted.set()

    link.traffic.__class__ = Noticed
    while not reached(link.traffic):
        counted.clear()
        await counted.wait()


def test_messages_arrive_in_order_in_both_directions(run):
    async def scenario(world):
        a, b = await world.pair()
        x = torch.arange(1000.0)
        for number in range(50):
            a.link.send(numbered(number, x * number))
            b.link.send(numbered(number))
        for number in range(50):
            found = await b.next()
            assert found.message.number == number
            assert torch.equal(found.tensors[0], x * number)
            assert (await a.next()).message.number == number

    run(scenario)


def test_large_messages_arrive_whole(run):
    async def scenario(world):
        a, b = await world.pair()
        x = torch.rand(3_000_001)
        a.link.send(numbered(1, x, x[:7]))
        found = await b.next()
        assert torch.equal(found.tensors[0], x)
        assert torch.equal(found.tensors[1], x[:7])

    run(scenario)


def test_a_neighbour_may_come_later(run):
    async def scenario(world):
        a, b = world.party("a"), world.party("b")
        await a.endpoint.listen(a.address)
        a.link = await a.endpoint.dial(b.peer)
        a.link.send(numbered(1))
        await asyncio.sleep(0.3)
        await b.endpoint.listen(b.address)
        b.link = await b.endpoint.expect(a.peer)
        await b.next(Up)
        assert (await b.next()).message.number == 1

    run(scenario)


def test_one_that_never_comes_is_named(run):
    async def scenario(world):
        a = world.party("a")
        a.endpoint._patience = Patience(connect_s=0.3, retry_s=0.02, report_s=0.1)
        await a.endpoint.listen(a.address)
        await a.endpoint.dial(Peer("b", free_address()))
        await a.endpoint.expect(Peer("c", free_address()))
        lost = {(await a.next(Lost)).error.args[0] for _ in range(2)}
        assert {text.split()[0] for text in lost} == {"b", "c"}

    run(scenario)


def test_everything_sent_arrives_before_a_link_closes(run):
    async def scenario(world):
        a, b = await world.pair()
        for number in range(30):
            a.link.send(numbered(number, torch.rand(100_000)))
        assert await a.endpoint.close(10)
        assert [(await b.next()).message.number for _ in range(30)] == list(range(30))

    run(scenario)


def test_a_dead_neighbour_is_noticed_on_both_sides(run):
    async def scenario(world):
        a, b = await world.pair()
        await b.endpoint._network.close()  # as when its process dies
        assert "b" in str((await a.next(Lost)).error)
        await a.endpoint._network.close()
        assert "a" in str((await b.next(Lost)).error)

    run(scenario)


def test_nobody_waits_for_a_neighbour_that_is_not_needed_any_more(run, caplog):
    async def scenario(world):
        a, b = await world.pair()
        for party in (a, b):
            party.link._patience = replace(QUICK, resume_s=1000, nobody_s=1000)
        a.link.set_needed(False)
        a.link.send(numbered(1))
        assert (await b.next()).message.number == 1, "it was given up while it was there"
        await b.endpoint._network.close()  # as when its process dies
        assert "b" in str((await a.next(Lost)).error)
        await a.endpoint._network.close()
        await until(b.link, lambda traffic: traffic.breaks)
        b.link.set_needed(False)  # as when one hears of it later
        assert "a" in str((await b.next(Lost)).error)

    with caplog.at_level(logging.INFO):
        run(scenario)
    assert "waiting for b" not in caplog.text


def test_who_is_in_a_hurry_waits_for_nobody_who_is_not_there(run):
    """Whether it never came, was there before, or goes away later."""

    async def scenario(world):
        a, b = await world.pair()
        c, d = await world.pair()
        long = replace(QUICK, connect_s=1000, resume_s=1000, nobody_s=1000)
        for party in (a, b, c, d):
            party.link._patience = long
        await b.endpoint._network.close()  # as when its process dies
        await until(a.link, lambda traffic: traffic.breaks)
        a.link.hurry(0.1)
        assert "b" in str((await a.next(Lost)).error)
        c.link.hurry(0.1)
        c.link.send(numbered(1))
        assert (await d.next()).message.number == 1, "it was given up while it was there"
        await d.endpoint._network.close()
        assert "b" in str((await c.next(Lost)).error)
        e = world.party("e")
        e.endpoint._patience = long
        await e.endpoint.listen(e.address)
        dialled = await e.endpoint.dial(Peer("f", free_address()))
        expected = await e.endpoint.expect(Peer("g", free_address()))
        for link in (dialled, expected):
            link.hurry(0.1)
            assert (await e.next(Lost)).link is link

    run(scenario)


def test_a_lost_link_keeps_no_messages(run):
    async def scenario(world):
        a, b = await world.pair(uses=False, window=Window(bytes=1000, frames=1))
        for number in range(5):
            a.link.send(numbered(number, torch.zeros(1000)))
        await b.next()
        await b.endpoint._network.close()
        await a.next(Lost)
        a.link.send(numbered(5, torch.zeros(1000)))
        await asyncio.sleep(0)
        assert a.link._flow.session.everything_arrived
        assert not a.link._flow._outbox
        assert not await a.endpoint.close(0.1), "it must not say that everything has arrived"

    run(scenario)


def test_one_who_set_needed_late_should_be_there(run):
    async def scenario(world):
        a = world.party("a")
        nobody = Peer("b", free_address())
        a.endpoint.welcome([nobody], replace(QUICK, connect_s=1000, resume_s=0.1))
        a.endpoint._all_up_by -= 1000
        await a.endpoint.reach("b")
        assert "b" in str((await a.next(Lost)).error)

    run(scenario)


def test_a_slow_consumer_holds_the_sender_back(run):
    async def scenario(world):
        a, b = await world.pair(uses=False, window=Window(bytes=100_000, frames=1000))
        for number in range(20):
            a.link.send(numbered(number, torch.zeros(5_000)))  # 20 kB each
        heard = [await b.next() for _ in range(4)]
        await asyncio.sleep(0.2)
        assert b.events.qsize() <= 1
        for _ in range(len(heard) + b.events.qsize()):
            b.link.consumed()
        b.uses = True
        rest = [(await b.next()).message.number for _ in range(16)]
        assert rest == list(range(4, 20))

    run(scenario)


@pytest.mark.parametrize(
    ("window", "sizes"), [(Window(bytes=100_000), [9_000] * 20), (Window(frames=8), [0] * 20)]
)
def test_a_neighbour_that_does_not_keep_to_the_window_is_given_up(run, window, sizes):
    """Or one hostile provider fills the memory of the machines beside it."""

    async def scenario(world):
        a, b = world.party("a", window=Window(1 << 40, 1 << 20)), world.party("b", window=window)
        b.uses = False
        await b.endpoint.listen(b.address)
        a.link = await a.endpoint.dial(b.peer)
        await b.endpoint.expect(a.peer)
        await b.next(Up)
        for size in sizes:
            a.link.send(Parcel(Command(order="flush"), (torch.zeros(size // 4),)))
        heard = [await asyncio.wait_for(b.events.get(), 10)]
        while isinstance(heard[-1], Arrived):
            heard.append(await asyncio.wait_for(b.events.get(), 10))
        lost = heard.pop()
        assert isinstance(lost, Lost)
        assert lost.error.node == "a"
        assert "wait to be used" in str(lost.error)
        assert 0 < len(heard) < len(sizes) - 5

    run(scenario)


def test_a_neighbour_that_asks_on_and_takes_no_answers_is_given_up(run, monkeypatch):
    """They were kept without end, as what it is sent is kept until it has arrived."""
    monkeypatch.setattr(flow, "_MOST_WORDS", 50)

    async def scenario(world):
        a, b = await world.pair(window=Window(frames=8))
        a.uses = False
        kept = []
        for number in range(500):
            a.link.send(numbered(number))
            event = await asyncio.wait_for(b.events.get(), 10)
            if isinstance(event, Lost):
                break
            b.link.send(numbered(number))
            kept.append(b.link._flow.session.words)
        assert isinstance(event, Lost), event
        assert "it asks on, and 5" in str(event.error)
        assert 40 < max(kept) < 60

    run(scenario)


def test_a_large_message_does_not_wait_for_credit_that_nobody_speaks_of(run):
    """What was used up long after it came, with nothing going the other way."""

    async def scenario(world):
        a, b = await world.pair(uses=False, window=Window(bytes=100_000))
        a.link.send(numbered(1, torch.zeros(10_000)))
        await b.next()
        await asyncio.sleep(5 * QUICK.ack_s)
        b.link.consumed()
        a.link.send(numbered(2, torch.zeros(20_000)))
        assert (await b.next()).message.number == 2

    run(scenario)


def test_credit_survives_a_broken_stream():
    """Used up while the stream was broken: the sender waits for the window, and is told."""

    async def main():
        world = World("memory")
        a, b = await world.pair(uses=False, window=Window(bytes=100_000))
        a.link.send(numbered(1, torch.zeros(20_000)))
        a.link.send(numbered(2, torch.zeros(20_000)))
        await b.next()
        world.hub.cut(b.address)
        b.link.consumed()
        assert (await b.next()).message.number == 2
        await world.end()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_last_words_go_ahead_of_what_waits(run):
    async def scenario(world):
        a, b = await world.pair(uses=False, window=Window(bytes=100_000))
        for number in range(1, 6):
            a.link.send(numbered(number, torch.zeros(20_000)))
        await b.next()
        a.link.send_last(numbered(99))
        seen = []
        while 99 not in seen:
            b.link.consumed()
            seen.append((await b.next()).message.number)
        assert len(seen) <= 2

    run(scenario)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_plain_tcp_finds_neighbours_by_name_even_at_the_end(name, monkeypatch):
    """When the interpreter ends, names can no longer be looked up in a thread."""

    async def main():
        async def no_threads(*_, **__):
            raise RuntimeError("cannot schedule new futures after shutdown")

        party = Party(TcpNetwork(), "b")
        await party.endpoint.listen(party.address)
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "getaddrinfo", no_threads)
        caller = TcpNetwork()
        stream = await caller.dial(party.address.replace("127.0.0.1", name))
        stream.abandon()
        stream.abandon()
        with pytest.raises(StreamError, match="over"):
            await stream.read()
        await caller.close()
        await party.endpoint.close(0.1)

    asyncio.run(main())


def test_a_stream_that_is_given_up_takes_its_connection_along():
    """gRPC would keep it, and open it again whenever it is lost, for nobody."""

    async def main():
        party, caller = Party(GrpcNetwork(), "b"), GrpcNetwork()
        await party.endpoint.listen(party.address)
        for _ in range(3):
            (await caller.dial(party.address)).abandon()
        assert not caller._channels
        await caller.close()
        await party.endpoint.close(0.1)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_neighbour_of_which_nothing_is_heard_is_called_anew(run, caplog):
    caplog.set_level(logging.INFO, logger="ravnest.wire")

    async def scenario(world):
        a, b = world.party("a"), world.party("b")
        a.endpoint._patience = replace(QUICK, life_s=0.05, silence_s=0.2)
        b.endpoint._patience = replace(QUICK, life_s=1000)
        await b.endpoint.listen(b.address)
        a.link, b.link = await a.endpoint.dial(b.peer), await b.endpoint.expect(a.peer)
        await a.next(Up)
        await b.next(Up)
        await until(a.link, lambda traffic: traffic.breaks)
        a.link.send(numbered(5))
        assert (await b.next()).message.number == 5

    run(scenario)
    assert "broke (nothing was heard for" in caplog.text


def test_neighbours_that_have_nothing_to_say_give_signs_of_life(run):
    async def scenario(world):
        a, b = world.party("a"), world.party("b")
        for party in (a, b):
            party.endpoint._patience = replace(QUICK, life_s=0.05, silence_s=1.0)
        await b.endpoint.listen(b.address)
        a.link, b.link = await a.endpoint.dial(b.peer), await b.endpoint.expect(a.peer)
        await a.next(Up)
        await b.next(Up)
        sign = len(ack_chunk(Ack(0, 0)))
        for party in (a, b):  # longer than either would wait for a silent one
            await until(party.link, lambda traffic: traffic.received_bytes >= 40 * sign)
        assert a.link.traffic.breaks == b.link.traffic.breaks == 0
        assert a.events.empty()
        assert b.events.empty()

    run(scenario)


@pytest.mark.parametrize(
    ("pace", "size"),
    [(None, 64 << 10), (10.0, 64 << 10), (200_000.0, 200_000), (1e9, CHUNK_BYTES)],
)
def test_a_chunk_is_about_what_goes_through_in_a_second(run, monkeypatch, pace, size):
    """The other side hears whole ones only."""
    asked = []

    def watched(frame, ack, chunk_bytes):
        asked.append(chunk_bytes)
        return chunks(frame, ack, chunk_bytes)

    monkeypatch.setattr(flow, "chunks", watched)
    monkeypatch.setattr(flow.Pace, "bytes_per_s", pace)

    async def scenario(world):
        a, b = await world.pair()
        sent = torch.arange(500_000, dtype=torch.float32)
        a.link.send(numbered(1, sent))
        (arrived,) = (await b.next()).tensors
        assert torch.equal(arrived, sent)

    run(scenario)
    assert asked == [size]


@pytest.mark.parametrize("both_ways", [True, False])
def test_a_thin_line_full_of_large_messages_does_not_break(both_ways):
    """An answer to a ping comes only when all that lies before it has gone through."""

    async def pump(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(len(data) / 400_000)
        writer.close()

    async def main():
        a, b = Party(GrpcNetwork(), "a"), Party(GrpcNetwork(), "b")
        await b.endpoint.listen(b.address)
        host, port = b.address.split(":")

        async def forward(reader, writer):
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

        async with await asyncio.start_server(forward, "127.0.0.1", 0) as line:
            port_of_line = line.sockets[0].getsockname()[1]
            a.link = await a.endpoint.dial(Peer("b", f"127.0.0.1:{port_of_line}"))
            b.link = await b.endpoint.expect(a.peer)
            await a.next(Up)
            await b.next(Up)
            for sender in (a, b) if both_ways else (a,):
                sender.link.send(numbered(1, torch.zeros(700_000)))
            for receiver in (a, b) if both_ways else (b,):
                event = await asyncio.wait_for(receiver.events.get(), 60)
                assert isinstance(event, Arrived)
            assert a.link.traffic.breaks == b.link.traffic.breaks == 0
            for party in (a, b):
                await party.endpoint.close(0.2)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": "another"}, "belongs to run 'another'"),
        ({"node": "stranger"}, "does not expect a call from stranger"),
    ],
)
def test_strangers_are_refused_and_told_why(run, changes, reason):
    async def scenario(world):
        b = world.party("b")
        await b.endpoint.listen(b.address)
        await b.endpoint.expect(Peer("a", free_address()))
        stranger = world.party(**({"node": "a"} | changes))
        await stranger.endpoint.listen(stranger.address)
        await stranger.endpoint.dial(b.peer)
        error = (await stranger.next(Lost)).error
        assert isinstance(error, PeerError)
        assert reason in str(error)

    run(scenario)


def test_a_restarted_neighbour_is_not_mistaken_for_the_old_one(run):
    async def scenario(world):
        a, b = await world.pair()
        await a.endpoint._network.close()
        await until(b.link, lambda traffic: traffic.breaks)
        again = world.party("a")
        await again.endpoint.dial(b.peer)
        assert "restarted" in str((await b.next(Lost)).error)

    run(scenario)


def test_an_impostor_does_not_disturb_the_neighbour_it_pretends_to_be(run):
    async def scenario(world):
        a, b = await world.pair()
        impostor = world.party("a")
        await impostor.endpoint.dial(b.peer)
        assert "connected already" in str((await impostor.next(Lost)).error)
        a.link.send(numbered(7))
        assert (await b.next()).message.number == 7

    run(scenario)


def test_a_refusal_does_not_tell_the_run(run):
    async def scenario(world):
        b = world.party("b", run="secret")
        await b.endpoint.listen(b.address)
        stranger = world.party("a", run="guess")
        await stranger.endpoint.dial(b.peer)
        error = str((await stranger.next(Lost)).error)
        assert "guess" in error
        assert "secret" not in error

    run(scenario)


def test_tensors_are_read_when_they_are_ready_and_in_order(run):
    """A copy from a device may still be under way when its message is handed over."""

    async def scenario(world):
        a, b = await world.pair()
        late, copied = torch.zeros(300_000), threading.Event()

        def ready():
            copied.wait(10)
            late.fill_(5)

        a.link.send(Parcel(Command(order="flush", number=1), (late,), ready))
        a.link.send(numbered(2))
        b.link.send(numbered(3))
        assert (await a.next()).message.number == 3
        assert b.events.empty()
        copied.set()
        parcel = await b.next()
        assert parcel.message.number == 1
        assert (parcel.tensors[0] == 5).all()
        assert (await b.next()).message.number == 2

    run(scenario)


def test_an_address_in_use_is_said_to_be(run):
    async def scenario(world):
        a, b = world.party("a"), world.party("b")
        await a.endpoint.listen(a.address)
        with pytest.raises(ListenError, match=a.address):
            await b.endpoint.listen(a.address)

    run(scenario)


@pytest.mark.parametrize(
    "noise",
    [
        [b""],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [bytes(48)],
        [ack_chunk(Ack(0, 0))],
        [bytes(range(256)) * 100],
    ],
    ids=["nothing", "another protocol", "zeros", "acknowledgement", "garbage"],
)
def test_noise_does_not_disturb_the_neighbours(run, noise):
    async def scenario(world):
        a, b = await world.pair()
        caller = world.network("noise")
        stream = await caller.dial(b.address)
        with contextlib.suppress(StreamError):
            for chunk in noise:
                await stream.write((chunk,))
            while await stream.read() is not None:
                pass
        await stream.close()
        await caller.close()
        a.link.send(numbered(5))
        assert (await b.next()).message.number == 5

    run(scenario)


@pytest.mark.parametrize("make", [GrpcNetwork, TcpNetwork])
def test_a_caller_that_says_nothing_does_not_stay(make):
    """It would keep a descriptor, and there are only so many."""

    async def main():
        party = Party(make(), "b")
        await party.endpoint.listen(party.address)
        host, port = party.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await asyncio.wait_for(reader.read(), 60)  # until it is closed
        writer.close()
        await party.endpoint.close(0.1)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["grpc", "grpc with TLS", "tcp"])
def test_so_many_callers_are_let_in_and_no_more(kind, monkeypatch):
    """Whoever comes in too late is sent away at once; the neighbours do not notice."""
    for network in (grpc_network, tcp_network):
        monkeypatch.setattr(network, "for_callers", lambda: 4)

    async def caller(address):
        """Comes in now; the task ends when it is sent away."""
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))

        async def until_closed():
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1 << 16):
                    pass
            writer.close()

        return asyncio.create_task(until_closed())

    async def main():
        world = World(kind)
        a, b = await world.pair()
        early = [await caller(b.address) for _ in range(3)]
        late = [await caller(b.address) for _ in range(5)]
        try:
            await asyncio.wait_for(asyncio.gather(*late), 60)
            assert not any(task.done() for task in early)
            a.link.send(numbered(5))
            assert (await b.next()).message.number == 5
        finally:
            for task in early:
                task.cancel()
            await world.end()

    asyncio.run(main())


def test_a_neighbour_that_sends_garbage_is_given_up(run):
    async def scenario(world):
        a, b = await world.pair()
        with contextlib.suppress(StreamError):  # it may be over before the call returns
            await a.link._stream.write((b"garbage" * 20,))
        assert "unreadable" in str((await b.next(Lost)).error)

    run(scenario)


def test_an_oversized_message_is_refused(run):
    async def scenario(world):
        a, b = await world.pair(limits=Limits(body_bytes=10_000))
        a.link.send(numbered(1, torch.zeros(10_000)))
        assert "at most" in str((await b.next(Lost)).error)

    run(scenario)


@pytest.mark.parametrize("later", [0, 1, 2, 5])
def test_broken_streams_are_resumed_without_loss_or_repetition(later):
    """Cut again and again while both sides talk; only the memory network can be cut at will."""

    async def scenario():
        world = World("memory")
        a, b = await world.pair()
        for number in range(60):
            a.link.send(numbered(number, torch.rand(300_000)))
            b.link.send(numbered(number))
            if number % 7 == 3:
                world.hub.cut(b.address, later)
            await asyncio.sleep(0.003)
        assert [(await b.next()).message.number for _ in range(60)] == list(range(60))
        assert [(await a.next()).message.number for _ in range(60)] == list(range(60))
        assert a.link.traffic.breaks >= 3
        await world.end()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_broken_grpc_connection_is_resumed():
    """A proxy between the two drops every connection twice; nothing is lost."""

    async def scenario():
        world = World("grpc")
        a, b = world.party("a"), world.party("b")
        async with Proxy(b.address) as proxy:
            await a.endpoint.listen(a.address)
            await b.endpoint.listen(b.address)
            a.link = await a.endpoint.dial(Peer("b", proxy.address))
            b.link = await b.endpoint.expect(a.peer)
            await b.next(Up)
            for number in range(40):
                a.link.send(numbered(number, torch.rand(200_000)))
                if number in (10, 25):
                    proxy.drop()
                await asyncio.sleep(0.01)
            assert [(await b.next()).message.number for _ in range(40)] == list(range(40))
            assert a.link.traffic.breaks >= 1
            await world.end()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_grpc_call_that_is_cut_before_its_hello_is_answered_is_resumed():
    async def scenario():
        world = World("grpc")
        b = world.party("b")
        await b.endpoint.listen(b.address)
        await b.endpoint.expect(Peer("a", free_address()))
        caller = GrpcNetwork()
        said = {"run": "run", "node": "a", "session": "x", "received": 0}
        hello = Hello(protocol=PROTOCOL, chunk_bytes=1, **said)

        async def call():
            stream = await caller.dial(b.address)
            for parts in chunks(encode(Parcel(hello), 1), Ack(0, 0)):
                await stream.write(parts)
            return stream

        for later_s in 10 * (None, 0, 0.0005, 0.001):  # before and while it is answered
            stream = await call()
            if later_s is not None:
                await asyncio.sleep(later_s)
            stream.abandon()
            await asyncio.sleep(0.02)
        stream = await call()
        assert isinstance(await read_greeting(stream, 5), Hello)
        await b.next(Up)
        assert b.events.empty(), "the link was given up"
        stream.abandon()
        await caller.close()
        await world.end()

    asyncio.run(asyncio.wait_for(scenario(), 60))


class Proxy:
    """Passes bytes on to an address, and can drop all connections."""

    def __init__(self, target):
        self.target = target
        self.writers = []
        self.tasks = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_):
        self.server.close()
        self.drop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        host, _, port = self.target.rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        self.writers += [writer, there_writer]
        for source, target in ((reader, there_writer), (there_reader, writer)):
            self.tasks.append(asyncio.ensure_future(self._pump(source, target)))

    async def _pump(self, source, target):
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        target.close()

    def drop(self):
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


def test_a_greeting_is_not_repeated_later(run):
    """Whoever sends a second Hello is up to something."""

    async def scenario(world):
        a, b = await world.pair()
        said = {"run": "run", "node": "a", "session": "x", "received": 0}
        hello = Hello(protocol=PROTOCOL, chunk_bytes=1, **said)
        with contextlib.suppress(StreamError):
            for parts in chunks(encode(Parcel(hello), 1), Ack(0, 0)):
                await a.link._stream.write(parts)
        assert "greeting in the middle" in str((await b.next(Lost)).error)

    run(scenario)


def test_a_link_can_be_closed_at_any_moment_of_its_dialling(run):
    """A wait that is cancelled just when it ends swallows that; the link must not live on."""

    async def scenario(world):
        answering = world.party("b")
        await answering.endpoint.listen(answering.address)
        answering.endpoint.welcome([Peer("a", "nowhere:1")], QUICK)
        for steps in range(60):
            calling = Party(world.network("a"), "a")
            link = await calling.endpoint.dial(answering.peer)
            for _ in range(steps):
                await asyncio.sleep(0)
            await asyncio.wait_for(calling.endpoint.close(0.0), 10)
            assert link._runner.done()
            answering.endpoint._links.clear()

    run(scenario)


def test_a_link_that_is_closed_before_it_was_greeted_leaves_nothing_behind(run):
    """Such as a task with an error of which nobody takes notice, and asyncio complains."""

    async def scenario(world):
        complaints = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
        called, silent = asyncio.Event(), world.network("b")

        async def say_nothing(stream):
            called.set()
            with contextlib.suppress(StreamError):
                await stream.read()
                await stream.read()

        address = free_address()
        await silent.listen(address, say_nothing)
        a = world.party("a")
        await a.endpoint.dial(Peer("b", address))
        await asyncio.wait_for(called.wait(), 10)
        await asyncio.sleep(0.05)
        await a.endpoint.close(0.1)
        await silent.close()
        gc.collect()
        await asyncio.sleep(0.05)
        assert complaints == []

    run(scenario)


def test_whoever_is_welcome_may_call_and_be_called(run):
    async def scenario(world):
        a, b, c = (world.party(node) for node in "abc")
        for party in (a, b, c):
            await party.endpoint.listen(party.address)
        for party, others in ((a, (b, c)), (b, (a, c)), (c, (a, b))):
            party.endpoint.welcome([other.peer for other in others], QUICK)
        one, two = await a.endpoint.reach("b"), await c.endpoint.reach("b")
        assert await a.endpoint.reach("b") is one
        one.send(Parcel(Command(order="flush", number=1)))
        two.send(Parcel(Command(order="flush", number=2)))
        # b has not asked for a, which dials; c waits to be called, so b has to need it too.
        await b.next(Up)
        assert (await b.next()).message.number == 1
        await b.endpoint.reach("c")
        await b.next(Up)
        assert (await b.next()).message.number == 2

    run(scenario)
