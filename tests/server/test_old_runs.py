"""Old runs of a job make room for new ones."""

import asyncio
from types import SimpleNamespace

import pytest
from made import CAPS, FACTS
from servers import TIMEOUT_S, running_server

from ravnest.api.limits import encode
from ravnest.errors import ServerError
from ravnest.server.changes import Put
from ravnest.server.folders import Folders
from ravnest.server.planjob.outcome import PlanOutcome
from ravnest.server.service.errands import Errands
from ravnest.server.service.files import Files, Quota
from ravnest.server.state.effects import Fuse, MakePlan
from ravnest.server.state.events import Fused, FusingFailed
from ravnest.server.state.records import Job, Provider, Run
from ravnest.server.state.world import World
from ravnest.server.store import open_store


class Scene:
    """Errands with a workshop that only remembers what it is to do, and what happened."""

    def __init__(self, root):
        self.folders = Folders(root)
        self.folders.make()
        self.files = Files(self.folders, most_bytes=1 << 30, quota=Quota(1 << 30))
        self.happened = []
        self.done = None
        self.world = World()
        self.asked, self.quiet = asyncio.Event(), asyncio.Event()
        """Whether anything that was cancelled is under way; nothing is."""
        self.quiet.set()
        workshop = SimpleNamespace(start=self._start, ended=self._ended)
        core = SimpleNamespace(happen=self._happen, world=self.world)
        run_files = SimpleNamespace(forget=lambda job, run: None)
        self.errands = Errands(core, self.folders, self.files, run_files, None, workshop)
        self.errands._spec = self._spec

    def _start(self, key, folder, task, done, then=None):
        self.done, self.task = done, task

    async def ends(self, outcome):
        """Whatever is begun by that has ended, too."""
        await self.done(outcome)
        while tasks := list(self.errands._tasks):
            await asyncio.wait(tasks)

    async def _ended(self, *keys):
        assert keys == ("plan j",)
        self.asked.set()
        await self.quiet.wait()

    async def _spec(self, job):
        return "as it was handed in"

    async def plan(self, run, fused_run=0, pool=()):
        """As far as the workshop."""
        self.world.planning, self.world.attempt = "j", 1
        order = MakePlan(job="j", attempt=1, run=run, pool=pool, fused_run=fused_run, epochs_done=0)
        await self.errands._plan(order)

    def _happen(self, event):
        """Whatever is removed is removed after this."""
        self.happened.append((event, self.runs("j")))
        kept = asyncio.get_running_loop().create_future()
        kept.set_result(None)
        return kept

    def make_runs(self, job, *numbers):
        for number in numbers:
            results = self.folders.results(job, number, 1)
            results.mkdir(parents=True)
            (results / "trained.json").write_bytes(b"x" * 100)

    def runs(self, job):
        return sorted(int(path.name) for path in (self.folders.job(job) / "runs").iterdir())


@pytest.fixture
def scene(tmp_path):
    scene = Scene(tmp_path)
    scene.make_runs("j", 1, 2, 3, 10)
    yield scene
    scene.files.close()


def test_runs_before_one_that_is_fused_are_removed_once_that_is_known(scene):
    scene.errands.perform(Fuse(job="j", run=3, cluster=0))
    asyncio.run(scene.ends(PlanOutcome(result_bytes=7)))
    assert scene.happened == [(Fused(job="j", run=3, bytes=7), [1, 2, 3, 10])]
    assert scene.runs("j") == [3, 10]
    assert scene.files.held_bytes == 200


def test_machines_of_one_name_are_told_apart_in_a_plan(scene):
    for id, name in ((1, "vm"), (2, "vm"), (3, "grace")):
        provider = Provider(id=id, name=name, digest="", facts=FACTS, caps=CAPS)
        scene.world.providers[id] = provider
        scene.world.namesakes[name] += 1
    asyncio.run(scene.plan(11, pool=[SimpleNamespace(id=id) for id in (1, 2, 3)]))
    assert scene.task.names == {1: "vm #1", 2: "vm #2", 3: "grace"}


def test_nothing_is_removed_if_fusing_fails(scene):
    scene.errands.perform(Fuse(job="j", run=3, cluster=0))
    asyncio.run(scene.ends(PlanOutcome(error="broken")))
    assert isinstance(scene.happened[0][0], FusingFailed)
    assert scene.runs("j") == [1, 2, 3, 10]


def test_runs_that_were_never_fused_go_when_the_next_one_is_planned(scene):
    scene.world.runs["j"] = Run(job="j", number=10, state="over", began_at=1.0, lost=True)
    asyncio.run(scene.plan(11, fused_run=2))
    assert scene.done is not None
    assert scene.runs("j") == [2]
    assert scene.files.held_bytes == 100


def test_a_run_that_waits_to_be_fused_stays(scene):
    scene.world.runs["j"] = Run(job="j", number=10, state="over", began_at=1.0, fuses=0)
    asyncio.run(scene.plan(11))
    assert scene.runs("j") == [10]


def test_a_run_is_planned_once_nobody_writes_to_its_folder_any_more(scene):
    async def story():
        scene.quiet.clear()
        planning = asyncio.create_task(scene.plan(10))
        async with asyncio.timeout(TIMEOUT_S):
            await scene.asked.wait()
        assert scene.done is None
        assert scene.runs("j") == [1, 2, 3, 10]
        scene.quiet.set()
        await planning
        assert scene.done is not None
        assert scene.runs("j") == []

    asyncio.run(story())


def test_new_records_do_not_cost_a_folder_its_jobs(scene, tmp_path):
    with (
        pytest.raises(ServerError, match=r"files of 1 job.*--store"),
        running_server(tmp_path, store=str(tmp_path / "other.sqlite")),
    ):
        pass
    assert scene.runs("j") == [1, 2, 3, 10]


def test_what_an_earlier_server_did_not_remove_is_removed_at_the_start(scene, tmp_path):
    scene.make_runs("k", 1, 2)
    jobs = {
        "j": {"run": 10, "fused_run": 3},
        "k": {"run": 2},
    }
    store = open_store(str(scene.folders.database))
    for id, more in jobs.items():
        job = Job(id=id, name=id, owner="t", owner_name="o", submitted_at=1.0, epochs=1, **more)
        job.state = "stopped"
        store.write([Put("job", id, encode(job))]).result()
    store.close()
    with running_server(tmp_path) as server:
        assert scene.runs("j") == [3, 10]
        assert scene.runs("k") == [1, 2]
        assert server.ready.service.files.held_bytes == 400
