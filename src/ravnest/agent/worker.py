"""The process that trains one stage: started, steered, listened to, ended.

It says what it has to say as lines of JSON (see `Line`); whatever else it prints goes to its log,
which is opened once, before it starts, where it cannot put anything else in its place.
However it ends, there is exactly one `WorkEnd`.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO, Literal

import msgspec
import psutil

from ravnest.agent.folders import AssignmentFolder
from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.api.work import (
    MOST_LINE_BYTES,
    STOPPED_WITHIN_S,
    End,
    Line,
    Report,
    WorkEnd,
    WorkReport,
)
from ravnest.sandbox.bubblewrap import ended_by

MODULE = "ravnest.worker"
_MOST_LOG = 32 << 20
_END_GRACE_S = 30.0
"""Between the last word of a worker and its end."""
Steering = Literal["stop", "pause", "resume"]
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class Worker:
    """`run` from its start to its end; the other methods may be called meanwhile."""

    def __init__(
        self,
        folder: AssignmentFolder,
        *,
        environment: dict[str, str],
        nice: int = 0,
        command: Sequence[str] | None = None,
        on_report: Callable[[WorkReport], None],
        epochs_done: int = 0,
        paused: bool = False,
        in_sandbox: bool = False,
        memory_bytes: int = 0,
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._nice = nice
        self._command = list(command or self.command_for(folder))
        self._on_report = on_report
        self._epochs_done = epochs_done
        self._in_sandbox, self._most_bytes = in_sandbox, memory_bytes
        self._unsaid: list[Steering] = ["pause"] if paused else []
        """Said before there was anybody to hear it."""
        self.memory_bytes = 0
        """As it last said itself: also on a device, where nobody else can see it."""
        self._log: BinaryIO | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._end: WorkEnd | None = None
        self._killed_for: str | None = None
        self._is_too_large = False
        self._overdue: asyncio.TimerHandle | None = None

    @staticmethod
    def command_for(folder: AssignmentFolder) -> list[str]:
        # -P: what lies in its folder, where a script may write to, is not imported.
        return [sys.executable, "-P", "-m", MODULE, str(folder.path.resolve())]

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def run(self) -> WorkEnd:
        self._folder.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._folder.log.open("a+b") as self._log:
            try:
                return await self._run(self._log)
            finally:
                self.trim_log()
                self._log = None

    async def _run(self, log: BinaryIO) -> WorkEnd:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=self._folder.path,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=MOST_LINE_BYTES,
                # Ctrl-C in the agent's terminal is for the agent, which ends it in good order.
                start_new_session=True,
            )
        except OSError as error:
            return self._failed(f"the worker cannot be started: {error}")
        if self._killed_for is not None:
            self.kill(self._killed_for)
        unsaid, self._unsaid = self._unsaid, []
        for action in unsaid:
            self.steer(action)
        if self._nice:
            with contextlib.suppress(psutil.Error, OSError):
                psutil.Process(self._process.pid).nice(self._nice)
        try:
            await self._listen(self._process)
            async with asyncio.timeout(_END_GRACE_S):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            if self._overdue is not None:
                self._overdue.cancel()
            self._kill_all()
        code = await self._process.wait()
        return self._outcome(code)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                self.kill(f"the worker said a line of more than {MOST_LINE_BYTES} bytes")
                return
            if not line:
                return
            try:
                said = _decoder.decode(line)
            except NOT_UNDERSTOOD as error:
                self.kill(f"the worker said something that is not understood: {error}")
                return
            if isinstance(said, End):
                self._end = said.end
                return
            if isinstance(said, Report):
                self.memory_bytes = said.report.memory_bytes or self.memory_bytes
                self._on_report(said.report)
                # Where thousands wait, reading the next one is no moment at which others come on.
                await asyncio.sleep(0)

    def _outcome(self, code: int) -> WorkEnd:
        if self._end is not None and not self._end.out_of_memory:  # whatever was done afterwards
            return self._end
        if self._end is not None or self._is_too_large:
            return self._failed(
                f"the worker needed more than the {self._most_bytes / 1e9:.1f} GB of memory that "
                "it may take here (ravnest join --memory)",
                out_of_memory=True,
            )
        if self._killed_for is not None:
            return self._failed(self._killed_for)
        signal = ended_by(code, in_sandbox=self._in_sandbox)
        how = f"code {code}" if signal is None else f"signal {signal}"
        # Its log stays with the owner of this machine: torch's errors show values of tensors.
        return self._failed(f"the worker ended with {how} without a word", signal=signal)

    def _failed(
        self, reason: str, *, signal: int | None = None, out_of_memory: bool = False
    ) -> WorkEnd:
        return WorkEnd(
            outcome="failed",
            epochs_done=self._epochs_done,
            reason=reason,
            signal=signal,
            out_of_memory=out_of_memory,
        )

    # ---- meanwhile ----

    def steer(self, action: Steering) -> None:
        process = self._process
        if process is None:
            self._unsaid.append(action)
            return
        if process.stdin is None or process.stdin.is_closing():
            return
        process.stdin.write(msgspec.json.encode({"action": action}) + b"\n")
        if action == "stop" and self._overdue is None:
            late = f"the worker did not stop within {STOPPED_WITHIN_S:.0f} s"
            loop = asyncio.get_running_loop()
            self._overdue = loop.call_later(STOPPED_WITHIN_S, self.kill, late)

    def kill(self, reason: str) -> None:
        """At once. It has failed for that reason, unless it has said how it ended."""
        self._killed_for = self._killed_for or reason
        self._kill_all()

    def kill_for_memory(self) -> None:
        self._is_too_large = True
        self.kill("the worker was ended for its memory")

    def trim_log(self) -> None:
        """A worker that says much must not fill the disk."""
        if self._log is None:
            return
        with contextlib.suppress(OSError):
            if os.fstat(self._log.fileno()).st_size > _MOST_LOG:
                os.ftruncate(self._log.fileno(), 0)

    def _kill_all(self) -> None:
        """The worker and whatever it has started."""
        if self._process is None:
            return
        if sys.platform == "win32":
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
