"""Curves are read once for everybody who asks at a time, and nobody gets one that is too old."""

import asyncio

import msgspec
from servers import TIMEOUT_S

from ravnest.api.views import Series
from ravnest.server.changes import Point
from ravnest.server.service.curves import Curves


class Slow:
    """A store whose answers come when they are let go; meanwhile points are added."""

    def __init__(self):
        self.points = []
        self.reading, self.go_on = asyncio.Semaphore(0), asyncio.Semaphore(0)
        self.at_a_time = self.most_at_a_time = self.read_so_far = 0

    async def read(self, question):
        class Database:
            points = staticmethod(lambda job, most: list(found))

        found = list(self.points)
        self.at_a_time += 1
        self.most_at_a_time = max(self.most_at_a_time, self.at_a_time)
        self.read_so_far += 1
        self.reading.release()
        await self.go_on.acquire()
        self.at_a_time -= 1
        return question(Database)

    def add(self, step):
        self.points.append(Point(step, "j", "train/loss", 0, step, step / 10, 1.0, 0.5))


def steps(content):
    points = msgspec.json.decode(content, type=Series).points
    return [int(point[0]) for point in points["train/loss@0"]]


def story(tell):
    async def limited():
        async with asyncio.timeout(TIMEOUT_S):
            await tell(Slow())

    asyncio.run(limited())


def test_those_who_ask_while_it_is_being_read_share_the_next_one():
    async def tell(store):
        curves = Curves(store)
        store.add(1)
        first = asyncio.create_task(curves.of("j"))
        await store.reading.acquire()
        store.add(2)
        others = [asyncio.create_task(curves.of("j")) for _ in range(50)]
        store.go_on.release()
        assert steps(await first) == [1]
        await store.reading.acquire()
        others.pop().cancel()
        store.go_on.release()
        assert [steps(await other) for other in others] == [[1, 2]] * 49
        assert store.read_so_far == 2

    story(tell)


def test_one_job_is_read_at_a_time():
    async def tell(store):
        curves = Curves(store)
        store.add(1)
        asked = [asyncio.create_task(curves.of(f"j{number}")) for number in range(5)]
        for _ in asked:
            await store.reading.acquire()
            store.go_on.release()
        await asyncio.gather(*asked)
        assert (store.read_so_far, store.most_at_a_time) == (5, 1)

    story(tell)
