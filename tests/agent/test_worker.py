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
FLOODS = f"print('\\n'.join([{REPORT!r}] * 500 + [{END!r}]))"
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
        # The next line is there already, and is the end.
        worker.kill("it took too long")

    assert run(tmp_path, LINGERS, kill) == ENDED


def test_a_worker_that_reports_without_end_does_not_keep_its_agent_from_anything_else(tmp_path):
    """Tens of thousands of reports were taken at once, and the server heard nothing for so long."""
    turns = []

    def next_turn():
        turns.append(len(turns))
        asyncio.get_running_loop().call_soon(next_turn)

    seen = []

    def count(worker):
        if not turns:
            next_turn()
        seen.append(turns[-1])

    assert run(tmp_path, FLOODS, count) == ENDED
    assert len(seen) == 500
    assert len(set(seen)) == 500


def test_a_worker_that_is_told_to_stop_has_as_long_as_the_server_waits(tmp_path):
    """It was killed in a validation that took longer than its agent thought it might."""
    left_s = []

    def stop(worker):
        now = asyncio.get_running_loop().time()
        worker.steer("stop")
        left_s.append(worker._overdue.when() - now)

    assert run(tmp_path, OBEYS, stop) == ENDED
    assert left_s[0] >= Settings().stop_s
