"""What was decided is carried out: each order for itself, and none that is not wanted any more."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from a_job import make_job, submit, upload
from fake_agent import FakeAgent
from servers import TIMEOUT_S, running_server
from state_simulation import FACTS

from ravnest.api.control import Assign
from ravnest.api.machine import Caps
from ravnest.server.changes import Put
from ravnest.server.folders import Folders
from ravnest.server.planjob.outcome import PlanOrder, PlanOutcome
from ravnest.server.service.core import Core
from ravnest.server.service.errands import Errands
from ravnest.server.service.work import WorkLimits, Workshop, _prepare
from ravnest.server.state.effects import Close, Fuse
from ravnest.server.state.events import EnrolledNow, Noted
from ravnest.server.state.machine import handle
from ravnest.server.state.records import Job
from ravnest.server.state.world import World
from ravnest.server.store import open_store


def test_an_order_that_fails_takes_nothing_with_it(tmp_path):
    """Neither those after it, nor whoever waits for the event."""

    async def story():
        store = open_store(tmp_path / "server.sqlite")
        core, carried_out = Core(World(), store), []

        def perform(order):
            if order.provider == 1:
                raise OSError("the disk is gone")
            carried_out.append(order.provider)

        core.perform = perform
        orders = [Close(provider=id, reason="", final=False) for id in (1, 2)]
        async with asyncio.timeout(TIMEOUT_S):
            await core._commit([Put("job", "a", b"{}")], orders)
            await core._commit([], orders)
        store.close()
        return carried_out

    assert asyncio.run(story()) == [2, 2]


def test_what_a_mistake_leaves_behind_is_the_same_in_memory_and_on_disk(tmp_path, monkeypatch):
    def breaks(world, now):
        raise ZeroDivisionError

    async def story():
        store = open_store(tmp_path / "server.sqlite")
        core = Core(World(), store)
        event = EnrolledNow(provider=1, name="p", digest="d", facts=FACTS, caps=Caps())
        with monkeypatch.context() as patched:
            patched.setattr("ravnest.server.state.jobs.consider", breaks)
            with pytest.raises(ZeroDivisionError):
                core.happen(event)
        async with asyncio.timeout(TIMEOUT_S):
            kept = await core.read(lambda db: [id for id, _ in db.records("provider")])
        store.close()
        assert [str(id) for id in core.world.providers] == kept == ["1"]

    asyncio.run(story())


def test_what_people_should_know_is_numbered_and_cut_like_everything_else():
    world = World(event_number=7)
    long = "a\n" * 5000
    (note,) = handle(world, Noted(level="warning", text=long, job="j"), now=1.0).notes
    assert (note.number, note.at, note.level, note.job) == (8, 1.0, "warning", "j")
    assert len(note.text) == 1000
    assert "\n" not in note.text


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job"))


@pytest.fixture
def server(tmp_path):
    """Takes models as they are: the thread that submits also speaks for the agents."""
    with running_server(tmp_path) as server:
        workshop = server.ready.service.workshop
        do = workshop.do

        async def all_but_checks(folder, order, then=None):
            return PlanOutcome() if order.task == "check" else await do(folder, order, then)

        workshop.do = all_but_checks
        yield server


@pytest.fixture
def operator(server, made):
    with server.client(server.operator) as client:
        upload(client, made[1])
        yield client


async def joined(server):
    token = server.token("provider")
    return await FakeAgent.enrol(server.url, token, authority=server.authority, name="p")


def test_weights_are_put_together_in_the_name_of_the_owner_of_their_job(tmp_path):
    """Everybody gets a turn, so it matters whose it is."""

    async def story():
        world, started = World(), []
        world.jobs["j"] = Job(
            id="j", name="j", owner="t", owner_name="ada", submitted_at=1.0, epochs=1
        )
        workshop = SimpleNamespace(start=lambda key, folder, order, done: started.append(order))
        core = SimpleNamespace(world=world)
        errands = Errands(core, Folders(tmp_path), None, None, None, workshop)
        errands.perform(Fuse(job="j", run=1, cluster=0))
        return [(order.task, order.owner) for order in started]

    assert asyncio.run(story()) == [("fuse", "ada")]


def test_a_part_that_cannot_be_read_is_a_lost_run_and_not_an_endless_wait(server, operator, made):
    run_files = server.ready.service.run_files
    read, failures = run_files.written_assignment, [OSError("no such file")]

    async def first_time_in_vain(part):
        if failures:
            raise failures.pop()
        return await read(part)

    run_files.written_assignment = first_time_in_vain

    async def story():
        agent = await joined(server)
        async with agent.connected():
            await agent.measure()
            job = submit(operator, made[0])["id"]
            assignment = (await agent.expect(Assign, 180)).assignment
            return job, assignment.run

    job, run = asyncio.run(story())
    assert run == 2
    texts = [event["text"] for event in operator.get(f"jobs/{job}/events").json()]
    assert any("could not be told its part: no such file" in text for text in texts)


def test_a_job_that_is_deleted_while_its_plan_is_begun_is_not_planned(server, operator, made):
    service = server.ready.service
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()
    spec, plan, started = service.errands._spec, service.errands._plan, []

    async def slow(job):
        begun.set()
        await asyncio.get_running_loop().run_in_executor(None, go.wait, TIMEOUT_S)
        return await spec(job)

    async def told(order):
        await plan(order)
        ended.set()

    service.errands._spec, service.errands._plan = slow, told
    service.workshop.start = lambda *arguments: started.append(arguments)

    async def story():
        agent = await joined(server)
        async with agent.connected():
            await agent.measure()
            job = submit(operator, made[0])["id"]
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, begun.wait, TIMEOUT_S)
            answer = operator.post(f"jobs/{job}/action", json={"action": "delete"})
            assert answer.status_code == 204
            go.set()
            assert await loop.run_in_executor(None, ended.wait, TIMEOUT_S)

    asyncio.run(story())
    assert started == []


def test_who_waits_for_the_end_of_cancelled_work_finds_its_folder_quiet(tmp_path, monkeypatch):
    """A thread that makes the folder cannot be cancelled; removing it has to come after."""
    inside, go = threading.Event(), threading.Event()

    def slow(*given):
        inside.set()
        assert go.wait(TIMEOUT_S)
        _prepare(*given)

    monkeypatch.setattr("ravnest.server.service.work._prepare", slow)

    async def story():
        workshop, loop = Workshop(WorkLimits()), asyncio.get_running_loop()

        async def done(outcome):
            raise AssertionError("it was cancelled")

        workshop.start("plan j", tmp_path / "j", PlanOrder(task="plan"), done)
        assert await loop.run_in_executor(None, inside.wait, TIMEOUT_S)
        workshop.cancel("plan j")
        waiting = asyncio.create_task(workshop.ended("plan j"))
        await asyncio.sleep(0)
        assert not waiting.done()
        go.set()
        await waiting
        assert (tmp_path / "j").is_dir()  # whatever was made is there to be removed
        await workshop.close()

    asyncio.run(story())
