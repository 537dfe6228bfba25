"""An agent at work: carries out what `control.py` decides, and tells it what came of it.

Everything happens in one event loop. Instructions are carried out at once; what takes time is a
task that reports its end to `control.py`.
"""

import asyncio
import time

from ravnest.agent import instructions as todo
from ravnest.agent.addresses import Dialling
from ravnest.agent.channel import Channel, Pauses
from ravnest.agent.clearing import Clearing
from ravnest.agent.clockwork import Clockwork
from ravnest.agent.control import Control
from ravnest.agent.errand import Errand, Surroundings, reason_against
from ravnest.agent.identity import Removal
from ravnest.agent.instructions import Show
from ravnest.agent.machine import Load
from ravnest.agent.measuring import Measuring
from ravnest.agent.rendezvous import Rendezvous
from ravnest.agent.standing import Instructions
from ravnest.agent.tasks import Tasks, in_words
from ravnest.agent.upkeep import Upkeep
from ravnest.agent.worker import Worker
from ravnest.api.control import FromServer, PeerAddress, Welcome
from ravnest.api.machine import MachineFacts
from ravnest.api.work import Assignment, WorkEnd
from ravnest.client.answers import AnswerError, TokenRefusedError
from ravnest.errors import JobError, RavnestError

_GOODBYE_S = 5.0


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
        self._upkeep = Upkeep(around, measuring, show)
        self._control = Control(
            facts,
            settings.caps,
            once=settings.once,
            name=settings.name if settings.is_named else None,
            may_run=lambda new: reason_against(new, settings),
        )
        self._channel = channel = Channel(around.client, self, pauses)
        around.dialling = Dialling(
            Rendezvous(around.identity.authority), lambda: channel.server_ip, lan=settings.caps.lan
        )
        self._errand: Errand | None = None
        self._tasks = Tasks(self._mistaken, self._failed_aside)
        self._clearing = Clearing(settings.home, self._tasks, show)
        do, control = self._do, self._control
        self._clockwork = Clockwork(
            on_beat=self._beat,
            on_overdue=lambda: do(control.overdue()),
            on_rest=lambda resting: do(control.set_resting(resting)),
            on_upkeep=lambda: do(control.upkeep()),
            on_measure=lambda: do(control.unmeasured()),
        )
        self._load = Load()
        self._looking: asyncio.Task[None] | None = None
        self._removal = Removal(around.identity)
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
        await self._take_up()
        self._clockwork.beat()
        self._clockwork.watch(settings.caps.hours)
        self._clockwork.keep_up()
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
        is_at_work = self._errand is not None and self._errand.worker is not None
        self._end_worker("the agent has ended")
        # The end of a worker is recorded before its folder is looked at again.
        await self._tasks.end(grace_s=_GOODBYE_S, all_of_them=is_at_work)
        channel.cancel()
        await asyncio.gather(channel, return_exceptions=True)
        if self._errand is not None:
            await self._errand.close()
        if self._around.listener is not None:
            await self._around.listener.close()

    def leave(self, *, now: bool = False) -> None:
        """What Ctrl-C means: first in good order, then at once."""
        self._do(self._control.leave(now=now))
        self._clockwork.give_server_time()

    def _beat(self) -> None:
        if self._removal.look() and not self._finished.is_set():
            self._do(self._control.leave(now=True))
            home = self._around.settings.home
            self.problem = f"the identity of this provider is gone from {home}: join with a token"
            return
        if self._errand is None and (self._looking is None or self._looking.done()):
            self._looking = self._tasks.go(self._look(), aside=True)
        used = self._errand.watch(self._load) if self._errand is not None else 0
        self._do(self._control.beat(self._load.memory_free(), used, self._load.cpu()))

    async def _take_up(self) -> None:
        """What an earlier agent did not finish."""
        left = await self._clearing.take_up(self._around.identity)
        if left is not None:
            assignment, end = left
            self._show("taken up", f"found what is left of {assignment.job_name}: {end.outcome}")
            self._errand = self._errand_for(assignment)
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
                self._tasks.go(self._measure(), aside=True)
            case todo.RenewCertificate():
                self._tasks.go(self._upkeep.renew(), aside=True)
            case todo.RemoveOld(job=job):
                self._tasks.go(self._upkeep.remove_old(job), aside=True)
            case todo.ProbePeers(peers=peers):
                self._tasks.go(self._probe(peers), aside=True)
            case todo.AdmitPeer(provider=provider, seconds=seconds):
                if self._around.listener is not None:
                    self._around.listener.admit(provider, seconds)
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
                self._end_worker("it is not wanted any more")
            case todo.BringBack(assignment=assignment, end=end):
                if self._errand is not None and self._errand.assignment.id == assignment.id:
                    self._errand.task = self._tasks.go(self._bring_back(self._errand, end))
            case todo.CleanUp(assignment=name, failed=failed):
                self._clean_up(name, failed)
            case todo.AcceptCall(call=call):
                if self._errand is not None:
                    self._errand.accept(call)
            case todo.Finish(problem=problem):
                self.problem, self.is_rejected = problem, problem is not None
                self._finished.set()

    def _end_worker(self, why: str) -> None:
        if self._errand is not None and self._errand.worker is not None:
            self._errand.worker.kill(why)

    def _mistaken(self, error: BaseException) -> None:
        """Better to end, and be started again, than to be half an agent."""
        self.problem = in_words(error)
        self._finished.set()

    def _failed_aside(self, error: BaseException) -> None:
        """Nothing that strangers have a hand in ends what this machine does for others."""
        self._show("mistake", f"something was left undone: {in_words(error)}")

    # ---- what takes time ----

    async def _measure(self) -> None:
        figures = await self._upkeep.measure()
        if figures is None:
            self._clockwork.measure_later()
        else:
            self._do(self._control.measured(figures))

    async def _look(self) -> None:
        figures = await self._upkeep.news()
        # A worker of ours has its memory by a plan that counts it.
        if figures is not None and self._errand is None:
            self._do(self._control.measured(figures))

    async def _probe(self, peers: tuple[PeerAddress, ...]) -> None:
        figures = await self._upkeep.probe(peers)
        if figures is not None:
            self._do(self._control.measured(figures))

    def _prepare(self, assignment: Assignment) -> None:
        self._errand = self._errand_for(assignment)
        self._errand.task = self._tasks.go(self._prepared(self._errand))

    def _errand_for(self, assignment: Assignment) -> Errand:
        return Errand(assignment, self._clearing.folders.of(assignment.id), self._around)

    async def _prepared(self, errand: Errand) -> None:
        def share(value: float) -> None:
            self._show("preparing", f"preparing {value:.0%}")

        name = errand.assignment.id
        try:
            if (
                reason := await self._upkeep.too_little(errand.assignment.memory_bytes)
            ) is not None:
                raise RavnestError(reason)
            await self._clearing.make_way(name)
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
        errand.task = self._tasks.go(self._work(errand, worker))

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
        if errand is not None and errand.assignment.id == name:
            self._errand = None
            self._clearing.clear(errand, failed=failed)
