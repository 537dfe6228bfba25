"""A stage trained by somebody's own program, where the owner of the machine allows that.

The program is an ordinary provider script with a Node and a Trainer. Who its neighbours are, how
they are reached and with which certificate, its Node reads from the environment (see
ravnest.provider.surroundings). Keeping it from the rest of the machine is the agent's part: the
worker as a whole is started in a sandbox. It keeps itself from the program, so that what the agent
hears is what the worker says.
"""

import contextlib
import ctypes
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import psutil

from ravnest import lifeline
from ravnest.api.work import Report, Started, WorkEnd, WorkOrder, WorkReport
from ravnest.provider.surroundings import REPORTS
from ravnest.worker.blame import culprit_of
from ravnest.worker.hearing import Hearing, ReportsTo
from ravnest.worker.saves import Saves
from ravnest.worker.speech import Speech
from ravnest.worker.steering import Action, Steering

logger = logging.getLogger("ravnest.worker")
GRACE_S = 20.0
_PEER = re.compile(r"\bPeerError: (.*)")
_LINE = 4000
_PR_SET_DUMPABLE = 4


def environment(order: WorkOrder, folder: Path) -> dict[str, str]:
    """What the program's Node needs to know."""
    found = {
        "RAVNEST_NODE": order.assignment.node,
        "RAVNEST_NODE_DATA": str(folder / "node_data"),
        "RAVNEST_LISTEN": order.listen,
        "RAVNEST_ROUTES": json.dumps(order.routes),
        "RAVNEST_TLS": str(folder / "tls"),
        "RAVNEST_DEVICE": order.device,
        "OMP_NUM_THREADS": str(order.threads),
        "PYTHONUNBUFFERED": "1",
    }
    if order.bandwidth_mbps is not None:
        found["RAVNEST_BANDWIDTH_MBPS"] = str(order.bandwidth_mbps)
    return found


def _close_to_others() -> None:
    """Processes of the same user may otherwise open what this one has open, its pipe to the agent
    above all, and write to its memory. Linux only; where it cannot be done, a script can forge what
    is said about itself."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _do_not_be_interrupted() -> None:
    """A script may signal its worker; in a sandbox, where the worker is the first process, only
    what the worker has a handler for gets through. Not ignored: that, the script would inherit."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda number, frame: None)


class ScriptRun:
    """Of one assignment; `run` from its beginning to its end."""

    def __init__(self, order: WorkOrder, folder: Path, speech: Speech, steering: Steering) -> None:
        self._order, self._work = order, order.assignment
        self._folder = folder
        self._speech = speech
        self._steering = steering
        self._saves = Saves(folder / "package")
        self._process: subprocess.Popen[str] | None = None
        self._last_line = ""
        self._was_stopped = False
        self._over = threading.Event()
        self._hearing: Hearing | None = None

    def run(self) -> WorkEnd:
        assert self._work.script is not None
        _close_to_others()
        _do_not_be_interrupted()
        command = [sys.executable, "script.py", *self._work.script.arguments]
        with lifeline.hold() as line, Hearing(self._speech.say) as hearing:
            self._hearing = hearing
            try:
                self._process = process = self._start(command, line, hearing.descriptor)
            except OSError as error:
                return self._failed(f"the script cannot be started: {error}")
            hearing.begin()
            self._speech.say(Started())
            threads = [
                threading.Thread(target=act, args=(process,), name=act.__name__, daemon=True)
                for act in (self._report, self._copy)
            ]
            for thread in threads:
                thread.start()
            self._steering.obey_with(self._obey)
            try:
                code = process.wait()
            finally:
                self._over.set()
                self._kill()
                # Not for ever: processes that it has left behind may hold its pipes open.
                for thread in threads:
                    thread.join(GRACE_S)
                hearing.join(GRACE_S)
        return self._end(code)

    def abort(self, reason: str) -> None:
        """From another thread."""
        logger.warning("the script is ended: %s", reason)
        self._kill()

    def _start(
        self, command: list[str], line: int | None, reports: int | None
    ) -> "subprocess.Popen[str]":
        variables = {**os.environ, **environment(self._order, self._folder)}
        if line is not None:
            variables[lifeline.VARIABLE] = str(line)
        if reports is not None:
            to = ReportsTo(reports, self._order.report_s, self._order.clock_offset_s)
            variables[REPORTS] = msgspec.json.encode(to).decode()
        return subprocess.Popen(
            command,
            cwd=self._folder,
            env=variables,
            pass_fds=[one for one in (line, reports) if one is not None],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )

    def _copy(self, process: "subprocess.Popen[str]") -> None:
        """What it prints belongs into the log; its last line may say why it has ended."""
        assert process.stdout is not None
        while text := process.stdout.readline(_LINE):
            # Where the disk is full the log ends; the script would wait for ever to be read.
            with contextlib.suppress(OSError):
                sys.stderr.write(text)
                sys.stderr.flush()
            if text.strip():
                self._last_line = text.strip()

    def _report(self, process: "subprocess.Popen[str]") -> None:
        """Until its Trainer says more about it, if it has one."""
        while not self._over.wait(max(self._order.report_s, 0.05)):
            if self._hearing is not None and self._hearing.has_heard:
                return
            with contextlib.suppress(psutil.Error):
                report = WorkReport(
                    at=time.time() + self._order.clock_offset_s,
                    epoch=self._work.epochs_done,
                    memory_bytes=psutil.Process(process.pid).memory_info().rss,
                )
                self._speech.say(Report(report))

    def _obey(self, action: Action) -> None:
        if action != "stop":
            logger.warning("a script cannot be told to %s", action)
            return
        if self._process is not None and self._process.poll() is None:
            self._was_stopped = True
            # As Ctrl-C does: the others of its cluster are told by it.
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(
                    signal.SIGTERM if sys.platform == "win32" else signal.SIGINT
                )

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def _end(self, code: int) -> WorkEnd:
        saved, wanted = self._saves.is_new(), self._work.training.epochs
        heard = 0 if self._hearing is None else self._hearing.epochs
        # One that takes an interruption well ends well, with less than it was to train.
        if code == 0 and (not self._was_stopped or heard >= wanted):
            epochs = wanted if saved else self._work.epochs_done
            return WorkEnd(outcome="done", epochs_done=epochs, saved=saved, metrics=self._scores())
        if self._was_stopped:
            return WorkEnd(
                outcome="stopped",
                epochs_done=self._work.epochs_done,
                saved=saved,
                metrics=self._scores(),
                reason="the script was interrupted",
            )
        how = f"signal {-code}" if code < 0 else f"code {code}"
        said = f": {self._last_line}" if self._last_line else ""
        return self._failed(f"the script ended with {how}{said}")

    def _scores(self) -> dict[str, float]:
        return {} if self._hearing is None else dict(self._hearing.scores)

    def _failed(self, reason: str) -> WorkEnd:
        peer = _PEER.search(self._last_line)
        return WorkEnd(
            outcome="failed",
            epochs_done=self._work.epochs_done,
            reason=reason[:4000],
            culprit=culprit_of(peer[1], self._work.node) if peer else None,
        )
