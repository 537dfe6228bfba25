"""A limit to each direction: kept over all streams, shared fairly; on clocks of both kinds."""

import asyncio
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_links import Party, numbered
from torch import rand

from ravnest.wire import flow
from ravnest.wire.framing import chunks
from ravnest.wire.grpc_network import GrpcNetwork
from ravnest.wire.link import Up
from ravnest.wire.memory import MemoryHub, MemoryNetwork
from ravnest.wire.tcp_network import TcpNetwork
from ravnest.wire.throttle import _LATE_S, Budget, FairLine, Throttle, ThrottledNetwork

MB = 1 << 20


class Source:
    """A stream that has always something to say, in chunks of one size."""

    def __init__(self, name, size):
        self.name, self.size, self.given = name, size, 0.0


def play(sources, bytes_per_s, chunks, late_s=0.0):
    """What goes out when: (time, name, size). Each waits for its turn with its next chunk."""
    budget, line, now, sent = Budget(bytes_per_s), FairLine(), 0.0, []
    owner = {}
    for source in sources:
        owner[line.enter(source.size, source.given, lambda: None)] = source
    for _ in range(chunks):
        now += budget.wait_s(now) and budget.wait_s(now) + late_s
        turn = line.leave()
        budget.spend(turn.size, now)
        source = owner.pop(turn)
        sent.append((now, source.name, turn.size))
        source.given = turn.start + turn.size
        owner[line.enter(source.size, source.given, lambda: None)] = source
    return sent


@settings(deadline=None)
@given(
    st.lists(st.integers(1, MB), min_size=1, max_size=5),
    st.floats(1e4, 1e9),
    st.sampled_from([0.0, 0.001, 0.04]),
)
def test_no_stretch_of_time_has_more_than_the_limit(sizes, bytes_per_s, late_s):
    sent = play([Source(k, size) for k, size in enumerate(sizes)], bytes_per_s, 60, late_s)
    times = [at for at, _, _ in sent]
    total = [0]
    for _, _, size in sent:
        total.append(total[-1] + size)
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            allowed = bytes_per_s * (times[last] - times[first] + _LATE_S) + max(sizes)
            assert total[last + 1] - total[first] <= allowed * (1 + 1e-9)


def test_a_late_timer_does_not_make_the_line_slower():
    sent = play([Source("a", 50_000)], 1e6, 1000, late_s=0.02)
    assert sum(size for _, _, size in sent) > 0.94 * 1e6 * sent[-1][0]


def test_streams_with_much_to_say_get_equal_shares_whatever_their_chunks():
    sent = play([Source("large", MB), Source("small", MB // 8), Source("odd", 300_001)], 1e7, 500)
    shares = Counter()
    for _, name, size in sent:
        shares[name] += size
    assert max(shares.values()) - min(shares.values()) <= 3 * MB


def test_one_who_says_little_waits_for_one_chunk_of_the_others():
    line, taken = FairLine(), []
    given = dict.fromkeys("abc", 0.0)

    def enter(name, size):
        turn = line.enter(size, given[name], lambda: taken.append(name))
        given[name] = turn.start + size

    for name in "ab":
        enter(name, MB)
    for _ in range(5):
        line.leave().take()
        enter(taken[-1], MB)
    enter("c", 100)
    line.leave().take()
    assert taken[-1] == "c"
    assert Counter(taken[:5])["a"] in (2, 3)


def test_whoever_does_not_want_its_turn_any_more_is_passed_over():
    line = FairLine()
    first, second = (line.enter(10, 0.0, lambda: None) for _ in range(2))
    first.is_off = True
    assert line
    assert line.leave() is second
    assert not line


def test_chunks_are_small_where_the_line_is_slow():
    assert Budget(1e9).chunk_bytes == MB
    assert Budget(1e6).chunk_bytes == 50_000
    assert Budget(1e3).chunk_bytes == 16 << 10


def test_a_writer_that_is_cancelled_does_not_hold_up_the_others():
    async def scenario():
        throttle = Throttle(1e6)
        await throttle.pass_through(100_000, 0.0)
        waiting = [asyncio.ensure_future(throttle.pass_through(1000, 0.0)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.wait_for(asyncio.gather(*waiting[1:]), 10)
        assert waiting[0].cancelled()
        throttle.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["memory", "grpc", "tcp"])
@pytest.mark.parametrize("way", ["sends", "receives"])
def test_all_links_together_stay_below_the_limit(kind, way):
    """Two links of one provider; a slow machine makes it slower still, never faster."""
    limit, each = 4e6, 1_000_000
    hub = MemoryHub()
    makers = {"memory": lambda: MemoryNetwork(hub), "grpc": GrpcNetwork, "tcp": TcpNetwork}
    make = makers[kind]

    async def scenario():
        limited = Party(ThrottledNetwork(make(), limit), "a")
        others = [Party(make(), name) for name in "bc"]
        await limited.endpoint.listen(limited.address)
        out, back = [], []
        for other in others:
            await other.endpoint.listen(other.address)
            out.append(await limited.endpoint.dial(other.peer))
            back.append(await other.endpoint.expect(limited.peer))
            await other.next(Up)
            await limited.next(Up)
        links = out if way == "sends" else back
        began = time.monotonic()
        for link in links:
            for number in range(4):
                link.send(numbered(number, rand(each // 16)))
        if way == "sends":
            for other in others:
                assert [(await other.next()).message.number for _ in range(4)] == [0, 1, 2, 3]
        else:
            arrived = Counter([(await limited.next()).message.number for _ in range(8)])
            assert arrived == dict.fromkeys(range(4), 2)
        seconds = time.monotonic() - began
        sent = sum(link.traffic.sent_bytes for link in links)
        assert sent > 2 * each
        # What was read last is paid for later.
        unpaid = 0 if way == "sends" else 2 * Budget(limit).chunk_bytes
        assert seconds > (2 * each - unpaid) / limit - 2 * _LATE_S
        for party in (limited, *others):
            await party.endpoint.close(0.2)

    asyncio.run(scenario())


def test_what_comes_in_does_not_hold_up_what_goes_out():
    async def scenario():
        hub = MemoryHub()
        slow, other = (
            Party(ThrottledNetwork(MemoryNetwork(hub), 20e3), "a"),
            Party(MemoryNetwork(hub), "b"),
        )
        for party in (slow, other):
            await party.endpoint.listen(party.address)
        there = await slow.endpoint.dial(other.peer)
        back = await other.endpoint.expect(slow.peer)
        await slow.next(Up)
        await other.next(Up)
        back.send(numbered(1, rand(1_000_000)))  # takes minutes
        for number in range(5):
            there.send(numbered(number))
            assert (await other.next()).message.number == number
        assert slow.events.empty()
        for party in (slow, other):
            await party.endpoint.close(0.2)

    asyncio.run(scenario())


@pytest.mark.parametrize(("limit", "size"), [(1e9, MB), (1e6, 50_000), (1e3, 16 << 10)])
def test_whoever_receives_little_is_sent_small_chunks(monkeypatch, limit, size):
    """A megabyte that came at once had to be paid for before anything else was read: half a minute
    on a thin line, in which everybody else was taken for gone."""
    asked = []

    def watched(frame, ack, chunk_bytes):
        asked.append(chunk_bytes)
        return chunks(frame, ack, chunk_bytes)

    monkeypatch.setattr(flow, "chunks", watched)
    monkeypatch.setattr(flow.Pace, "bytes_per_s", 1e9)  # as the first messages go, in no time

    async def scenario():
        hub = MemoryHub()
        slow = Party(ThrottledNetwork(MemoryNetwork(hub), limit), "a")
        other = Party(MemoryNetwork(hub), "b")
        await slow.endpoint.listen(slow.address)
        link = await other.endpoint.dial(slow.peer)
        await slow.endpoint.expect(other.peer)
        await slow.next(Up)
        link.send(numbered(1, rand(100)))
        assert (await slow.next()).message.number == 1
        for party in (slow, other):
            await party.endpoint.close(0.2)

    asyncio.run(scenario())
    assert asked == [size]


def test_nobody_is_talked_into_chunks_of_a_byte():
    class Wide:
        chunk_bytes = MB

    async def scenario():
        divided = flow.Flow(lambda _: None, ack_s=1.0)
        divided.resume(0, 1, is_first=True)
        assert divided._chunk_bytes(Wide()) == 16 << 10

    asyncio.run(scenario())
