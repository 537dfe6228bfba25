"""The process of a worker, as the agent sees it."""

import asyncio
import json
import os
import sys

from ravnest.agent.folders import AssignmentFolder
from ravnest.agent.worker import Worker
from ravnest.api.work import WorkEnd

REPORT = json.dumps({"type": "report", "report": {"at": 1.0}})
END = json.dumps({"type": "end", "end": {"outcome": "stopped", "saved": True, "epochs_done": 2}})
BOTH = f"{REPORT}\n{END}\n".encode()
LINGERS = f"import os, sys; os.write(1, {BOTH!r}); sys.stdin.readline()"


def test_how_a_worker_said_that_it_ended_stands_though_it_is_killed_before_it_is_gone(tmp_path):
    """It had saved in good order, a little late, and what it saved was not brought back."""
    folder = AssignmentFolder(tmp_path / "work" / "a1")
    folder.path.mkdir(parents=True)

    async def run():
        loop = asyncio.get_running_loop()
        worker = Worker(
            folder,
            environment=dict(os.environ),
            command=[sys.executable, "-c", LINGERS],
            # Both lines are there: this happens when the second has been read as well.
            on_report=lambda _: loop.call_soon(worker.kill, "it took too long"),
        )
        return await worker.run()

    assert asyncio.run(run()) == WorkEnd(outcome="stopped", saved=True, epochs_done=2)
