"""Jobs from submitting to the fused result: real planning, providers that only pretend to train."""

import asyncio
import contextlib
import io

import msgspec
import pytest
import torch
from a_job import Net, make_job, submit, upload
from fake_agent import FakeAgent
from fake_work import fetch, train
from looking import job_is, until
from servers import running_server

from ravnest.api.control import Assign, Begin, Steer
from ravnest.api.views import JobDetail
from ravnest.api.work import Point, Span, WorkEnd, WorkReport


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job"))


@pytest.fixture
def server(tmp_path):
    with running_server(tmp_path / "server") as server:
        yield server


@pytest.fixture
def requester(server, made):
    with server.client(server.token("requester")) as client:
        upload(client, made[1])
        yield client


@contextlib.asynccontextmanager
async def pool(server, count, token=None, **figures):
    token = token or server.token("provider")
    async with contextlib.AsyncExitStack() as stack:
        agents = []
        for number in range(count):
            agent = await FakeAgent.enrol(
                server.url, token, authority=server.authority, name=f"p{number}"
            )
            await stack.enter_async_context(agent.connected())
            await agent.measure(**figures)
            agents.append(agent)
        yield agents


async def assigned(agents, tmp_path):
    """Everybody gets an assignment, fetches it and is prepared."""
    found = {}
    for agent in agents:
        assignment = (await agent.expect(Assign, 90)).assignment
        await fetch(agent, assignment, tmp_path / assignment.id)
        found[agent] = assignment
    for agent, assignment in found.items():
        await agent.prepared(assignment)
    for agent, assignment in found.items():
        assert (await agent.expect(Begin)).assignment == assignment.id
        agent.state = "training"
        await agent.beat()
    return found


def test_a_job_is_planned_trained_fused_and_fetched(server, requester, made, tmp_path):
    async def story():
        async with pool(server, 2) as agents:
            job = submit(requester, made[0])["id"]
            work = await assigned(agents, tmp_path)
            assert {a.role for a in work.values()} == {"Root", "Leaf"}
            for agent, assignment in work.items():
                data = {
                    file.path.split("-")[0] for file in assignment.files if "data/" in file.path
                }
                field = "x" if assignment.role == "Root" else "y"
                assert data == {f"data/train/{field}", f"data/validation/{field}"}
                assert [n.provider for n in assignment.neighbours] == [
                    other.provider for other in agents if other is not agent
                ]
            root = next(a for a, assignment in work.items() if assignment.role == "Root")
            await root.report(
                work[root],
                WorkReport(
                    at=1000.0,
                    step=3,
                    samples_per_second=5.0,
                    points=(Point("train/loss", 3, 0.4, 1000.0, 1.5),),
                    spans=(Span("forward", 0, 0, 1.0, 2.0),),
                ),
            )
            view = await until(server, job, lambda job: job.loss == 1.5)
            assert (view.state, view.step, view.epoch) == ("running", 3, 0.4)
            assert server.ready.service.world.pulses[work[root].id].count == 3
            for notes in (7, 3):
                await root.report(work[root], WorkReport(at=1001.0, notes=("x" * 4000,) * notes))
            series = requester.get(f"jobs/{job}/series").json()["points"]
            assert series == {"train/loss@0": [[3, 0.4, 1000.0, 1.5]]}
            for agent, assignment in work.items():
                results = await train(agent, assignment, tmp_path / assignment.id)
                end = WorkEnd(
                    outcome="done", epochs_done=2, saved=True, metrics={"eval/accuracy": 0.5}
                )
                await agent.end(assignment, end, results)
            view = await until(server, job, lambda job: job.state == "done")
            assert view.metrics["accuracy"] == 0.5
            events = [one["text"] for one in requester.get(f"jobs/{job}/events").json()]
            # The first at once; the others, which came soon after, at the end.
            for count in (2, 3):
                assert any(f"left out: {count} notes" in text for text in events)
            return job

    job = asyncio.run(story())
    detail = msgspec.json.decode(requester.get(f"jobs/{job}").content, type=JobDetail)
    assert detail.plan.providers == 2
    assert [stage.state for stage in detail.run.clusters[0].stages] == ["ended", "ended"]
    plan = requester.get(f"jobs/{job}/plan").text
    assert "Cluster 0" in plan
    assert "  p1  " in plan
    answer = requester.get(f"jobs/{job}/result", params={"format": "pt"})
    state = torch.load(io.BytesIO(answer.content), weights_only=True)
    torch.manual_seed(0)
    torch.randn(64, 16), torch.randint(0, 3, (64,))
    expected = Net().state_dict()
    assert all(torch.equal(state[name], expected[name] + 0.01) for name in expected)
    part = requester.get(f"jobs/{job}/result", headers={"Range": "bytes=0-7"})
    assert (part.status_code, len(part.content)) == (206, 8)
    assert len(part.headers["x-sha256"]) == 64


def test_a_stopped_job_is_saved_and_resumed_from_there(server, requester, made, tmp_path):
    async def story():
        async with pool(server, 2) as agents:
            job = submit(requester, made[0])["id"]
            work = await assigned(agents, tmp_path)
            assert requester.post(f"jobs/{job}/action", json={"action": "stop"}).status_code == 200
            for agent, assignment in work.items():
                assert (await agent.expect(Steer)).action == "stop"
                results = await train(agent, assignment, tmp_path / assignment.id)
                end = WorkEnd(outcome="stopped", epochs_done=1, saved=True)
                await agent.end(assignment, end, results)
            view = await until(server, job, lambda job: job.state == "stopped")
            assert (view.epoch, view.result_bytes > 0) == (1.0, True)
            assert requester.post(f"jobs/{job}/action", json={"action": "pause"}).status_code == 409
            requester.post(f"jobs/{job}/action", json={"action": "resume"})
            again = await assigned(agents, tmp_path)
            assert {(a.run, a.epochs_done) for a in again.values()} == {(2, 1)}
            for agent, assignment in again.items():
                results = await train(agent, assignment, tmp_path / assignment.id, save="s2")
                end = WorkEnd(outcome="done", epochs_done=2, saved=True)
                await agent.end(assignment, end, results)
            await until(server, job, job_is("done"))
            state = torch.load(
                io.BytesIO(requester.get(f"jobs/{job}/result", params={"format": "pt"}).content),
                weights_only=True,
            )
            return state

    state = asyncio.run(story())
    torch.manual_seed(0)
    torch.randn(64, 16), torch.randint(0, 3, (64,))
    expected = Net().state_dict()
    assert all(torch.allclose(state[name], expected[name] + 0.02) for name in expected)


def test_a_plan_is_shown_before_it_is_started_and_made_anew_when_the_pool_grows(
    server, requester, made
):
    async def story():
        spec = msgspec.structs.replace(made[0], start="asked")
        job = submit(requester, spec)["id"]
        view = await until(server, job, job_is("waiting"))
        assert "no provider" in view.reason
        token = server.token("provider")
        async with pool(server, 2, token):
            await until(server, job, job_is("planned"))
            first = requester.get(f"jobs/{job}").json()["plan"]
            assert first["providers"] == 2
            async with pool(server, 2, token):
                await until(server, job, job_is("planning"))
                await until(server, job, job_is("planned"))
                requester.post(f"jobs/{job}/action", json={"action": "start"})
                await until(server, job, job_is("preparing"))

    asyncio.run(story())


def test_a_job_that_does_not_fit_says_why_and_waits(server, requester, made):
    async def story():
        async with pool(server, 2, memory_bytes=1000):
            job = submit(requester, made[0])["id"]
            view = await until(server, job, lambda job: "memory" in job.reason)
            assert view.state == "waiting"

    asyncio.run(story())


def test_a_failed_worker_begins_a_run_without_it_and_the_job_fails_after_too_many(
    server, requester, made, tmp_path
):
    async def story():
        async with pool(server, 2) as agents:
            spec = msgspec.structs.replace(
                made[0], planning=msgspec.structs.replace(made[0].planning, max_runs=1)
            )
            job = submit(requester, spec)["id"]
            work = await assigned(agents, tmp_path)
            bad, good = agents
            end = WorkEnd(outcome="failed", reason="ValueError: no")
            await bad.end(work[bad], end)
            assert (await good.expect(Steer)).action == "drop"
            await good.end(work[good], WorkEnd(outcome="failed", reason="dropped"))
            work = await assigned([good], tmp_path)
            await good.end(work[good], WorkEnd(outcome="failed", reason="ValueError: again"))
            view = await until(server, job, job_is("failed"))
            assert "ValueError: no" in view.reason

    asyncio.run(story())


def test_a_server_that_is_ended_and_started_again_in_the_middle_of_a_run_goes_on(made, tmp_path):
    async def begin(server):
        with server.client(server.operator) as operator:
            upload(operator, made[1])
            async with pool(server, 2) as agents:
                job = submit(operator, made[0])["id"]
                return job, agents, await assigned(agents, tmp_path)

    async def finish(server, job, agents, work):
        async with contextlib.AsyncExitStack() as stack:
            for agent in agents:
                agent.url = server.url
                await stack.enter_async_context(agent.connected())
            for agent, assignment in work.items():
                results = await train(agent, assignment, tmp_path / assignment.id)
                end = WorkEnd(outcome="done", epochs_done=2, saved=True)
                await agent.end(assignment, end, results)
            await until(server, job, job_is("done"))

    with running_server(tmp_path / "server") as server:
        job, agents, work = asyncio.run(begin(server))
    with running_server(tmp_path / "server") as server:
        asyncio.run(finish(server, job, agents, work))
