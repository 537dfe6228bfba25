"""Starts the processes that check, plan and fuse; one at a time of each kind, owner by owner, with
limits.

Their folder says what is to be done and how it ended. They die with the server, and with whatever
made them unnecessary. Each runs in a sandbox, if there can be one: without network, and of the
server's folder it sees the files of its own job, and may change what is in the folder of its task
alone. What it leaves behind is believed as far as it is files: a link could lead the server
anywhere. The server itself moves the result of a fusion into place.
"""

import asyncio
import contextlib
import logging
import signal
import stat
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from ravnest import lifeline
from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.errors import RavnestError
from ravnest.removing import remove_whole
from ravnest.sandbox.bubblewrap import Policy, ended_by, sandboxed, why_not
from ravnest.sandbox.environment import compute_environment
from ravnest.server.planjob.outcome import (
    FRESH,
    MEMORY,
    ORDER,
    OUTCOME,
    SPARE,
    PlanOrder,
    PlanOutcome,
    left_outcome,
)
from ravnest.server.room import (
    SPARE_BYTES,
    is_for_lack_of_room,
    leave_room,
    tells_of_lack_of_room,
)
from ravnest.server.service import fused_files
from ravnest.server.service.turns import Turns
from ravnest.whole import make_folder, must_be_plain, write_whole

logger = logging.getLogger("ravnest.server")
Value = TypeVar("Value")
Then = Callable[[PlanOutcome], None]

_LAST_WORDS = 4000
_MOST_NAME = 100
_KILL_S = 10.0
_ASKED_TO_END = frozenset({signal.SIGTERM, signal.SIGINT})
"""By people, or by the system as it ends: no verdict on the model."""
_MEMORY_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


@dataclass(frozen=True)
class WorkLimits:
    seconds: float = 3600.0
    check_seconds: float = 300.0
    """For a check: somebody waits for the answer, and others to hand in theirs."""
    memory_bytes: int = 0
    """Of each process; 0 is no limit."""
    threads: int = 0
    """For computing; 0 is as many as there are cores."""
    spare_bytes: int = SPARE_BYTES
    """Of the disk, that they have to leave."""


class Workshop:
    def __init__(self, limits: WorkLimits, root: Path | None = None) -> None:
        """`root`: the server's folder."""
        self._limits = limits
        self._root = root
        self._turns = {"check": Turns(), "plan": Turns(), "fuse": Turns()}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(
        self,
        key: str,
        folder: Path,
        order: PlanOrder,
        done: Callable[[PlanOutcome], Awaitable[None]],
        then: Then | None = None,
    ) -> None:
        """In the background; `done` is told how it ended, unless it was cancelled. `then` is what
        the server makes of what was left, and waits for the disk."""
        self.cancel(key)

        async def go() -> None:
            outcome = await self.do(folder, order, then)
            try:
                await done(outcome)
            except Exception as error:  # somebody waits to hear how it ended
                logger.exception("%s ended, and nothing could be made of it", key)
                await done(_failed(error))

        task = asyncio.create_task(go(), name=key)
        self._tasks[key] = task
        task.add_done_callback(lambda task: self._ended(key, task))

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", key, exc_info=error)

    def cancel(self, key: str) -> None:
        if (task := self._tasks.pop(key, None)) is not None:
            self._ending.add(task)
            task.cancel()

    async def ended(self, *keys: str) -> None:
        """Wait until nothing is done under these keys, if it has been cancelled."""
        tasks = [task for task in self._ending if task.get_name() in keys]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def do(self, folder: Path, order: PlanOrder, then: Then | None = None) -> PlanOutcome:
        """How it ended, whatever happens: others wait for their turn."""
        async with self._turns[order.task].of(order.owner):
            loop, spare = asyncio.get_running_loop(), self._limits.spare_bytes
            try:
                prepare = partial(_prepare, folder, order, spare, self._root)
                await _to_its_end(loop.run_in_executor(None, prepare))
                problem = await self._run(folder, order)
                ended = loop.run_in_executor(None, _outcome, folder, order, problem)
                outcome = await _to_its_end(ended)
                if then is not None and not outcome.error:
                    await _to_its_end(loop.run_in_executor(None, then, outcome))
                return outcome
            except RavnestError as error:
                return PlanOutcome(error=str(error))
            except NOT_UNDERSTOOD as error:
                return PlanOutcome(error=f"it left behind what cannot be understood: {error}")
            except Exception as error:
                if not isinstance(error, OSError):
                    logger.exception("what was done in %s came to no end", folder)
                return _failed(error)

    async def _run(self, folder: Path, order: PlanOrder) -> PlanOutcome | None:
        """Nothing, or how the process failed."""
        limits, task = self._limits, order.task
        seconds, option = limits.seconds, "--plan-seconds"
        if task == "check":
            seconds, option = limits.check_seconds, "--check-seconds"
        missing = await asyncio.to_thread(why_not, network=False)
        command = [sys.executable, "-P", "-m", "ravnest.server.planjob", str(folder)]
        if missing is None:
            command = sandboxed(command, policy_of(folder, order, self._root, limits.memory_bytes))
        with lifeline.hold() as line:
            environment = {
                **compute_environment(limits.threads, home=folder),
                MEMORY: str(limits.memory_bytes),
                SPARE: str(limits.spare_bytes),
            }
            if line is not None:
                environment[lifeline.VARIABLE] = str(line)
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                pass_fds=() if line is None else (line,),
            )
            try:
                async with asyncio.timeout(seconds):
                    words = await _last_words(process)
                    code = await process.wait()
            except TimeoutError:  # as it would again
                return PlanOutcome(
                    error=f"it took longer than {seconds:g} seconds, which is the limit "
                    f"(ravnest server {option})"
                )
            finally:
                await _end(process)
        if words or code:
            logger.warning("the process for %s in %s ended with %d: %s", task, folder, code, words)
        if code == 0:
            return None
        struck = ended_by(code, in_sandbox=missing is None)
        if struck is not None and struck not in _ASKED_TO_END:
            # The model has ended it, as it would the next one: no other is tried.
            return PlanOutcome(error=f"it ended the server's process by {_signal_name(struck)}")
        # Its words may be torch's, with numbers of a tensor: they stay here.
        why = f"the process ended with {code} (the log of the server has its last words)"
        full = tells_of_lack_of_room(words.strip().rpartition("\n")[2])
        return PlanOutcome(error=why, crashed=True, full=full)


def policy_of(folder: Path, order: PlanOrder, root: Path | None, memory_bytes: int) -> Policy:
    """What a process may see: of the server's folder, the files of its task. It changes nothing but
    what is in its own folder, in which nothing lies that it was not given."""
    wanted = [Path(path) for path in (order.model, order.weights) if path]
    return Policy(
        folder,
        hidden=root,
        readable=tuple(fused_files.readable(order) if order.task == "fuse" else wanted),
        network=False,
        devices=False,
        memory_bytes=memory_bytes or None,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _failed(error: Exception) -> PlanOutcome:
    """There was no process, no space, no folder, or a mistake of ours."""
    full = is_for_lack_of_room(error)
    said = error.strerror if isinstance(error, OSError) and full else error
    return PlanOutcome(error=f"the server cannot do this: {said}", crashed=True, full=full)


async def _to_its_end(work: "asyncio.Future[Value]") -> Value:
    """A thread cannot be cancelled: what waits for it does not end before it."""
    try:
        return await asyncio.shield(work)
    finally:
        await asyncio.wait({work})


async def _last_words(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    kept = b""
    while piece := await process.stderr.read(65536):
        kept = (kept + piece)[-_LAST_WORDS:]
    return kept.decode("utf-8", "replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_S):
                await process.wait()
                # In a sandbox it ends a moment after what has started it; then this pipe ends too.
                await _last_words(process)


def _prepare(folder: Path, order: PlanOrder, spare: int, root: Path | None = None) -> None:
    if root is not None:
        must_be_plain(folder, root)
    if order.task == "fuse":
        fused_files.lay_out(order)
        remove_whole(folder / FRESH)  # of another cluster, or of a process that broke off
    make_folder(folder)
    (folder / OUTCOME).unlink(missing_ok=True)
    content = msgspec.json.encode(order)
    # The process looks for itself once it knows how much it will write.
    leave_room(folder, len(content), spare)
    write_whole(folder / ORDER, content)


def _outcome(folder: Path, order: PlanOrder, problem: PlanOutcome | None) -> PlanOutcome:
    if (odd := _first_odd(folder)) is not None:
        remove_whole(folder)
        return PlanOutcome(
            error=f"it left {odd.name[:_MOST_NAME]!r} behind, which is no plain file"
        )
    try:
        found = left_outcome(folder, order)
    except OSError as error:
        return problem or PlanOutcome(error=f"it left nothing behind ({error})", crashed=True)
    except NOT_UNDERSTOOD:
        if problem is None:  # as it would leave it behind again
            raise
        return problem
    outcome = problem if problem is not None and not found.error else found
    if order.task == "fuse" and not outcome.error:
        return fused_files.put_in_place(folder, order, outcome)
    return outcome


def _first_odd(folder: Path) -> Path | None:
    """Something that is neither a file nor a folder, a folder that cannot be looked into, or a file
    that whoever can reach it would run as the user of the server."""
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        try:
            kind = path.lstat().st_mode
            if stat.S_ISDIR(kind):
                waiting += path.iterdir()
            elif not stat.S_ISREG(kind) or kind & (stat.S_ISUID | stat.S_ISGID):
                return path
        except OSError:
            return path
    return None


def half_of_memory() -> int:
    """Of this machine, or of what it allows its processes."""
    total: int = psutil.virtual_memory().total
    for path in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            total = min(total, int(Path(path).read_text()))
    return total // 2
