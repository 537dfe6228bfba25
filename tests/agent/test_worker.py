"""The process of a worker, as the agent sees it."""

import asyncio
import json
import os
import sys

from ravnest.agent.folders import AssignmentFolder
from ravnest.agent.worker import Worker
from ravnest.api.work import WorkEnd
from ravnest.server.state.world import Settings

REPORT = json.dumps({"type": "report", "report": {"at": 1.0}})
END = json.dumps({"type": "end", "end": {"outcome": "stopped", "saved": True, "epochs_done": 2}})
BOTH = f"{REPORT}\n{END}\n".encode()
LINGERS = f"import os, sys; os.write(1, {BOTH!r}); sys.stdin.readline()"
OBEYS = f"print({REPORT!r}, flush=True); input(); print({END!r}, flush=True)"
ENDED = WorkEnd(outcome="stopped", saved=True, epochs_done=2)


def run(tmp_path, program, upon_report):
    """`upon_report` gets the worker."""
    folder = AssignmentFolder(tmp_path / "work" / "a1")
    folder.path.mkdir(parents=True)

    async def inside():
        worker = Worker(
            folder,
            environment=dict(os.environ),
            command=[sys.executable, "-c", program],
            on_report=lambda _: upon_report(worker),
        )
        return await worker.run()

    return asyncio.run(inside())


def test_how_a_worker_said_that_it_ended_stands_though_it_is_killed_before_it_is_gone(tmp_path):
    """It had saved in good order, a little late, and what it saved was not brought back."""

    def kill(worker):
        # Both lines are there: this happens when the second has been read as well.
        asyncio.get_running_loop().call_soon(worker.kill, "it took too long")

    assert run(tmp_path, LINGERS, kill) == ENDED


def test_a_worker_that_is_told_to_stop_has_as_long_as_the_server_waits(tmp_path):
    """It was killed in a validation that took longer than its agent thought it might."""
    left_s = []

    def stop(worker):
        now = asyncio.get_running_loop().time()
        worker.steer("stop")
        left_s.append(worker._overdue.when() - now)

    assert run(tmp_path, OBEYS, stop) == ENDED
    assert left_s[0] >= Settings().stop_s
