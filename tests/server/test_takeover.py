"""What a planning process leaves behind is not believed: a foreign graph was at work in it."""

import asyncio
import json
from dataclasses import dataclass

import msgspec
import pytest
from a_job import make_job, submit, upload
from looking import job_is, until
from msgspec.structs import replace
from servers import running_server
from test_jobs import pool

from ravnest.api.control import Assign
from ravnest.api.limits import FileRef
from ravnest.api.views import RingView
from ravnest.api.work import Assignment
from ravnest.errors import JobError
from ravnest.plan import ProviderSpec
from ravnest.server.planjob.__main__ import _done
from ravnest.server.planjob.assigning import assignments, must_fit
from ravnest.server.planjob.outcome import MadeFile, PlanOrder, PlanOutcome
from ravnest.server.service.fused_files import lay_out
from ravnest.server.service.work import WorkLimits, Workshop
from ravnest.server.state.records import PlanFacts, PlannedPart

ALONE = {"min_cluster_size": 1, "max_clusters": 1}


def changed(path, change):
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def spoil(folder, case):
    """All that is written here, a process that was taken over could have written."""

    def parts(change):
        changed(folder / "outcome.json", lambda outcome: change(outcome["facts"]["parts"]))

    if case == "files that are not understood":
        (folder / "made.json").write_text("[7]")
    elif case == "assignments":
        job = {"job": "another", "id": "another-1-1", "node": "node_9", "provider": 9}
        said = {"job_name": "x", "role": "Leaf", "run": 9, "files": [], "memory_bytes": 0}
        said |= {"cluster": 0, "clusters": 1, "stage": 0, "stages": 1}
        said["neighbours"] = [{"provider": 9, "node": "node_9", "plan_address": "provider-9:1"}]
        said["training"] = {"epochs": 99, "batch_size": 99}
        (folder / "parts").mkdir(exist_ok=True)
        for provider in (1, 2):
            (folder / "parts" / f"{provider}.json").write_text(json.dumps(job | said))
        (folder / "results" / "x").mkdir(parents=True)
        (folder / "results" / "1").mkdir()
        (folder / "results" / "1" / "trained.json").write_text("{}")
    elif case == "somebody who is not in the pool":
        parts(lambda found: found[0].update(provider=999))
    elif case == "a reason without end":
        (folder / "outcome.json").write_text(json.dumps({"error": "x" * 1_000_000}))
    elif case == "warnings without end":
        changed(folder / "outcome.json", lambda found: found.update(warnings=["a"] * 200_000))
    elif case == "nobody":
        parts(lambda found: found.clear())
    elif case == "somebody twice":
        parts(lambda found: found.extend(found[:]))


def take_over_planning(monkeypatch, case):
    """Of the job that is called evil. Planning itself is as always, on a thread."""

    async def run(self, folder, order):
        def go():
            (folder / "outcome.json").write_bytes(msgspec.json.encode(_done(order, folder)))
            if order.task == "plan" and order.spec.name == "evil":
                spoil(folder, case)

        await asyncio.to_thread(go)

    monkeypatch.setattr(Workshop, "_run", run)


@pytest.mark.parametrize(
    "case",
    [
        "files that are not understood",
        "a reason without end",
        "warnings without end",
        "somebody who is not in the pool",
        "nobody",
        "somebody twice",
    ],
)
def test_a_planning_process_that_was_taken_over_keeps_no_other_job_waiting(
    tmp_path, monkeypatch, case
):
    """The one place for planning was never given back: no job of any owner was planned again."""

    take_over_planning(monkeypatch, case)
    evil, files = make_job(tmp_path / "evil", planning=ALONE, name="evil")
    good, more = make_job(tmp_path / "good", planning=ALONE, name="good")

    async def story(server, mallory, ada):
        async with pool(server, 1) as (agent,):
            first = submit(mallory, evil)["id"]
            await until(server, first, job_is("failed"), 30)
            second = submit(ada, good)["id"]
            assert (await agent.expect(Assign, 30)).assignment.job == second

    with running_server(tmp_path / "server") as server:
        mallory = server.client(server.token("requester", name="mallory"))
        ada = server.client(server.token("requester", name="ada"))
        with mallory, ada:
            upload(mallory, files)
            upload(ada, more)
            asyncio.run(story(server, mallory, ada))


def test_what_an_assignment_is_the_server_says_and_not_the_process_that_planned(
    tmp_path, monkeypatch
):
    """It said the job of another owner, by which an agent keeps files: with their hashes alone it
    had that owner's files from the agent's disk."""
    take_over_planning(monkeypatch, "assignments")
    spec, files = make_job(tmp_path / "job", planning=ALONE, name="evil")

    async def story(server, requester):
        async with pool(server, 1) as (agent,):
            job = submit(requester, spec)["id"]
            told = (await agent.expect(Assign, 30)).assignment
            own = (f"{job}-1-{agent.provider}", job, "evil", 1, agent.provider)
            assert (told.id, told.job, told.job_name, told.run, told.provider) == own
            assert (told.node, told.role) == (f"node_{agent.provider}", "Root")
            assert told.neighbours == ()
            assert (told.training, told.recipe) == (spec.training, spec.recipe)
            assert {"node.json", "package/manifest.json"} < {file.path for file in told.files}
            # The server keeps what providers bring back here.
            assert not (tmp_path / "server" / "jobs" / job / "runs" / "1" / "results").exists()

    with (
        running_server(tmp_path / "server") as server,
        server.client(server.token("requester")) as requester,
    ):
        upload(requester, files)
        asyncio.run(story(server, requester))


def a_file(path):
    return MadeFile(file=FileRef(path=path, sha256="0" * 64, size=1), place=f"node_data/{path}")


@dataclass
class Planned:
    """A plan of four providers in two clusters, as it should be."""

    order: PlanOrder
    outcome: PlanOutcome
    made: dict[int, tuple[MadeFile, ...]]

    def with_part(self, number, **more):
        facts = self.outcome.facts
        parts = list(facts.parts)
        parts[number] = replace(parts[number], **more)
        return self.with_facts(parts=tuple(parts))

    def with_facts(self, **more):
        facts = replace(self.outcome.facts, **more)
        return Planned(self.order, replace(self.outcome, facts=facts), self.made)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    pool = tuple(
        ProviderSpec(
            id=id, address=f"provider-{id}:1", memory_bytes=1, bandwidth_mbps=1.0, gflops=1.0
        )
        for id in range(1, 6)
    )
    parts = tuple(
        PlannedPart(provider=id, node=f"node_{id}", cluster=cluster, stage=stage, role=role)
        for id, cluster, stage, role in (
            *((1, 0, 0, "Root"), (2, 0, 1, "Leaf")),
            *((3, 1, 0, "Root"), (4, 1, 1, "Leaf")),
        )
    )
    rings = tuple(
        RingView(id=id, first_parameter="w", bytes=1, providers=members)
        for id, members in ((0, (1, 3)), (1, (2, 4)))
    )
    return Planned(
        PlanOrder(
            task="plan", job="j", run=3, pool=pool, spec=make_job(tmp_path_factory.mktemp("j"))[0]
        ),
        PlanOutcome(facts=PlanFacts(run=3, parts=parts, clusters=2), rings=rings),
        {id: (a_file("node.json"), a_file("package/graph.json")) for id in range(1, 5)},
    )


def test_a_plan_that_fits_becomes_assignments_of_neighbours(planned):
    must_fit(planned.order, planned.outcome, planned.made)
    found = list(assignments(planned.order, planned.outcome, planned.made))
    assert [one.id for one in found] == ["j-3-1", "j-3-2", "j-3-3", "j-3-4"]
    around = [{n.provider for n in one.neighbours} for one in found]
    assert around == [{2, 3}, {1, 4}, {1, 4}, {2, 3}]
    assert msgspec.json.decode(msgspec.json.encode(found[0]), type=Assignment) == found[0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: p.with_facts(run=2), "for run 2"),
        (lambda p: p.with_facts(parts=()), "no parts"),
        (lambda p: p.with_part(0, provider=2, node="node_2"), "two parts"),
        (lambda p: p.with_part(0, provider=99, node="node_99"), "not in the pool"),
        (lambda p: p.with_part(0, provider=5, node="node_5"), "for others"),
        (lambda p: p.with_facts(clusters=3), "clusters"),
        (lambda p: p.with_part(0, cluster=7), "clusters"),
        (lambda p: p.with_part(1, stage=0), "stages"),
        (lambda p: p.with_part(1, role="Stem"), "role"),
        (lambda p: p.with_part(1, node="node_3"), "node"),
        (lambda p: Planned(p.order, PlanOutcome(), p.made), "no plan behind"),
        (
            lambda p: Planned(p.order, replace(p.outcome, rings=planned_ring(1, 5)), p.made),
            "ring",
        ),
        (lambda p: Planned(p.order, p.outcome, p.made | {1: (a_file("script.py"),)}), "called"),
        (lambda p: Planned(p.order, p.outcome, p.made | {1: (a_file("node.json"),) * 2}), "called"),
        (lambda p: Planned(p.order, p.outcome, p.made | {5: ()}), "for others"),
    ],
)
def test_a_plan_that_is_none_for_its_order_is_refused(planned, change, why):
    left = change(planned)
    with pytest.raises(JobError, match=why):
        must_fit(left.order, left.outcome, left.made)


def planned_ring(*members):
    return (RingView(id=0, first_parameter="w", bytes=1, providers=members),)


@pytest.mark.parametrize("error", [ValueError("mistake"), KeyError("x"), OSError("disk")])
def test_whatever_goes_wrong_is_how_the_task_ended(tmp_path, monkeypatch, error):
    """Whoever waits for it waited for ever."""
    told = []

    async def run(self, folder, order):
        (folder / "outcome.json").write_text("{}")

    monkeypatch.setattr(Workshop, "_run", run)

    async def hears(outcome):
        told.append(outcome)

    async def stumbles(outcome):
        told.append(outcome)
        if not outcome.error:
            raise error

    def fails(outcome):
        raise error

    async def story():
        shop = Workshop(WorkLimits())
        for number, (done, then) in enumerate([(hears, fails), (stumbles, None)]):
            shop.start("plan", tmp_path / str(number), PlanOrder(task="plan"), done, then)
            async with asyncio.timeout(20):
                while not (told and told[-1].error):
                    await asyncio.sleep(0.01)
            assert told.pop().crashed
        await shop.close()

    asyncio.run(story())
    assert [outcome.error for outcome in told] == [""]


def test_a_stray_name_among_results_does_not_keep_a_job_fusing(tmp_path):
    """The process that planned could make one, and the job was fusing for ever."""
    run = tmp_path / "run"
    for name in ("x", "²", "-1"):
        (run / "results" / name).mkdir(parents=True)
    (run / "results" / "7").write_text("")
    paths = {"model": run / "node_data", "results": run / "results", "output": tmp_path / "result"}
    lay_out(PlanOrder(task="fuse", **{name: str(path) for name, path in paths.items()}))
