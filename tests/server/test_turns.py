"""Whoever wants something often does not keep others from it."""

import asyncio

import pytest

from ravnest.server.service.turns import Turns


class Queue:
    """Everybody who wants a turn, and in which order they had it."""

    def __init__(self):
        self.turns, self.had, self.tasks = Turns(), [], {}
        self.go = asyncio.Event()

    async def want(self, name):
        async def take():
            async with self.turns.of(name[0]):
                self.had.append(name)
                await self.go.wait()

        self.tasks[name] = asyncio.create_task(take())
        await asyncio.sleep(0)

    async def all_had(self):
        self.go.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        return self.had


def test_owners_have_their_turns_one_after_the_other():
    async def story():
        queue = Queue()
        for name in ("a1", "a2", "a3", "a4", "b1", "c1", "b2"):
            await queue.want(name)
        assert queue.had == ["a1"]
        assert await queue.all_had() == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]

    asyncio.run(story())


@pytest.mark.parametrize("late", [False, True])
def test_a_turn_that_is_not_wanted_any_more_goes_to_the_next(late):
    """Also if it was given in the same moment."""

    async def story():
        queue = Queue()
        for name in ("a1", "b1", "c1"):
            await queue.want(name)
        if late:
            queue.tasks["a1"].cancel()
            await asyncio.sleep(0)
            assert queue.turns._waiting.keys() == {"c"}  # b has it, and does not know yet
        queue.tasks["b1"].cancel()
        assert await queue.all_had() == ["a1", "c1"]
        await queue.want("d1")
        assert queue.had[-1] == "d1"

    asyncio.run(story())


def test_whoever_fails_leaves_the_turn_to_the_next():
    async def story():
        turns = Turns()
        with pytest.raises(ValueError, match="x"):
            async with turns.of("a"):
                raise ValueError("x")
        async with asyncio.timeout(30), turns.of("b"):
            pass

    asyncio.run(story())
