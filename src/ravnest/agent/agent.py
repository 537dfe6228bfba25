"""An agent at work: carries out what `control.py` decides, and tells it what came of it.

Everything happens in one event loop. Instructions are carried out at once; what takes time is a
task that reports its end to `control.py`.
"""

import asyncio
import datetime
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ravnest.agent import instructions as todo
from ravnest.agent import sandbox
from ravnest.agent.channel import Channel, Pauses
from ravnest.agent.clockwork import Clockwork
from ravnest.agent.control import Control
from ravnest.agent.errand import Errand, Surroundings
from ravnest.agent.folders import WorkFolders
from ravnest.agent.identity import renew_if_due
from ravnest.agent.machine import Load
from ravnest.agent.measuring import Measuring
from ravnest.agent.standing import Instructions
from ravnest.agent.worker import Worker
from ravnest.api.control import FromServer, PeerAddress, Welcome
from ravnest.api.machine import MachineFacts
from ravnest.api.work import Assignment, WorkEnd
from ravnest.client.answers import AnswerError, TokenRefusedError
from ravnest.errors import JobError, RavnestError

Show = Callable[[str, str], None]
"""Gets the kind of an event and a line about it."""
_GOODBYE_S = 5.0
_MEASURE_AGAIN_S = 15.0


class Agent:
    def __init__(
        self,
        around: Surroundings,
        facts: MachineFacts,
        measuring: Measuring,
        show: Show,
        pauses: Pauses | None = None,
    ) -> None:
        settings = around.settings
        self._around = around
        self._show = show
        self._measuring = measuring
        self._folders = WorkFolders(settings.home)
        self._control = Control(
            facts,
            settings.caps,
            once=settings.once,
            name=settings.name if settings.is_named else None,
            may_run=lambda new: sandbox.reason_against(new, settings.caps),
        )
        self._channel = Channel(around.client, self, pauses)
        self._errand: Errand | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._removing: set[asyncio.Task[None]] = set()
        self._clockwork = Clockwork(self._beat, self._overdue, self._set_resting)
        self._load = Load()
        self._hello_at = 0.0
        self._finished = asyncio.Event()
        self._why_away = self._why_delayed = ""
        self.problem: str | None = None
        """Why it has ended, unless it was asked to."""
        self.is_rejected = False
        """The server does not want this identity again."""

    # ---- from beginning to end ----

    async def run(self) -> None:
        """Until it is asked to end (`leave`), or the server does not want it."""
        settings = self._around.settings
        if self._around.listener is not None:
            await self._around.listener.open()
        if settings.caps.scripts == "sandboxed":
            # Found out once, and not while others wait for an answer.
            await asyncio.to_thread(sandbox.why_not)
        self._take_up()
        self._clockwork.watch(settings.caps.hours)
        channel = asyncio.create_task(self._channel.run())
        finished = asyncio.create_task(self._finished.wait())
        try:
            await asyncio.wait({channel, finished}, return_when=asyncio.FIRST_COMPLETED)
            if channel.done() and (error := channel.exception()) is not None:
                self._rejected(error)
            self._channel.close()
            await asyncio.wait({channel}, timeout=_GOODBYE_S)
        finally:
            finished.cancel()
            await self._end(channel)

    def _rejected(self, error: BaseException) -> None:
        if not isinstance(error, TokenRefusedError):
            raise error
        self.problem, self.is_rejected = str(error), True

    async def _end(self, channel: asyncio.Task[None]) -> None:
        self._clockwork.stop()
        if self._errand is not None and self._errand.worker is not None:
            self._errand.worker.kill("the agent has ended")
            # Its end is recorded before the folder is looked at again.
            await asyncio.wait(self._tasks, timeout=_GOODBYE_S)
        if self._removing:
            await asyncio.wait(self._removing, timeout=_GOODBYE_S)
        for task in (channel, *self._tasks):
            task.cancel()
        await asyncio.gather(channel, *self._tasks, return_exceptions=True)
        if self._errand is not None:
            await self._errand.close()
        if self._around.listener is not None:
            await self._around.listener.close()

    def leave(self, *, now: bool = False) -> None:
        """What Ctrl-C means: first in good order, then at once."""
        self._do(self._control.leave(now=now))
        self._clockwork.give_server_time()

    def _overdue(self) -> None:
        self._do(self._control.overdue())

    def _set_resting(self, resting: bool) -> None:
        self._do(self._control.set_resting(resting))

    def _beat(self) -> None:
        worker = self._errand.worker if self._errand is not None else None
        used = self._load.process_memory(worker.pid if worker is not None else None)
        most = self._around.settings.caps.memory_bytes
        if worker is not None:
            worker.trim_log()
            if most is not None and used > most and self._around.device == "cpu":
                too_much = f"used {used >> 20} MB, its owner allows {most >> 20} MB"
                worker.kill(f"the worker was ended because it {too_much}")
            used = max(used, worker.memory_bytes)
        self._do(self._control.beat(self._load.memory_free(), used, self._load.cpu()))

    def _take_up(self) -> None:
        """What an earlier agent did not finish."""
        left = self._folders.left_behind(self._around.identity.provider)
        if left is not None:
            assignment, end = left
            self._show("taken up", f"found what is left of {assignment.job_name}: {end.outcome}")
            self._errand = Errand(assignment, self._folders.of(assignment.id), self._around)
            self._do(self._control.taken_up(assignment, end))

    # ---- what the channel tells ----

    def opened(self) -> None:
        self._hello_at = time.time()
        self._do(self._control.opened())

    def closed(self, why: str) -> None:
        if self._finished.is_set():
            return
        if not self._control.connected and why != self._why_away:
            self._show("away", why)
        self._why_away = why
        self._do(self._control.closed())

    def heard(self, message: FromServer) -> None:
        offset = 0.0
        if isinstance(message, Welcome):
            offset = message.now - (self._hello_at + time.time()) / 2
            self._why_away = ""
        self._do(self._control.heard(message, offset_s=offset))

    # ---- instructions ----

    def _do(self, instructions: Instructions) -> None:
        for each in instructions:
            self._do_one(each)

    def _do_one(self, instruction: todo.Instruction) -> None:
        match instruction:
            case todo.Say(message=message):
                self._channel.send(message)
            case todo.Pulse():
                self._clockwork.beat()
            case todo.Tell(event=event, text=text):
                self._show(event, text)
            case todo.KeepTime(heartbeat_s=heartbeat_s, report_s=report_s, offset_s=offset_s):
                self._around.report_s, self._around.clock_offset_s = report_s, offset_s
                self._clockwork.keep(heartbeat_s)
            case todo.MeasureLinks():
                self._go(self._measure())
            case todo.ProbePeers(peers=peers):
                self._go(self._probe(peers))
            case todo.Prepare(assignment=assignment):
                self._prepare(assignment)
            case todo.CancelPreparing(assignment=name):
                if self._errand is not None and self._errand.assignment.id == name:
                    self._errand.cancel()
            case todo.StartWorker(assignment=assignment, paused=paused):
                self._start_worker(assignment.id, paused)
            case todo.SteerWorker(action=action):
                if self._errand is not None and self._errand.worker is not None:
                    self._errand.worker.steer(action)
            case todo.EndWorker():
                if self._errand is not None and self._errand.worker is not None:
                    self._errand.worker.kill("it is not wanted any more")
            case todo.BringBack(assignment=assignment, end=end):
                if self._errand is not None and self._errand.assignment.id == assignment.id:
                    self._errand.task = self._go(self._bring_back(self._errand, end))
            case todo.CleanUp(assignment=name, failed=failed):
                self._clean_up(name, failed)
            case todo.AcceptCall(call=call):
                if self._errand is not None:
                    self._errand.accept(call)
            case todo.Finish(problem=problem):
                self.problem, self.is_rejected = problem, problem is not None
                self._finished.set()

    def _go(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A mistake of ours: better to end, and be started again, than to be half an agent.
            self.problem = f"{type(error).__name__}: {error}"
            self._finished.set()

    # ---- what takes time ----

    async def _renew(self) -> None:
        """The certificate that other providers are shown, if it ends soon."""
        identity, listener = self._around.identity, self._around.listener
        now = datetime.datetime.now(datetime.UTC)
        try:
            if not await asyncio.to_thread(renew_if_due, identity, self._around.client, now):
                return
            if listener is not None:
                listener.take_certificate(identity)
        except (RavnestError, OSError, ValueError) as error:
            # The relay does without it, and the next connection tries again.
            self._show("renewing", f"the certificate for other providers stays as it is: {error}")
            return
        self._show("renewed", "the certificate that other providers are shown was renewed")

    async def _measure(self) -> None:
        await self._renew()
        try:
            figures = await self._measuring.measure_link(self._around.client)
        except RavnestError as error:
            self._show("measuring", f"the line to the server cannot be measured now: {error}")
            asyncio.get_running_loop().call_later(_MEASURE_AGAIN_S, self._measure_again)
            return
        self._show(
            "measured",
            f"{figures.up_mbps:.0f} Mbit/s up, {figures.down_mbps:.0f} down, "
            f"{figures.latency_ms:.1f} ms to the server",
        )
        self._do(self._control.measured(figures))

    def _measure_again(self) -> None:
        """Unless a new connection has asked for it meanwhile."""
        if self._control.welcomed and self._control.figures is None:
            self._do([todo.MeasureLinks()])

    async def _probe(self, peers: tuple[PeerAddress, ...]) -> None:
        figures = await self._measuring.probe(self._around.identity, peers)
        if figures is not None:
            self._do(self._control.measured(figures))

    def _prepare(self, assignment: Assignment) -> None:
        self._folders.put_away_all(but=assignment.id)
        self._errand = Errand(assignment, self._folders.of(assignment.id), self._around)
        self._errand.task = self._go(self._prepared(self._errand))

    async def _prepared(self, errand: Errand) -> None:
        def share(value: float) -> None:
            self._show("preparing", f"preparing {value:.0%}")

        name = errand.assignment.id
        try:
            await asyncio.to_thread(self._folders.empty)
            relayed = await errand.prepare(share)
        except (RavnestError, OSError) as error:
            await errand.close()
            # A broken line or a full disk pass; an assignment that makes no sense stays one.
            lasting = isinstance(error, JobError) and not isinstance(error, AnswerError)
            reason = f"cannot be prepared: {error}"
            self._do(self._control.not_prepared(name, reason, lasting=lasting))
            return
        except asyncio.CancelledError:
            await errand.close()
            raise
        self._do(self._control.prepared(name, relayed))

    def _start_worker(self, name: str, paused: bool) -> None:
        errand = self._errand
        assert errand is not None
        worker = errand.start(
            lambda report: self._do(self._control.reported(name, report)), paused=paused
        )
        errand.task = self._go(self._work(errand, worker))

    async def _work(self, errand: Errand, worker: Worker) -> None:
        end = await errand.work(worker)
        self._do(self._control.worker_ended(errand.assignment.id, end))

    async def _bring_back(self, errand: Errand, end: WorkEnd) -> None:
        def delayed(reason: str) -> None:
            if reason != self._why_delayed:
                self._why_delayed = reason
                self._show("returning", f"results cannot be brought back now: {reason}")

        end, results = await errand.bring_back(end, delayed)
        self._do(self._control.brought_back(errand.assignment.id, end, results))

    def _clean_up(self, name: str, failed: bool) -> None:
        errand = self._errand
        if errand is None or errand.assignment.id != name:
            return
        self._errand = None
        errand.cancel()
        if failed and (kept := self._folders.keep_log(name)) is not None:
            self._show("log", f"what the worker wrote is in {kept}")
        if errand.is_unwanted and (kept := self._folders.keep_results(name)) is not None:
            self._show("undelivered", f"the server did not take the results; they are in {kept}")
        task = self._go(self._remove(errand))
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def _remove(self, errand: Errand) -> None:
        if errand.task is not None:
            await asyncio.wait({errand.task})
        await errand.close()
        if self._errand is None or self._errand.assignment.id != errand.assignment.id:
            self._folders.put_away(errand.assignment.id)
            await asyncio.to_thread(self._folders.empty)
            await asyncio.to_thread(errand.forget_files)
