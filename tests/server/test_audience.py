"""Who sees what, by role: facts about hosts, and what workers and processes have said."""

import asyncio

import msgspec
import pytest
from a_job import make_job, submit, upload
from fake_agent import FakeAgent
from looking import frames, job_is, until
from msgspec.structs import replace
from servers import running_server
from test_jobs import assigned, pool
from web.simulation import Simulation

from ravnest.api.views import Changes, EventView, JobView, Overview, ProviderView
from ravnest.api.work import Point, WorkEnd, WorkReport
from ravnest.server.service.audience import EVERYTHING, OVERVIEW, Audience
from ravnest.server.state.words import own_words

OPERATORS_SEE = "operators see why"
SECRET = "Traceback of /home/grace/secret.py"
FACTS = ("hostname", "system", "ravnest", "torch")
PATHS = ("overview", "providers", "jobs", "events", "jobs/{job}", "jobs/{job}/events")


def test_what_others_have_said_follows_after_a_colon():
    assert own_words("the worker of p0 failed: Traceback: x") == "the worker of p0 failed"
    assert own_words("run 1 begins with 2 providers") == "run 1 begins with 2 providers"


def test_facts_of_hosts_and_words_of_workers_are_for_those_who_need_them(tmp_path):
    spec, files = make_job(
        tmp_path / "job", planning={"min_cluster_size": 1, "max_clusters": 1, "max_runs": 1}
    )

    def seen(client, job):
        """All answers that tell of machines, jobs or what happened."""
        return {path: client.get(path.format(job=job)).text for path in PATHS}

    def facts(client):
        overview = msgspec.json.decode(client.get("overview").content, type=Overview)
        (machine,) = overview.providers
        assert machine.name == "p0"
        assert machine.gflops > 0
        assert machine.worker_limit_bytes > 0
        shown = {bool(getattr(machine, fact)) for fact in FACTS}
        assert len(shown) == 1
        return shown == {True}

    async def first_frame(server, bearer):
        async for frame in frames(server, bearer):
            return msgspec.json.encode(frame).decode()

    async def story(server, clients, tokens):
        ada = clients["ada"]
        async with pool(server, 1) as (agent,):
            job = submit(ada, spec)["id"]
            ((_, assignment),) = (await assigned([agent], tmp_path)).items()
            # While it works for ada, ada sees what it is.
            assert {who: facts(client) for who, client in clients.items()} == {
                "operator": True,
                "ada": True,
                "bob": False,
                "viewer": False,
                "onlooker": False,
            }
            async with agent.http() as own:
                assert (await own.get("providers/me")).json()["hostname"]
            curves = tuple(Point(name, 1, 1.0, 1.0, 0.5) for name in ("eval/accuracy", SECRET))
            await agent.report(assignment, WorkReport(at=1.0, notes=(SECRET,), points=curves))
            end = {"reason": SECRET, "metrics": {"eval/loss": 1.0, SECRET: 1.0}}
            await agent.end(assignment, WorkEnd(outcome="failed", **end))
            await until(server, job, job_is("failed"))
            for who, client in clients.items():
                told = {path for path, text in seen(client, job).items() if SECRET in text}
                expected = {"overview", "jobs", "events", "jobs/{job}", "jobs/{job}/events"}
                assert told == (expected if who in ("operator", "ada") else set()), who
                curves = client.get(f"jobs/{job}/series").json()["points"]
                assert list(curves) == ["eval/accuracy@0"]
                assert "the worker of p0 failed" in client.get("overview").text
                streamed = await first_frame(server, tokens[who])
                assert (SECRET in streamed) == (who in ("operator", "ada"))
            (part,) = server.ready.service.world.of_run[job]
            assert part.end.metrics == {"eval/loss": 1.0}
            # It works for ada no more.
            assert [facts(clients[who]) for who in ("operator", "ada")] == [True, False]

    with running_server(tmp_path / "server", dashboard="open") as server:
        tokens = {
            "operator": server.operator,
            "ada": server.token("requester", name="ada"),
            "bob": server.token("requester", name="bob"),
            "viewer": server.token("viewer"),
            "onlooker": None,
        }
        clients = {who: server.client(token) for who, token in tokens.items()}
        upload(clients["ada"], files)
        asyncio.run(story(server, clients, tokens))
        for client in clients.values():
            client.close()


def test_why_there_is_no_sandbox_is_a_fact_about_a_host():
    why = "bwrap does not work: /home/grace/…"
    machine = ProviderView(
        id=1, name="p0", state="idle", since=0.0, seen_at=0.0, no_sandbox=why, job="j1"
    )
    server = replace(Simulation(machines=0).server(), no_sandbox=why)
    job = JobView(id="j1", name="j", owner="ada", state="running", submitted_at=0.0)
    shown = Overview(server=server, providers=(machine,), jobs=(job,), runs=(), events=())
    told = Changes(server=server, providers=(machine,))
    for audience, reasons in (
        (EVERYTHING, [why, why]),
        (Audience(owner=("requester", "ada")), [OPERATORS_SEE, why]),
        (Audience(owner=("requester", "bob")), [OPERATORS_SEE, OPERATORS_SEE]),
        (OVERVIEW, [OPERATORS_SEE, OPERATORS_SEE]),
    ):
        for seen in (audience.overview(shown), audience.changes(told, [job])):
            assert [seen.server.no_sandbox, seen.providers[0].no_sandbox] == reasons
    with_one = replace(machine, no_sandbox="")
    assert OVERVIEW.provider(with_one, set()).no_sandbox == ""


@pytest.mark.parametrize(
    ("audience", "sees"),
    [
        (EVERYTHING, True),
        (Audience(owner=("requester", "ada")), True),
        (Audience(owner=("requester", "bob")), False),
        (OVERVIEW, False),
    ],
)
def test_words_of_workers_are_cut_from_what_is_there_and_from_what_changes(audience, sees):
    said = f"the worker of p0 failed: {SECRET}"
    job = JobView(
        id="j1",
        name="j",
        owner="ada",
        owner_role="requester",
        state="failed",
        submitted_at=0.0,
        reason=said,
    )
    event = EventView(number=1, at=0.0, level="warning", text=said, job="j1")
    server = Simulation(machines=0).server()
    shown = Overview(server=server, providers=(), jobs=(job,), runs=(), events=(event,))
    for seen in (
        audience.overview(shown),
        audience.changes(Changes(server=server, jobs=(job,), events=(event,)), [job]),
        audience.changes(Changes(server=server, events=(event,)), [job]),
    ):
        texts = [each.reason for each in seen.jobs] + [each.text for each in seen.events]
        assert set(texts) == {said if sees else "the worker of p0 failed"}


@pytest.mark.parametrize("who", ["operator", "viewer"])
def test_updates_are_cut_to_those_who_look(tmp_path, who):
    async def story(server, bearer):
        seen, ready = [], asyncio.Event()

        async def look():
            async for frame in frames(server, bearer):
                ready.set()
                seen.extend(frame.providers)
                if seen:
                    return

        looking = asyncio.create_task(look())
        await ready.wait()
        token = server.token("provider")
        agent = await FakeAgent.enrol(server.url, token, authority=server.authority, name="p0")
        async with agent.connected():
            await asyncio.wait_for(looking, 60)
        return {bool(view.hostname) for view in seen}

    with running_server(tmp_path / "server") as server:
        bearer = server.operator if who == "operator" else server.token("viewer")
        assert asyncio.run(story(server, bearer)) == {who == "operator"}
