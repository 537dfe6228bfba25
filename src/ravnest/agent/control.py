"""What an agent does about what it hears and what its owner wants. Pure.

Anything may be heard twice, late, or about an assignment that is long over; a connection may break
between any two messages. What the server must know is kept until it has confirmed it.
"""

from dataclasses import dataclass

from ravnest.agent.errands import Errands
from ravnest.agent.instructions import (
    AcceptCall,
    AdmitPeer,
    EndWorker,
    Finish,
    KeepTime,
    MeasureLinks,
    ProbePeers,
    RemoveOld,
    RenewCertificate,
    Say,
    SteerWorker,
    Tell,
)
from ravnest.agent.standing import Instructions
from ravnest.api import VERSION
from ravnest.api.control import (
    Admit,
    Assign,
    Begin,
    FromServer,
    Hello,
    Incoming,
    Measured,
    Probe,
    Rejected,
    SetPause,
    Settled,
    Steer,
    Welcome,
)
from ravnest.api.machine import Figures, provider_name

_ALARMING_OFFSET_S = 60.0


@dataclass
class Control(Errands):
    """Every method is an event."""

    # ---- the connection ----

    def opened(self) -> Instructions:
        self.connected, self.welcomed = True, False
        hello = Hello(
            protocol=VERSION,
            facts=self.facts,
            caps=self.caps,
            state=self.state,
            assignment=self.assignment,
            paused=self.paused,
            name=self.name,
        )
        return [Say(hello)]

    def closed(self) -> Instructions:
        was = self.welcomed
        self.connected = self.welcomed = False
        if was and not self.leaving:
            return [Tell("away", "the server does not answer; trying again until it does")]
        return self.overdue() if self.leaving else []

    def heard(self, message: FromServer, *, offset_s: float = 0.0) -> Instructions:
        """`offset_s` counts with Welcome alone: what to add to our clock to have the server's."""
        match message:
            case Welcome():
                return self._welcomed(message, offset_s)
            case Probe(peers=peers):
                return [ProbePeers(peers)] if peers else []
            case Admit(provider=provider, seconds=seconds):
                return [AdmitPeer(provider, seconds)]
            case Assign(assignment=assignment):
                return self.assigned(assignment)
            case Begin(assignment=name):
                return self.begun(name)
            case Steer():
                return self.steered(message)
            case Settled(assignment=name):
                return self.settled(name)
            case Incoming(call=call, caller=caller, assignment=name):
                wanted = self.work_on(name, "ready", "training") is not None
                return [AcceptCall(call, caller, name)] if wanted else []
            case SetPause(paused=paused):
                return self.set_pause(paused)
            case Rejected(reason=reason, final=final):
                return [Finish(reason)] if final else [Tell("rejected", reason)]

    def _welcomed(self, welcome: Welcome, offset_s: float) -> Instructions:
        first = self.provider is None
        self.provider, self.welcomed = welcome.provider, True
        out: Instructions = [KeepTime(welcome.heartbeat_s, welcome.report_s, offset_s)]
        name = f"{welcome.name} ({provider_name(welcome.provider)})"
        out.append(Tell("joined", f"joined as {name}" if first else f"connected again as {name}"))
        if abs(offset_s) > _ALARMING_OFFSET_S:
            out.append(
                Tell("clock", f"this clock and the server's are {offset_s:+.0f} s apart: set it")
            )
        out.append(RenewCertificate())
        out += self._measured_or_measure()
        out += [Say(refused) for refused in self.refusals.values()]
        work = self.work
        if work is not None and work.phase == "ready":
            out += self.say_prepared(work)
        out += [Say(report) for report in self.reports]
        self.reports.clear()
        if work is not None and work.ended is not None:
            out.append(Say(work.ended))
        return out

    def _measured_or_measure(self) -> Instructions:
        return [MeasureLinks()] if self.figures is None else [Say(Measured(figures=self.figures))]

    def measured(self, figures: Figures) -> Instructions:
        self.figures = figures
        return self.say(Measured(figures=figures))

    def unmeasured(self) -> Instructions:
        """It could not be done a while ago. While nobody is there, the next welcome asks for it."""
        return [MeasureLinks()] if self.welcomed and self.figures is None else []

    def upkeep(self) -> Instructions:
        """By the clock, whatever it is at: some providers are connected and at work for months."""
        job = None if self.work is None else self.work.assignment.job
        out: Instructions = [RemoveOld(job)]
        return [*out, RenewCertificate()] if self.welcomed else out

    # ---- the owner ----

    def set_pause(self, paused: bool) -> Instructions:
        """Work that has begun goes on: others wait for it."""
        if paused == self.paused:
            return []
        self.paused = paused
        later = " after the present work" if paused and self.work is not None else ""
        return [Tell("pause", "paused" + later if paused else "back from the pause"), *self.pulse()]

    def set_resting(self, resting: bool) -> Instructions:
        """The hours of this provider begin or end; work that it has is stopped in good order."""
        if resting == self.resting:
            return []
        self.resting = resting
        text = f"resting: outside {self.caps.hours}" if resting else "the hours have begun"
        out: Instructions = [Tell("resting", text), *self.pulse()]
        return out if self.welcomed or not resting else out + self.overdue()

    def leave(self, *, now: bool = False) -> Instructions:
        """First in good order; with `now`, at once."""
        again, self.leaving = self.leaving, True
        work = self.work
        if now:
            out = self.say_leaving(now=True)
            if work is not None and work.phase in ("training", "dropped"):
                out.append(EndWorker(work.assignment.id))
            return [*out, Finish()]
        if again:
            return []
        said = self.say_leaving()
        if work is None:
            return [*said, Finish()]
        text = "stopping and saving the present work, then leaving (Ctrl-C again: at once)"
        out = [Tell("leaving", text), *said]
        return out if self.welcomed else out + self.overdue()

    def overdue(self) -> Instructions:
        """The server, once it knows, ends the whole run in good order. It does not know, or has
        not done so: this provider ends its part alone."""
        work = self.work
        if work is None or not (self.leaving or self.resting):
            return []
        if work.phase in ("preparing", "ready"):
            why = "is leaving" if self.leaving else f"rests outside {self.caps.hours}"
            return self.give_up(work, f"this provider {why}")
        if work.phase == "training":
            return [SteerWorker(work.assignment.id, "stop")]
        return self._leave_results() if self.leaving and not self.welcomed else []

    def _leave_results(self) -> Instructions:
        """Nobody is there to take them. They stay here, and the next agent delivers them."""
        kept = "results are kept here; the next `ravnest join` brings them to the server"
        return [Tell("kept", kept), Finish()]
