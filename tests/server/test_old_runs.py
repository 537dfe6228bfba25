"""Old runs of a job make room for new ones."""

import asyncio
from types import SimpleNamespace

import pytest
from servers import running_server

from ravnest.api.limits import encode
from ravnest.server.changes import Put
from ravnest.server.folders import Folders
from ravnest.server.planjob.outcome import PlanOutcome
from ravnest.server.service.errands import Errands
from ravnest.server.service.files import Files
from ravnest.server.state.effects import Fuse
from ravnest.server.state.events import Fused, FusingFailed
from ravnest.server.state.records import Job
from ravnest.server.store import open_store


class Scene:
    """Errands with a workshop that only remembers what it is to do, and what happened."""

    def __init__(self, root):
        self.folders = Folders(root)
        self.folders.make()
        self.files = Files(self.folders, most_bytes=1 << 30, quota_bytes=1 << 30)
        self.happened = []
        self.done = None
        workshop = SimpleNamespace(start=self._start)
        core = SimpleNamespace(happen=self._happen)
        self.errands = Errands(core, self.folders, self.files, None, None, workshop)

    def _start(self, key, folder, task, done):
        self.done = done

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
    asyncio.run(scene.done(PlanOutcome(result_bytes=7)))
    assert scene.happened == [(Fused(job="j", run=3, bytes=7), [1, 2, 3, 10])]
    assert scene.runs("j") == [3, 10]
    assert scene.files.held_bytes == 200


def test_nothing_is_removed_if_fusing_fails(scene):
    scene.errands.perform(Fuse(job="j", run=3, cluster=0))
    asyncio.run(scene.done(PlanOutcome(error="broken")))
    assert isinstance(scene.happened[0][0], FusingFailed)
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
