"""The life of an assignment, from `Assign` to `Settled`. Pure: events in, instructions out.

assigned() ► preparing ► prepared() ► ready ► begun() ► training ► worker_ended()
  ► returning: results are brought back, `Ended` is said on every connection ► settled()
"""

from dataclasses import dataclass

from ravnest.agent.instructions import (
    BringBack,
    CancelPreparing,
    CleanUp,
    EndWorker,
    Finish,
    Prepare,
    Say,
    StartWorker,
    SteerWorker,
    Tell,
)
from ravnest.agent.reports import joined, without_spans
from ravnest.agent.standing import Instructions, Standing, Work
from ravnest.api.control import Ended, Refused, Reported, Steer
from ravnest.api.limits import FileRef
from ravnest.api.work import Assignment, WorkEnd, WorkReport

_MOST_REFUSALS_KEPT = 32


@dataclass
class Errands(Standing):
    """Every method is an event."""

    # ---- an assignment comes ----

    def assigned(self, new: Assignment) -> Instructions:
        work = self.work
        if work is not None and work.assignment.id == new.id:
            if work.phase == "ready":
                return self.say_prepared(work)
            return self.say(work.ended) if work.ended is not None else []
        if work is not None and work.phase == "dropped":
            self.waiting = new
            return []
        if (refused := self.refusals.get(new.id)) is not None:
            return self.say(refused)
        if (reason := self._reason_for_now(new)) is not None:
            return self._refuse(new.id, reason, lasting=False)
        if (reason := self._reason_against(new)) is not None:
            return self._refuse(new.id, reason, lasting=True)
        self.work = Work(new)
        # Counted from 0 as in plans, on the dashboard and in `ravnest status`.
        role = f"{new.role}, one of {new.stages} stages" if new.stages > 1 else "Root+Leaf"
        place = f"cluster {new.cluster} stage {new.stage} ({role})"
        return [
            Tell("assigned", f"assigned {place} of {new.job_name} (job {new.job}, run {new.run})"),
            Prepare(new),
            *self.pulse(),
        ]

    def _reason_for_now(self, new: Assignment) -> str | None:
        """One that passes: at another time the same assignment would be taken."""
        if self.work is not None:
            return f"this provider is busy with assignment {self.work.assignment.id}"
        if self.provider is not None and new.provider != self.provider:
            return f"this is provider {self.provider}, not {new.provider}"
        if self.leaving:
            return "this provider is leaving"
        if self.paused:
            return "the owner of this provider has paused it"
        if self.resting:
            return f"it is outside the hours of this provider ({self.caps.hours})"
        return None

    def _reason_against(self, new: Assignment) -> str | None:
        """What the owner does not want or the machine cannot do, at any time."""
        if new.script is not None and self.caps.scripts == "never":
            return "the owner of this provider allows no scripts (--allow-scripts never)"
        of_device = self.facts.device_memory_bytes > 0
        most = self.caps.device_memory_bytes if of_device else self.caps.memory_bytes
        if most is not None and new.memory_bytes > most:
            return f"needs {new.memory_bytes} bytes of memory, the owner allows {most}"
        return self.may_run(new)

    def _refuse(self, name: str, reason: str, *, lasting: bool) -> Instructions:
        refused = Refused(assignment=name, reason=reason, lasting=lasting)
        self.refusals[name] = refused
        while len(self.refusals) > _MOST_REFUSALS_KEPT:
            self.refusals.pop(next(iter(self.refusals)))
        return [Tell("refused", f"refused assignment {name}: {reason}"), *self.say(refused)]

    def prepared(self, name: str, relayed: tuple[int, ...] = ()) -> Instructions:
        work = self.work_on(name, "preparing")
        if work is None:
            return []
        work.phase, work.relayed = "ready", relayed
        through = f" ({len(relayed)} of its neighbours through the server)" if relayed else ""
        out: Instructions = [Tell("ready", f"ready{through}; waiting for the others")]
        out += self.say_prepared(work)
        return out + (self._start(work) if work.has_begun else [])

    def not_prepared(self, name: str, reason: str, *, lasting: bool = False) -> Instructions:
        work = self.work_on(name, "preparing")
        return [] if work is None else self.give_up(work, reason, lasting=lasting)

    def give_up(self, work: Work, reason: str, *, lasting: bool = False) -> Instructions:
        """Before training, an assignment can be given back at no cost but time."""
        name, self.work = work.assignment.id, None
        cancel: Instructions = [CancelPreparing(name)] if work.phase == "preparing" else []
        return [*cancel, *self._refuse(name, reason, lasting=lasting), CleanUp(name), *self.free()]

    # ---- training ----

    def begun(self, name: str) -> Instructions:
        work = self.work_on(name)
        if work is None:
            return self._not_mine(name)
        if work.ended is not None:
            return self.say(work.ended)
        work.has_begun = True
        return self._start(work) if work.phase == "ready" else []

    def _start(self, work: Work) -> Instructions:
        work.phase = "training"
        return [
            Tell("training", f"training {work.assignment.job_name}"),
            StartWorker(work.assignment, work.paused),
            *self.pulse(),
        ]

    def _not_mine(self, name: str) -> Instructions:
        if (refused := self.refusals.get(name)) is not None:
            return self.say(refused)
        reason = "this agent does not have it; perhaps it was restarted"
        return self._refuse(name, reason, lasting=False)

    def reported(self, name: str, report: WorkReport) -> Instructions:
        work = self.work_on(name, "training")
        if work is None:
            return []
        out: Instructions = []
        epochs = work.assignment.training.epochs
        epoch = min(report.epoch + 1, epochs)
        if epoch != work.epoch:
            work.epoch = epoch
            text = f"training {work.assignment.job_name}: epoch {epoch} of {epochs}"
            out.append(Tell("epoch", text))
        said = Reported(assignment=name, report=report)
        if self.welcomed:
            return [*out, Say(said)]
        self._keep(said)
        return out

    def _keep(self, said: Reported) -> None:
        """For later. Who computed what when is of interest at the time only; curves stay."""
        new = without_spans(said.report)
        last = self.reports[-1].report if self.reports else None
        if last is not None and (one := joined(last, new)) is not None:
            self.reports.pop()
            new = one
        self.reports.append(Reported(assignment=said.assignment, report=new))

    def worker_ended(self, name: str, end: WorkEnd) -> Instructions:
        work = self.work_on(name)
        if work is None or work.phase not in ("training", "dropped"):
            return []
        if work.phase == "dropped":
            self.work = None
            return [CleanUp(name), *self.free()]
        work.phase = "returning"
        ended = "is done" if end.outcome == "done" else f"has {end.outcome}"
        out: Instructions = [Tell("ended", f"the worker {ended}{_because(end.reason)}")]
        if end.saved:
            return [*out, BringBack(work.assignment, end), *self.pulse()]
        return out + self._end(work, end, ())

    def _end(self, work: Work, end: WorkEnd, results: tuple[FileRef, ...]) -> Instructions:
        work.ended = Ended(assignment=work.assignment.id, end=end, results=results)
        if self.leaving and not self.welcomed:
            # Nobody is there to settle it. It is on disk; the next agent says it.
            return [Finish()]
        return [*self.pulse(), *self.say(work.ended)]

    def brought_back(self, name: str, end: WorkEnd, results: tuple[FileRef, ...]) -> Instructions:
        work = self.work_on(name, "returning")
        return [] if work is None else self._end(work, end, results)

    def taken_up(self, assignment: Assignment, end: WorkEnd) -> Instructions:
        """At the start of the agent: an assignment that an earlier one could not finish."""
        self.work = Work(assignment, phase="returning")
        if end.saved:
            return [BringBack(assignment, end)]
        return self._end(self.work, end, ())

    def settled(self, name: str) -> Instructions:
        work = self.work_on(name, "returning")
        self.refusals.pop(name, None)
        if work is None:
            return []
        failed = work.ended is not None and work.ended.end.outcome == "failed"
        self.work = None
        return [CleanUp(name, failed), *self.free()]

    def free(self) -> Instructions:
        """There is no work any more: back to the pool, or out of it."""
        self.reports.clear()
        if self.leaving or self.once:
            self.leaving = True
            return [*self.say_leaving(), Finish()]
        out: Instructions = [Tell("idle", "returned to the pool"), *self.pulse()]
        waiting, self.waiting = self.waiting, None
        return out if waiting is None else out + self.assigned(waiting)

    # ---- being steered ----

    def steered(self, steer: Steer) -> Instructions:
        work = self.work_on(steer.assignment)
        if self.waiting is not None and self.waiting.id == steer.assignment:
            if steer.action in ("stop", "drop"):
                self.waiting = None
            return []
        if work is None or work.phase == "dropped":
            return []
        if steer.action == "drop":
            return self._drop(work, steer.reason)
        if work.phase == "returning":
            return []
        if steer.action in ("pause", "resume"):
            work.paused = steer.action == "pause"
            if work.phase != "training":
                return []
            return [
                Tell(steer.action, f"{work.assignment.job_name}: {steer.action}"),
                SteerWorker(steer.assignment, steer.action),
            ]
        return self.stop(work, steer.reason)

    def stop(self, work: Work, reason: str) -> Instructions:
        """In good order: what was learned is saved. Before training there is nothing to save."""
        text = f"stopping {work.assignment.job_name}{_because(reason)}"
        told: Instructions = [Tell("stopping", text)]
        if work.phase == "training":
            return [*told, SteerWorker(work.assignment.id, "stop")]
        preparing = work.phase == "preparing"
        work.phase = "returning"
        end = WorkEnd(outcome="stopped", epochs_done=work.assignment.epochs_done, reason=reason)
        cancel: Instructions = [CancelPreparing(work.assignment.id)] if preparing else []
        return told + cancel + self._end(work, end, ())

    def _drop(self, work: Work, reason: str) -> Instructions:
        name = work.assignment.id
        told = Tell("dropped", f"{work.assignment.job_name} was dropped{_because(reason)}")
        if work.phase == "training":
            work.phase = "dropped"
            return [told, EndWorker(name)]
        before, self.work = work.phase, None
        cancel: Instructions = [CancelPreparing(name)] if before == "preparing" else []
        return [told, *cancel, CleanUp(name), *self.free()]


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
