"""Agents as tasks of a test, with stand-ins for workers and a server that the test speaks for."""

import asyncio
import contextlib
import json
import shutil
import sys
from pathlib import Path

from made import assignment
from toyserver import WAIT_S, ToyServer

from ravnest.agent.channel import Pauses
from ravnest.agent.joining import join
from ravnest.agent.settings import AgentSettings
from ravnest.agent.workload import Speed
from ravnest.api.control import Assign, Beat, Begin, Ended, Measured, Prepared, Reported
from ravnest.errors import NodeError, RunDirError, ServerError, TokenError

SPEED = Speed(device="cpu", gflops=50.0, torch="2")
TOY = Path(__file__).parent / "toy_worker.py"


def toy_in(folder):
    """In its own folder: from a sandbox it sees no other."""
    return [sys.executable, shutil.copy(TOY, folder.path)]


class Running:
    """One agent, as a task of the test's loop."""

    def __init__(self, server, home, *, token=True, **settings):
        self.lines = []
        self.upon = {}
        """What to do at once when something is told."""
        self._shown = asyncio.Queue()
        self.agents = []
        self._speeds = settings.pop("speeds", [SPEED])
        self._settings = self.settings(server.address, home, **settings)
        self._token = server.token() if token is True else token or None

    @staticmethod
    def settings(address, home, **settings):
        return AgentSettings(
            **{
                "address": address,
                "home": home,
                "name": "toy",
                "listen": "127.0.0.1:0",
                **settings,
            }
        )

    async def __aenter__(self):
        self.task = asyncio.create_task(
            join(
                self._settings,
                self._token,
                self._show,
                speeds=self._speeds,
                worker_command=toy_in,
                pauses=Pauses(0.01, 0.05),
                on_agent=self.agents.append,
            )
        )
        return self

    async def __aexit__(self, *_):
        if not self.task.done():
            self.leave(now=True)
        with contextlib.suppress(ServerError, TokenError, RunDirError, NodeError):
            async with asyncio.timeout(WAIT_S):
                await self.task

    @property
    def agent(self):
        return self.agents[-1] if self.agents else None

    def leave(self, *, now=False):
        for agent in self.agents:
            agent.leave(now=now)

    def _show(self, event, text):
        self.lines.append((event, text))
        self.upon.get(event, lambda: None)()
        self._shown.put_nowait(event)

    async def tells(self, event):
        async with asyncio.timeout(WAIT_S):
            while await self._shown.get() != event:
                pass

    def told(self, event):
        return [text for kind, text in self.lines if kind == event]


def run(test, tmp_path):
    async def inside():
        async with ToyServer(tmp_path / "server") as server:
            await test(server)

    asyncio.run(inside())


def files(server, provider=7):
    document = json.dumps({"node_id": provider, "template_path": "elsewhere", "x": 1}).encode()
    return (
        server.put("node.json", document),
        server.put("package/graph.json", b"{}"),
        server.put("data/train/0.bin", b"\1" * 300_000),
    )


def task(server, job="digits", provider=7, **changes):
    given = {"files": files(server, provider), "job_name": job, **changes}
    return assignment(f"a{provider}", provider=provider, **given)


async def assign(server, given):
    provider = given.provider
    await server.hear(Measured, provider)
    await server.say(provider, Assign(assignment=given))
    return await server.hear(Prepared, provider)


async def begin(server, given):
    await assign(server, given)
    await server.say(given.provider, Begin(assignment=given.id))


async def train(server, given):
    await begin(server, given)
    return await server.hear(Reported, given.provider)


async def work(server, given):
    """Until its end, which is not settled."""
    await begin(server, given)
    return await server.hear(Ended, given.provider)


async def beat_of(server, state):
    while (beat := await server.hear(Beat)).state != state:
        pass
    return beat
