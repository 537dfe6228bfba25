"""An agent says that its worker has ended; what it has brought back may be much to look at."""

import asyncio
from types import SimpleNamespace

from servers import TIMEOUT_S
from state_simulation import TRAINED, pool_of, training

from ravnest.api.control import Ended
from ravnest.api.work import WorkEnd
from ravnest.server.service.reports import Reports

END = WorkEnd(outcome="done", epochs_done=2, saved=True)


class Scene:
    """One provider that trains, and results that are looked at until somebody lets go."""

    def __init__(self):
        self.sim = pool_of(1)
        self.job = training(self.sim)
        self.part = self.sim.world.at_work[1]
        self.looked, self.looking, self.let_go = 0, asyncio.Event(), asyncio.Event()
        seen = SimpleNamespace(id="", run=1, epoch=0.0, step=0, loss=None, metrics={})
        core = SimpleNamespace(
            world=self.sim.world,
            happen=self.sim.happen,
            clock=lambda: self.sim.now,
            keep=lambda changes: None,
        )
        run_files = SimpleNamespace(whole=self._whole, settled=lambda part: None)
        self.hung_up = asyncio.Queue()
        self.reports = Reports(
            core,
            run_files,
            (),
            seen=lambda job: seen,
            changed=lambda job, points: None,
            hang_up=lambda provider, reason: self.hung_up.put_nowait(provider),
        )

    async def _whole(self, part, results):
        self.looked += 1
        self.looking.set()
        await self.let_go.wait()
        return results

    def says_its_end(self):
        """Whatever the agent says next is heard after this has returned."""
        self.reports.ended(1, Ended(assignment=self.part.id, end=END, results=(TRAINED,)))

    async def is_taken(self):
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*self.reports._ending.values())


def story(tell):
    async def limited():
        async with asyncio.timeout(TIMEOUT_S):
            await tell(Scene())

    asyncio.run(limited())


def test_an_end_that_is_said_again_meanwhile_is_looked_at_once():
    async def tell(scene):
        scene.says_its_end()
        await scene.looking.wait()
        scene.says_its_end()
        assert scene.part.is_open
        scene.let_go.set()
        await scene.is_taken()
        assert (scene.looked, scene.part.state, scene.job.state) == (1, "ended", "fusing")

    story(tell)


def test_an_end_that_could_not_be_looked_at_is_asked_for_again():
    async def tell(scene):
        looks = scene.reports._run_files
        scene.reports._run_files = SimpleNamespace(whole=lambda part, results: 1 / 0)
        scene.says_its_end()
        assert await scene.hung_up.get() == 1
        assert scene.part.is_open
        scene.reports._run_files = looks
        scene.let_go.set()
        scene.says_its_end()
        await scene.is_taken()
        assert scene.part.state == "ended"

    story(tell)


def test_an_end_that_is_looked_at_when_the_server_closes_is_left_to_the_next_one():
    async def tell(scene):
        scene.says_its_end()
        await scene.looking.wait()
        (look,) = scene.reports._ending.values()
        scene.reports.close()
        await asyncio.wait({look})
        assert scene.part.is_open
        assert scene.hung_up.empty()

    story(tell)


def test_an_end_of_what_is_over_is_settled_without_a_look():
    async def tell(scene):
        scene.let_go.set()
        scene.says_its_end()
        await scene.is_taken()
        scene.sim.acknowledged.clear()
        scene.says_its_end()
        await scene.is_taken()
        assert scene.looked == 1
        assert scene.part.id in scene.sim.acknowledged

    story(tell)
