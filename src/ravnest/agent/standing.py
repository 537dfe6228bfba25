"""What an agent knows of itself between two events, and what it says of itself. Pure."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ravnest.agent.instructions import Instruction, Pulse, Say
from ravnest.api.control import (
    AgentState,
    Beat,
    Ended,
    FromAgent,
    Leaving,
    Prepared,
    Refused,
    Reported,
)
from ravnest.api.machine import Caps, Figures, MachineFacts
from ravnest.api.work import Assignment

Phase = Literal["preparing", "ready", "training", "returning", "dropped"]
"""dropped: its worker is being ended, nobody waits for what it did."""
Instructions = list[Instruction]
_MOST_REPORTS_KEPT = 50
"""While the server is away, each of many put together: curves have no holes unless that takes very
long, and the server is not flooded afterwards."""


@dataclass
class Work:
    """The assignment that the agent is at."""

    assignment: Assignment
    phase: Phase = "preparing"
    relayed: tuple[int, ...] = ()
    has_begun: bool = False
    """The server has said so, perhaps before everything was ready."""
    paused: bool = False
    ended: Ended | None = None
    """What is said until it is settled."""
    epoch: int = 0
    """The one that was told last, counted from 1."""


@dataclass
class Standing:
    """What is known."""

    facts: MachineFacts
    caps: Caps
    once: bool = False
    """Leave after one assignment."""
    name: str | None = None
    """What the owner wants it to be called; None if that was not said."""
    may_run: Callable[[Assignment], str | None] = lambda _: None
    """Why this machine cannot take an assignment, if there is a reason of its own."""
    provider: int | None = None
    connected: bool = False
    welcomed: bool = False
    figures: Figures | None = None
    paused: bool = False
    resting: bool = False
    leaving: bool = False
    work: Work | None = None
    waiting: Assignment | None = None
    """Came while a dropped worker was still ending."""
    refusals: dict[str, Refused] = field(default_factory=dict)
    reports: deque[Reported] = field(default_factory=lambda: deque(maxlen=_MOST_REPORTS_KEPT))

    # ---- what it says of itself ----

    @property
    def state(self) -> AgentState:
        if self.work is not None:
            phase = self.work.phase
            if phase == "returning" or phase == "dropped":
                return "returning"
            # With an assignment, the server takes it as the wish to stop in good order.
            return "resting" if self.resting else phase
        if self.paused:
            return "paused"
        return "resting" if self.resting else "idle"

    @property
    def assignment(self) -> str | None:
        return None if self.work is None else self.work.assignment.id

    def beat(self, memory_free: int = 0, worker_memory: int = 0, cpu: float = 0.0) -> Instructions:
        beat = Beat(
            state=self.state,
            assignment=self.assignment,
            paused=self.paused,
            memory_free_bytes=memory_free,
            worker_memory_bytes=worker_memory,
            cpu=min(1.0, max(0.0, cpu)),
        )
        return self.say(beat)

    def say(self, message: FromAgent) -> Instructions:
        """Now, if anybody listens. What must not be lost is said again after every welcome."""
        return [Say(message)] if self.welcomed else []

    def pulse(self) -> Instructions:
        """The state has changed; the server need not wait for the next heartbeat."""
        return [Pulse()] if self.welcomed else []

    def say_prepared(self, work: Work) -> Instructions:
        return self.say(Prepared(assignment=work.assignment.id, relayed=work.relayed))

    def say_leaving(self, *, now: bool = False) -> Instructions:
        return self.say(Leaving(now=now, reason="asked to"))

    def work_on(self, name: str, *phases: Phase) -> Work | None:
        """The present work, if it is that assignment and in one of these phases."""
        work = self.work
        if work is None or work.assignment.id != name:
            return None
        return work if not phases or work.phase in phases else None
