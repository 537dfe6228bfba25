"""What is told to those who look adds up to what they would see if they came now."""

import asyncio
import contextlib
import queue
import random

import msgspec
import pytest
from servers import running_server

from ravnest.api.views import Changes, EventView, JobView, Overview, ProviderView, ServerView
from ravnest.api.work import LinkBytes, Point, RoundReport, Span, WorkReport
from ravnest.server.changes import Event
from ravnest.server.service import responses
from ravnest.server.service import stream as module
from ravnest.server.service.audience import OVERVIEW
from ravnest.server.service.live import LiveRun
from ravnest.server.service.ratelimit import Buckets, Rate
from ravnest.server.service.stream import Sight, Stream
from ravnest.server.state.effects import Effects
from ravnest.server.state.records import Part


class House:
    """Something to look at: providers and jobs with a number each."""

    def __init__(self):
        self.providers, self.jobs, self.events = {}, {}, 0
        self.stream = Stream(Sight(self.server, self.provider, self.job, lambda job: None))

    def server(self):
        return ServerView(
            name="s",
            version="1",
            started_at=0,
            now=0,
            providers=0,
            heard=0,
            memory_bytes=0,
            gflops=0,
        )

    def provider(self, id):
        if id not in self.providers:
            return None
        seen = self.providers[id]
        return ProviderView(id=id, name="p", state="idle", since=0, seen_at=seen)

    def job(self, id):
        if id not in self.jobs:
            return None
        return JobView(
            id=id, name="j", owner="o", state="waiting", submitted_at=0, step=self.jobs[id]
        )

    def change(self, dice):
        effects = Effects()
        id, job = dice.randrange(5), f"j{dice.randrange(3)}"
        for records, key in ((self.providers, id), (self.jobs, job)):
            if dice.random() < 0.3:
                records.pop(key, None)
            else:
                records[key] = dice.randrange(1000)
        effects.providers.add(id)
        effects.jobs.add(job)
        self.events += 1
        effects.notes.append(Event(self.events, 0.0, "info", "x"))
        self.stream.touch(effects)


def decoded(frame):
    head, body = frame.decode().strip().split("\n")
    kind = Overview if head == "event: overview" else Changes
    return msgspec.json.decode(body.removeprefix("data: "), type=kind)


class Onlooker:
    """Applies what it is told, as the dashboard does."""

    def __init__(self):
        self.providers, self.jobs, self.events = {}, {}, []

    def take(self, content):
        if isinstance(content, Overview):
            self.__init__()
        for view in content.providers:
            self.providers[view.id] = view
        for view in content.jobs:
            self.jobs[view.id] = view
        self.events += content.events
        if isinstance(content, Changes):
            for id in content.gone_providers:
                self.providers.pop(id, None)
            for id in content.gone_jobs:
                self.jobs.pop(id, None)


def test_changes_applied_in_order_are_what_a_newcomer_sees(monkeypatch):
    monkeypatch.setattr(module, "PERIOD_S", 0.0)

    async def story(seed):
        dice, house, onlooker = random.Random(seed), House(), Onlooker()
        looking = house.stream.look()
        onlooker.take(decoded(await anext(looking)))
        for _ in range(20):
            for _ in range(dice.randrange(1, 4)):
                house.change(dice)
            newcomer = Onlooker()
            if dice.random() < 0.3:  # somebody comes in between
                other = house.stream.look()
                newcomer.take(decoded(await anext(other)))
                await other.aclose()
            onlooker.take(decoded(await anext(looking)))
            newcomer = Onlooker()
            newcomer.take(OVERVIEW.overview(house.stream.overview()))
            assert (onlooker.providers, onlooker.jobs) == (newcomer.providers, newcomer.jobs)
            assert onlooker.events == newcomer.events
        await looking.aclose()

    for seed in range(5):
        asyncio.run(story(seed))


def test_who_does_not_read_is_let_go_and_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(module, "PERIOD_S", 0.0)

    async def story():
        house, dice = House(), random.Random(1)
        slow, quick = house.stream.look(), house.stream.look()
        await anext(slow)
        await anext(quick)
        for _ in range(50):
            house.change(dice)
            assert isinstance(decoded(await anext(quick)), Changes)
        with pytest.raises(StopAsyncIteration):
            await anext(slow)
        assert house.stream.looking == 1
        house.stream.close()
        with pytest.raises(StopAsyncIteration):
            await anext(quick)

    asyncio.run(story())


@pytest.fixture
def left(monkeypatch):
    """Whose streams have ended."""
    found, really = queue.SimpleQueue(), Stream._leave

    def leave(self, whose):
        really(self, whose)
        found.put(whose)

    monkeypatch.setattr(Stream, "_leave", leave)
    return found


def test_one_caller_has_few_places_to_look_from_and_operators_have_theirs(
    tmp_path, monkeypatch, left
):
    monkeypatch.setattr(module, "MOST_LOOKING_EACH", 2)
    monkeypatch.setattr(module, "MOST_LOOKING", 4)
    monkeypatch.setattr(module, "_FOR_OPERATORS", 1)
    with running_server(tmp_path) as server, contextlib.ExitStack() as stack:
        one, other = (stack.enter_context(server.client(server.token("viewer"))) for _ in range(2))
        operator = stack.enter_context(server.client(server.operator))

        begun = []

        def looks(client):
            answer = stack.enter_context(client.stream("GET", "stream"))
            if answer.status_code == 200:
                begun.append(answer.iter_raw())  # kept, or it would end
                next(begun[-1])
            return answer

        first = looks(one)
        assert [looks(one).status_code for _ in range(2)] == [200, 429]
        assert [looks(other).status_code for _ in range(2)] == [200, 429]
        assert [looks(operator).status_code for _ in range(2)] == [200, 429]
        first.close()
        left.get(timeout=30)
        assert looks(operator).status_code == 200
        assert looks(one).status_code == 429


def test_of_those_who_come_at_the_same_moment_no_more_look_than_may(monkeypatch):
    monkeypatch.setattr(module, "MOST_LOOKING_EACH", 1)

    async def story():
        stream = House().stream
        first, second = stream.look(whose="a"), stream.look(whose="a")
        assert await anext(first)
        assert [frame async for frame in second] == []
        await first.aclose()
        assert stream.looking == 0

    asyncio.run(story())


def test_who_has_been_let_go_has_a_place_until_they_are_gone(monkeypatch):
    monkeypatch.setattr(module, "_QUEUED", 0)

    async def story():
        house = House()
        looking = house.stream.look(whose="v")
        await anext(looking)
        house.stream._tell()
        assert house.stream.looking == 1
        await looking.aclose()
        assert house.stream.looking == 0
        assert not house.stream._places

    asyncio.run(story())


def test_a_large_overview_comes_in_pieces():
    async def story():
        house = House()
        house.providers = dict.fromkeys(range(3000), 0)
        house.stream.begin(house.providers, [], [])
        looking, content = house.stream.look(), b""
        while not content.endswith(b"\n\n"):
            piece = await anext(looking)
            assert len(piece) <= responses.PIECE_BYTES
            content += piece
        assert len(decoded(content).providers) == 3000
        await looking.aclose()

    asyncio.run(story())


def test_nothing_is_made_while_nobody_looks():
    async def story():
        house = House()
        for _ in range(1000):
            house.change(random.Random(1))
        assert house.stream._timer is None
        assert house.stream._points == {}

    asyncio.run(story())


def test_jobs_are_in_the_order_in_which_they_were_submitted():
    times = {"b": 3.0, "c": 1.0, "a": 2.0}

    def job(id):
        return JobView(id=id, name="j", owner="o", state="waiting", submitted_at=times[id])

    house = House()
    stream = Stream(Sight(house.server, house.provider, job, lambda job: None))
    stream.begin([], times, [])
    assert [view.id for view in stream.jobs()] == ["c", "a", "b"]
    assert [view.id for view in stream.overview().jobs] == ["c", "a", "b"]


def test_an_event_is_seen_as_it_was_logged():
    shown = module.event_view(Event(1, 2.0, "error", "text", "j", 7))
    assert shown == EventView(number=1, at=2.0, level="error", text="text", job="j", provider=7)


# ---- what is live


def part(provider, cluster=0, stage=0):
    return Part(
        id=f"j-1-{provider}",
        job="j",
        run=1,
        provider=provider,
        node=f"node_{provider}",
        cluster=cluster,
        stage=stage,
        role="Root",
    )


def test_speeds_of_links_are_differences_of_totals():
    live = LiveRun.of("j", 1, [part(1), part(2, stage=1)])
    for at, sent in ((10.0, 1000), (12.0, 5000)):
        links = (
            LinkBytes(node="node_2", sent=sent, received=0),
            LinkBytes(node="x", sent=1, received=1),
        )
        live.take(part(1), WorkReport(at=at, links=links))
    assert set(live.traffic) == {(1, 2)}
    assert live.traffic[1, 2].sent_per_s == 2000.0


def test_memory_of_a_run_is_bounded_whatever_is_reported():
    parts = [part(number) for number in range(1000)]
    live = LiveRun.of("j", 1, parts)
    spans = tuple(Span("forward", n, 0, float(n), n + 0.5) for n in range(2000))
    rounds = tuple(
        RoundReport(ring=0, number=n, began=0.0, ended=1.0, members=2, outcome="applied")
        for n in range(1000)
    )
    points = tuple(Point(f"s{n}", n, 0.0, 0.0, 1.0) for n in range(2000))
    for _ in range(3):
        live.take(parts[0], WorkReport(at=1.0, spans=spans, rounds=rounds, points=points))
    assert len(live.spans[0]) == live.spans_each == 200
    assert len(live.rounds) == 50
    assert len(live.metrics) <= 200
    assert len(live._kept) <= 200


def test_a_round_told_by_every_member_is_shown_once():
    live = LiveRun.of("j", 1, [part(1), part(2)])
    ended = RoundReport(ring=3, number=4, began=0.0, ended=1.0, members=2, outcome="applied")
    for provider in (1, 2):
        live.take(part(provider), WorkReport(at=1.0, rounds=(ended,)))
    assert [(one.ring, one.number) for one in live.rounds] == [(3, 4)]


def test_the_timeline_is_of_the_last_seconds():
    live = LiveRun.of("j", 1, [part(1)])
    spans = tuple(Span("forward", n, 0, float(n), n + 0.5) for n in range(100))
    live.take(part(1), WorkReport(at=100.0, spans=spans))
    timeline = live.timeline([part(1)], 10.0, now=100.0)
    assert [span[1] for span in timeline.rows[0].spans] == list(range(90, 100))


# ---- limits


def test_a_bucket_empties_fills_and_is_one_per_caller_and_kind():
    buckets = Buckets({"a": Rate(1.0, 3), "b": Rate(1.0, 1)})
    assert [buckets.take("a", "x", 0.0) for _ in range(4)] == [True, True, True, False]
    assert buckets.take("a", "y", 0.0)
    assert buckets.take("b", "x", 0.0)
    assert [buckets.take("a", "x", 2.0) for _ in range(3)] == [True, True, False]
    assert buckets.take("a", "x", 1.0) is False  # a clock that goes back gives nothing


def test_buckets_of_many_callers_stay_few():
    buckets = Buckets({"a": Rate(1.0, 1)}, most=100)
    for number in range(1000):
        buckets.take("a", str(number), 0.0)
    assert len(buckets._buckets) == 100


def test_whoever_may_not_look_any_more_is_told_nothing_more():
    async def story():
        house = House()
        allowed = [True]
        looking = house.stream.look(lambda: allowed[0])
        await anext(looking)
        house.change(random.Random(1))
        allowed[0] = False
        with pytest.raises(StopAsyncIteration):
            await anext(looking)
        assert house.stream.looking == 0

    asyncio.run(story())
