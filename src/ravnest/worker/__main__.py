"""`python -m ravnest.worker FOLDER`: do what order.json in that folder says, and end."""

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Protocol

from ravnest.api.work import End, WorkEnd, WorkOrder
from ravnest.errors import RavnestError, text_without_values
from ravnest.provider.surroundings import DEVICE_SHARE
from ravnest.sandbox.confine import forbid_programs
from ravnest.sandbox.memory_limit import lacks_memory, limit_memory
from ravnest.worker.orders import read_order
from ravnest.worker.speech import Speech
from ravnest.worker.steering import Steering

GONE = "its agent is gone"
LAST_S = 20.0
"""How long a worker whose agent is gone may take to tell the others and end."""

logger = logging.getLogger("ravnest.worker")


class Work(Protocol):
    """A training, or a script."""

    def run(self) -> WorkEnd: ...
    def abort(self, reason: str) -> None: ...


class _Worker:
    def __init__(self, folder: Path, speech: Speech) -> None:
        self._folder = folder
        self._speech = speech
        self._work: Work | None = None
        self._said_end = threading.Event()

    def run(self) -> int:
        end = self._end_of_work()
        self._said_end.set()
        self._speech.say(End(end))
        return 1 if end.outcome == "failed" else 0

    def _end_of_work(self) -> WorkEnd:
        try:
            order = read_order(self._folder)
        except RavnestError as error:
            logger.error("%s", error)
            return WorkEnd(outcome="failed", reason=str(error)[:4000])
        # Without a buffer: a thread that waits for one would hold up the end of the interpreter.
        steering = Steering(os.fdopen(os.dup(0), "rb", buffering=0), self._agent_gone)
        steering.start()
        signal.signal(signal.SIGTERM, _leave)
        try:
            self._work = _made(order, self._folder, self._speech, steering)
            return self._work.run()
        except (Exception, SystemExit) as error:
            logger.exception("the work has failed")
            return WorkEnd(
                outcome="failed",
                epochs_done=order.assignment.epochs_done,
                reason=text_without_values(error)[:4000],
                out_of_memory=lacks_memory(error),
            )

    def _agent_gone(self) -> None:
        """Nobody will fetch a result: tell the other providers, and do not outlive the agent."""
        if self._said_end.is_set():
            return
        killer = threading.Timer(LAST_S, os._exit, args=(1,))
        killer.daemon = True
        killer.start()
        if self._work is None:
            os._exit(1)
        self._work.abort(GONE)


def _made(order: WorkOrder, folder: Path, speech: Speech, steering: Steering) -> Work:
    # Before torch is imported, which reads it once.
    os.environ["OMP_NUM_THREADS"] = str(order.threads)
    limit_memory(order.memory_bytes, order.threads)
    if order.device_share < 1.0:
        os.environ[DEVICE_SHARE] = str(order.device_share)
    if order.assignment.script is not None:
        from ravnest.worker.script import ScriptRun

        return ScriptRun(order, folder, speech, steering)
    import torch

    from ravnest.stage.zero_fill import fill_with_zeros
    from ravnest.worker.training import Training

    fill_with_zeros()
    if torch.version.hip is None:  # which compiles kernels by programs of its own
        # All that it needs is loaded, and nothing foreign has been looked at yet.
        forbid_programs()
    torch.set_num_threads(order.threads)
    return Training(order, folder, speech, steering)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m ravnest.worker FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0]).resolve()
    os.chdir(folder)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("ravnest").setLevel(logging.INFO)
    return _Worker(folder, Speech.instead_of_stdout()).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
