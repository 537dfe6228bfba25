"""Providers of the same run reach each other through the server, others do not."""

import asyncio
import contextlib
import queue

import pytest
from a_job import make_job, submit, upload
from fake_agent import FakeAgent
from servers import running_server
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ravnest.api.control import Assign, Incoming
from ravnest.server import relay, running
from ravnest.server.connection_limits import RELAY_PATH, WebSocketProtocol


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job"))


@contextlib.asynccontextmanager
async def two_in_a_run(server, made):
    """Two agents with assignments of the same run, and one without."""
    token = server.token("provider")
    with server.client(server.operator) as operator:
        upload(operator, made[1])
        async with contextlib.AsyncExitStack() as stack:
            agents = []
            for number in range(3):
                agent = await FakeAgent.enrol(
                    server.url, token, authority=server.authority, name=f"p{number}"
                )
                await stack.enter_async_context(agent.connected())
                agents.append(agent)
            for agent in agents[:2]:
                await agent.measure()
            submit(operator, made[0])
            work = [(await agent.expect(Assign, 90)).assignment for agent in agents[:2]]
            yield agents, work


def test_bytes_go_both_ways_and_closing_ends_both(made, tmp_path):
    async def story(server):
        async with two_in_a_run(server, made) as (agents, work):
            one, two, stranger = agents
            dialling = asyncio.create_task(_dial_and_talk(one, work[0].id, two.provider))
            call = await two.expect(Incoming)
            assert (call.caller, call.assignment) == (one.provider, work[1].id)
            async with two.socket(f"relay/accept/{call.call}") as socket:
                for number in range(50):
                    assert await socket.recv() == bytes([number]) * 200_000
                    await socket.send(b"got it")
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
            await dialling
            assert server.ready.service.relay.bytes == 50 * (200_000 + 6)
            await _refused(one, f"relay/dial/{work[0].id}/{stranger.provider}", 403)
            await _refused(stranger, f"relay/dial/{work[0].id}/{two.provider}", 403)
            await _refused(one, f"relay/dial/{work[1].id}/{two.provider}", 403)
            await _refused(stranger, f"relay/accept/{call.call}", 404)

    with running_server(tmp_path / "server") as server:
        asyncio.run(story(server))
        assert server.ready.service.relay.links == 0


def test_a_provider_of_another_run_is_not_reached(made, tmp_path):
    spec, files = make_job(tmp_path / "job", planning={"min_cluster_size": 1, "max_clusters": 1})

    async def story(server):
        async with two_in_a_run(server, made) as ((one, _, other), work):
            with server.client(server.operator) as operator:
                upload(operator, files)
                await other.measure()
                submit(operator, spec)
            own = (await other.expect(Assign, 90)).assignment
            assert own.job != work[0].job
            await _refused(other, f"relay/dial/{own.id}/{one.provider}", 403)
            await _refused(one, f"relay/dial/{work[0].id}/{other.provider}", 403)

    with running_server(tmp_path / "server") as server:
        asyncio.run(story(server))


def test_nobody_is_pinged_through_a_line_that_others_fill(made, tmp_path, monkeypatch):
    pings = queue.SimpleQueue()
    ping = WebSocketProtocol.send_keepalive_ping

    def watched(self):
        pings.put(self.scope["path"])
        ping(self)

    monkeypatch.setattr(WebSocketProtocol, "send_keepalive_ping", watched)
    monkeypatch.setattr(running, "_PING_S", 0.05)

    async def story(server):
        async with two_in_a_run(server, made) as ((one, two, _), work):
            dialling = asyncio.create_task(_dial_and_talk(one, work[0].id, two.provider))
            call = await two.expect(Incoming)
            async with two.socket(f"relay/accept/{call.call}") as socket:
                await _answer(socket, 25)
                while not pings.empty():
                    pings.get()
                # The three control channels are.
                pinged = {await asyncio.to_thread(pings.get, timeout=30) for _ in range(20)}
                await _answer(socket, 25)
            await dialling
            return pinged

    with running_server(tmp_path / "server") as server:
        pinged = asyncio.run(story(server))
    assert not any(path.startswith(RELAY_PATH) for path in pinged)


async def _answer(socket, times):
    for _ in range(times):
        await socket.recv()
        await socket.send(b"got it")


async def _dial_and_talk(agent, assignment, provider):
    async with agent.socket(f"relay/dial/{assignment}/{provider}") as socket:
        for number in range(50):
            await socket.send(bytes([number]) * 200_000)
            assert await socket.recv() == b"got it"


async def _refused(agent, path, status):
    with pytest.raises(InvalidStatus) as refused:
        async with agent.socket(path):
            pass
    assert refused.value.response.status_code == status


def test_one_provider_has_a_bounded_number_of_calls(made, tmp_path, monkeypatch):
    monkeypatch.setattr(relay, "MOST_CALLS_EACH", 1)

    async def story(server):
        async with two_in_a_run(server, made) as (agents, work):
            one, two, _ = agents
            dialling = asyncio.create_task(_dial_and_talk(one, work[0].id, two.provider))
            call = await two.expect(Incoming)
            await _refused(one, f"relay/dial/{work[0].id}/{two.provider}", 429)
            await _refused(two, f"relay/dial/{work[1].id}/{one.provider}", 429)
            async with two.socket(f"relay/accept/{call.call}") as socket:
                await _answer(socket, 50)
            await dialling
            again = asyncio.create_task(_dial_and_talk(one, work[0].id, two.provider))
            await two.expect(Incoming)  # there is room again
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)

    with running_server(tmp_path / "server") as server:
        asyncio.run(story(server))


def test_a_side_that_does_not_read_holds_the_other_up_and_memory_stays_small(made, tmp_path):
    async def story(server):
        async with two_in_a_run(server, made) as (agents, work):
            one, two, _ = agents
            sent = 0

            async def flood():
                nonlocal sent
                path = f"relay/dial/{work[0].id}/{two.provider}"
                async with one.socket(path) as socket:
                    while True:
                        await socket.send(b"x" * 250_000)
                        sent += 250_000

            flooding = asyncio.create_task(flood())
            call = await two.expect(Incoming)
            # Nothing is read here, so that only what buffers hold can have been sent.
            async with two.socket(f"relay/accept/{call.call}"):
                before = -1
                while sent != before:
                    before = sent
                    await asyncio.wait({flooding}, timeout=1.0)
                assert sent < 64_000_000
                flooding.cancel()
                await asyncio.gather(flooding, return_exceptions=True)

    with running_server(tmp_path / "server") as server:
        asyncio.run(story(server))


def test_a_call_ends_with_the_run_of_its_two_although_nothing_is_said(made, tmp_path):
    async def story(server):
        async with two_in_a_run(server, made) as (agents, work):
            one, two, _ = agents

            async def listen():
                async with one.socket(f"relay/dial/{work[0].id}/{two.provider}") as socket:
                    await socket.send(b"hello")
                    with pytest.raises(ConnectionClosed):
                        await socket.recv()

            listening = asyncio.create_task(listen())
            call = await two.expect(Incoming)
            async with asyncio.timeout(30), two.socket(f"relay/accept/{call.call}") as socket:
                assert await socket.recv() == b"hello"
                with server.client(server.operator) as operator:
                    path = f"providers/{one.provider}/action"
                    assert operator.post(path, json={"action": "remove"}).status_code == 204
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
                await listening

    with running_server(tmp_path / "server") as server:
        asyncio.run(story(server))
