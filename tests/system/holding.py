"""Holds a job in one state until the server is killed, so that it is known when that happens.

Planning and fusing are processes of the server, each in a sandbox: a `bwrap` that only these tests
put on the server's PATH stops before it makes the sandbox. While a job is prepared or runs it is
the agents who are stopped: none can say that it has got on.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

from cast import PATIENCE_S, Cast

from ravnest.server.planjob.outcome import ORDER

TASKS = {"planning": "plan", "fusing": "fuse"}
_HOOK = f"""#!{sys.executable} -SE
import json, os, pathlib, signal, sys

hold, folder = pathlib.Path(__file__).with_name("hold"), pathlib.Path(sys.argv[-1])
if "ravnest.server.planjob" in sys.argv and hold.exists():
    order = json.loads((folder / "{ORDER}").read_bytes())
    if order["task"] == hold.read_text():
        hold.with_name("held").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
os.execv("{shutil.which("bwrap")}", sys.argv)
"""


class Hold:
    """Of the processes of a server: made before it starts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "bwrap").write_text(_HOOK)
        (folder / "bwrap").chmod(0o755)
        self._wanted, self._held = folder / "hold", folder / "held"
        os.mkfifo(self._held)
        self._process = 0
        self.environment = {"PATH": f"{folder}:{os.environ['PATH']}"}

    @contextlib.contextmanager
    def processes(self, state: str) -> Iterator[None]:
        """Those of this state stop where they begin; whoever was waited for is ended."""
        self._ear = os.open(self._held, os.O_RDONLY | os.O_NONBLOCK)
        self._wanted.write_text(TASKS.get(state, ""))
        try:
            yield
        finally:
            self._wanted.unlink()
            os.close(self._ear)
            if self._process:
                os.kill(self._process, signal.SIGKILL)

    def wait(self) -> None:
        """Until one has said that it stops."""
        said, _, _ = select.select([self._ear], [], [], PATIENCE_S)
        assert said, "no process of the server was held"
        self._process = int(os.read(self._ear, 32))


@contextlib.contextmanager
def agents(made: Cast) -> Iterator[None]:
    """None of them says anything meanwhile; their workers go on."""
    for one in made.providers.values():
        one.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for one in made.providers.values():
            one.process.send_signal(signal.SIGCONT)


def stored_state(made: Cast, job: str) -> str:
    """Of a job, in the store of a server that has ended."""
    with contextlib.closing(sqlite3.connect(made.server.folder / "server/server.sqlite")) as store:
        question = "SELECT body FROM ravnest_records WHERE kind = 'job' AND id = ?"
        (body,) = store.execute(question, (job,)).fetchone()
    return str(json.loads(body)["state"])
