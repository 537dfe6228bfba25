"""A server and agents that talk to it, over real sockets."""

import asyncio
import contextlib
import json
import ssl
from queue import Queue

import httpx
import msgspec
import pytest
from fake_agent import FACTS, FakeAgent, key_request
from servers import TIMEOUT_S, running_server
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ravnest.api.control import Hello, Rejected, SetPause
from ravnest.api.views import Changes, Overview
from ravnest.server import connection_limits
from ravnest.server.connection_limits import MAX_CONTROL_FRAMES, SMALL_FRAGMENT_BYTES
from ravnest.server.service.connections import Connection


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def join(server):
    return server.token("provider")


def overview(server, bearer=None):
    with server.client(bearer) as client:
        answer = client.get("overview")
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=Overview)


def view_of(server, provider):
    return next((p for p in overview(server).providers if p.id == provider), None)


async def enrol(server, join, name="fake", **more):
    return await FakeAgent.enrol(server.url, join, authority=server.authority, name=name, **more)


async def seen(server, provider, wanted):
    """Wait on the stream, not on the clock, until the view of a provider is as wanted."""
    context = ssl.create_default_context(cadata=server.authority)
    headers = {"Authorization": f"Bearer {server.operator}"}
    async with (
        asyncio.timeout(30),
        httpx.AsyncClient(verify=context, timeout=30, headers=headers) as client,
        client.stream("GET", f"{server.url}/api/v1/stream") as answer,
    ):
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                shape = Overview if kind == "overview" else Changes
                content = msgspec.json.decode(line.removeprefix("data: "), type=shape)
                for view in content.providers:
                    if view.id == provider and wanted(view):
                        return view
    raise AssertionError("the stream ended")


def test_messages_of_agents_are_counted_by_kind(server, join):
    def counted():
        with server.client(server.operator) as client:
            lines = client.get("metrics").text.splitlines()
        assert not [line for line in lines if "_created" in line]
        name = 'ravnest_agent_messages_total{kind="beat"} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    async def story():
        agent = await enrol(server, join, "counted")
        async with agent.connected():
            before = counted()
            for cpu in (0.25, 0.5):
                await agent.beat(cpu=cpu)
            await seen(server, agent.provider, lambda view: view.cpu == 0.5)
            assert counted() == before + 2

    asyncio.run(story())


def test_an_agent_enrols_connects_is_measured_and_seen(server, join):
    async def story():
        agent = await enrol(server, join, "laptop of Ada")
        assert view_of(server, agent.provider).state == "away"
        async with agent.connected():
            await agent.measure(gflops=77.0)
            view = await seen(server, agent.provider, lambda view: view.measured)
            assert (view.name, view.state, view.gflops) == ("laptop of Ada", "idle", 77.0)
            await agent.beat(cpu=0.5)
            await seen(server, agent.provider, lambda view: view.cpu == 0.5)
        await seen(server, agent.provider, lambda view: view.state == "away")

    asyncio.run(story())


def test_what_was_left_out_of_reports_is_told_when_the_provider_is_gone(server, join):
    told = Queue()
    server.ready.service.reports._moderation.tell_rest = told.put

    async def story():
        agent = await enrol(server, join)
        async with agent.connected():
            assert told.empty()
        return agent.provider

    provider = asyncio.run(story())
    assert told.get(timeout=TIMEOUT_S) == provider


def test_the_newest_connection_of_a_provider_wins(server, join):
    async def story():
        agent = await enrol(server, join)
        again = FakeAgent(server.url, agent.enrolled, authority=server.authority, name="again")
        async with agent.connected(), again.connected():
            said = await agent.expect(Rejected)
            assert not said.final
            await agent.closed()
            assert view_of(server, agent.provider).state == "idle"
            await again.measure()
            await seen(server, agent.provider, lambda view: view.measured)

    asyncio.run(story())


def test_an_operator_pauses_resumes_and_removes_a_provider(server, join):
    async def story():
        agent = await enrol(server, join)
        path = f"providers/{agent.provider}/action"
        async with agent.connected():
            with server.client(server.operator) as operator:
                assert operator.post(path, json={"action": "pause"}).status_code == 204
                assert (await agent.expect(SetPause)).paused
                assert view_of(server, agent.provider).state == "paused"
                assert operator.post(path, json={"action": "resume"}).status_code == 204
                assert not (await agent.expect(SetPause)).paused
                assert operator.post(path, json={"action": "remove"}).status_code == 204
            assert (await agent.expect(Rejected)).final
            await agent.closed()
        assert view_of(server, agent.provider) is None
        with pytest.raises(InvalidStatus) as refused:
            async with agent.connected():
                pass
        assert refused.value.response.status_code == 401

    asyncio.run(story())


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        '{"type":"unknown"}',
        '{"type":"beat","state":"dancing"}',
        '{"type":"beat","state":"idle","more":1}',
        '{"state":' + "[" * 100_000,  # before its type: what follows one is of known shape
        b"\x00\x01",
    ],
)
def test_a_frame_that_is_not_understood_ends_the_connection_with_the_reason(
    server, join, caplog, text
):
    async def story():
        agent = await enrol(server, join)
        async with agent.connected():
            await agent._socket.send(text)
            said = await agent.expect(Rejected)
            assert not said.final
            assert said.reason
            await agent.closed()

    asyncio.run(story())
    assert not [record for record in caplog.records if record.exc_info]


def pings(socket):
    return [socket.ping() for _ in range(MAX_CONTROL_FRAMES + 1)]


def pieces(socket):
    return [socket.send(["{", *[""] * MAX_CONTROL_FRAMES, "}"])]


@pytest.mark.parametrize("flood", [pings, pieces])
def test_frames_that_say_nothing_are_counted(server, join, flood):
    async def story():
        agent = await enrol(server, join)
        async with agent.connected():
            with contextlib.suppress(ConnectionClosed):
                for sending in flood(agent._socket):
                    await sending
            await agent.closed()

    asyncio.run(story())


BEAT = '{"type":"beat","state":"idle","cpu":0.75}'


@pytest.mark.parametrize(
    "pieces",
    [
        [*BEAT],
        [
            BEAT,
            *[" " * SMALL_FRAGMENT_BYTES] * (MAX_CONTROL_FRAMES + 1),
            "",
        ],
    ],
    ids=["a few small ones", "many large ones"],
)
def test_a_message_may_come_in_pieces(server, join, pieces):
    async def story():
        agent = await enrol(server, join)
        async with agent.connected():
            await agent._socket.send(pieces)
            await seen(server, agent.provider, lambda view: view.cpu == 0.75)

    asyncio.run(story())


def test_frames_that_say_nothing_are_not_too_many_if_they_come_slowly(server, join, monkeypatch):
    monkeypatch.setattr(connection_limits, "CONTROL_FRAMES_S", 0.0)

    async def story():
        agent = await enrol(server, join)
        async with agent.connected():
            for sending in pings(agent._socket):
                await (await sending)
            await agent._socket.send(BEAT)
            await seen(server, agent.provider, lambda view: view.cpu == 0.75)

    asyncio.run(story())


def test_the_first_word_must_be_hello_in_the_same_protocol(server, join):
    async def story():
        agent = await enrol(server, join)
        async with agent.socket("agent") as socket:
            await socket.send('{"type":"beat","state":"idle"}')
            said = json.loads(await socket.recv())
            assert (said["type"], "hello" in said["reason"]) == ("rejected", True)

    asyncio.run(story())


def test_hello_is_said_once(server, join):
    async def story():
        agent = await enrol(server, join)
        async with agent.connected():
            await agent.say(Hello(protocol=1, facts=FACTS, caps=agent.caps, state="idle"))
            assert "once" in (await agent.expect(Rejected)).reason
            await agent.closed()

    asyncio.run(story())


def test_a_message_does_not_wait_twice_but_is_told_again_once_it_was_sent():
    async def story():
        connection = Connection(1, "192.0.2.1")
        connection.post_text("the work", about="job-1-1")
        connection.post_text("the work", about="job-1-1")
        connection.post_text("something else")
        assert [await connection.next() for _ in range(2)] == ["the work", "something else"]
        connection.post_text("the work again", about="job-1-1")
        connection.close()
        assert [await connection.next() for _ in range(2)] == ["the work again", None]

    asyncio.run(story())


def test_an_agent_that_does_not_read_is_let_go_before_its_messages_fill_the_memory():
    connection = Connection(1, "192.0.2.1")
    for _ in range(6):
        connection.post_text("x" * (10 << 20))
    assert not connection.closed
    connection.post_text("x" * (10 << 20))
    assert connection.closed


@pytest.mark.parametrize("bearer", ["", "nonsense", "rvc1_1_" + "A" * 43])
def test_strangers_get_no_control_channel(server, join, bearer):
    async def story():
        agent = await enrol(server, join)
        agent.credential = bearer
        with pytest.raises(InvalidStatus) as refused:
            async with agent.connected():
                pass
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body)["code"] == "unauthorized"

    asyncio.run(story())


def test_enrolling_needs_a_provider_token_with_uses_left(server):
    body = {
        "name": "x",
        "facts": {
            **dict.fromkeys(["hostname", "system", "python", "torch", "ravnest"], "x"),
            "cores": 1,
            "memory_bytes": 1,
        },
        "caps": {},
        "key_request": key_request(),
    }
    for role in ("viewer", "requester", "operator"):
        with server.client(server.token(role)) as client:
            assert client.post("enrol", json=body).status_code == 403
    with server.client(server.token("provider", uses=1)) as client:
        assert client.post("enrol", json=body | {"name": "../../x"}).status_code == 400
        assert client.post("enrol", json=body | {"key_request": "x"}).status_code == 400
        assert client.post("enrol", json=body).status_code == 200
        refused = client.post("enrol", json=body)
        assert refused.status_code == 401
        assert "as often" in refused.json()["error"]


def test_a_restarted_server_knows_its_providers(tmp_path):
    async def enrolled(server):
        return await enrol(server, server.ready.join_token, "kept")

    with running_server(tmp_path) as server:
        agent = asyncio.run(enrolled(server))
        operator = server.operator
    with running_server(tmp_path) as server:
        assert server.ready.join_token is None
        assert server.operator == operator
        assert view_of(server, agent.provider).name == "kept"
        agent.url = server.url

        async def back():
            async with agent.connected():
                await seen(server, agent.provider, lambda view: view.state == "idle")

        asyncio.run(back())
