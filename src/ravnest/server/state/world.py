"""All records at once, and what is known only while the server runs: who is connected, who is free.

Functions of the other modules change it; each change is noted in `out`, the effects of the event
that is being handled.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from ravnest.api.control import AgentState, Beat, FromServer, Steer
from ravnest.api.dialling import Ip
from ravnest.api.limits import MOST_TEXT
from ravnest.api.machine import Figures
from ravnest.api.views import JobState
from ravnest.api.work import STOPPED_WITHIN_S
from ravnest.server.changes import Event, clean
from ravnest.server.state.effects import Effects, Level, Order, Send
from ravnest.server.state.records import Job, Killer, Part, Provider, Run
from ravnest.server.state.words import own_words

CLOCK_MOVED_S = 5.0
"""By less than this a clock is kept right, and nothing follows from it."""
_MOST_NOTE = 1000


@dataclass(frozen=True)
class Settings:
    """Times are in seconds."""

    heartbeat_s: float = 5.0
    report_s: float = 1.0
    settle_s: float = 2.0
    """How long the pool must stay as it is before it is planned with."""
    settle_most_s: float = 60.0
    """How long that is waited for, and for measurements: a large pool never stays as it is."""
    return_s: float = 10.0
    """How long agents have to come back after the server's start, before pools are judged."""
    probe_s: float = 10.0
    """How long planning waits for lines between providers that are being measured,"""
    probe_each_s: float = 2.0
    """and so much longer for each of them: a machine measures one at a time."""
    most_peers: int = 16
    retry_s: float = 10.0
    """How long after a process has died another one is started for the same."""
    room_s: float = 60.0
    """How long after there was no room on the disk it is looked for again."""
    away_s: float = 180.0
    """How long a provider that is needed may be away."""
    standstill_s: float = 900.0
    """How long the workers of a run may all report no progress before it is given up."""
    prepare_s: float = 1800.0
    """How long a provider may take to prepare its part, or to get some of it worth mentioning."""
    prepare_most_s: float = 86400.0
    """How long it may take as long as it gets something."""
    declined_s: float = 60.0
    """How long a provider is done without that refused for a reason that passes; for twice as long
    each time, up to an hour."""
    stop_s: float = STOPPED_WITHIN_S
    """How long the providers of a run may take to end after it was stopped, or one was done."""
    bring_back_s: float = 86400.0
    """How long one of them may take from there to bring back what it has saved. It may be much, on
    a slow line, or the server's disk is full."""


@dataclass
class Presence:
    """Of a provider, what its agent said last."""

    connected: bool = False
    since: float = 0.0
    """Of this state, by which it is shown."""
    seen_at: float = 0.0
    state: AgentState = "idle"
    assignment: str | None = None
    beat: Beat | None = None
    leaving: bool = False
    told_to_drop: str | None = None
    introduced: bool = False
    """On this connection."""
    source: Ip | None = None


@dataclass(slots=True)
class Declined:
    """How often a provider has refused a job in vain, and until when it is not asked again."""

    times: int = 0
    until: float | None = None


@dataclass(slots=True)
class Pulse:
    """Of a part: when its worker was last heard of, and when it last got on. Fetching counts."""

    advanced_at: float
    reported_at: float | None = None
    count: int = 0
    """Of everything that only grows while it trains."""
    traffic: int = 0
    """Bytes on its links, when it last got on."""


@dataclass
class World:
    settings: Settings = field(default_factory=Settings)
    providers: dict[int, Provider] = field(default_factory=dict)
    namesakes: Counter[str] = field(default_factory=Counter)
    """How many providers have a name; without those that were removed."""
    last_provider: int = 0
    """A number that was given to one that the records may not know any more."""
    presence: dict[int, Presence] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    killers: dict[str, Killer] = field(default_factory=dict)
    """By their keys."""
    runs: dict[str, Run] = field(default_factory=dict)
    """Job id → its last run."""
    parts: dict[str, Part] = field(default_factory=dict)
    """Of those runs."""
    of_run: dict[str, list[Part]] = field(default_factory=dict)
    """Job id → parts of its last run, by cluster and stage."""
    at_work: dict[int, Part] = field(default_factory=dict)
    """Provider id → the part it has and has not ended."""
    pulses: dict[str, Pulse] = field(default_factory=dict)
    """Part id → how its worker does, while it trains."""
    free: set[int] = field(default_factory=set)
    listening: set[int] = field(default_factory=set)
    """Providers with an address at which others may reach them."""
    reached: set[int] = field(default_factory=set)
    """Providers that another one has reached directly."""
    probing: dict[int, tuple[frozenset[int], float]] = field(default_factory=dict)
    """Provider id → whom it is asked to measure the line to, and until when that is waited for."""
    pool_version: int = 0
    """Grows with every change of who is free and what they can do."""
    pool_changed_at: float = 0.0
    held_since: float | None = None
    """Since when something could be planned if only the pool stayed as it is."""
    declined: dict[str, dict[int, Declined]] = field(default_factory=dict)
    """Job id → providers that have refused it for a reason that passes."""
    accusers: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    """Job id → providers whose workers have failed because of others, as they said."""
    judged: dict[str, int] = field(default_factory=dict)
    """Job id → version of the pool that its state was last decided with."""
    planning: str | None = None
    """The job that is being planned; one at a time, for each takes what the one before leaves."""
    attempt: int = 0
    planned_for: dict[str, int] = field(default_factory=dict)
    """Name of an owner → the last attempt that was for one of its jobs."""
    retry_at: dict[str, float] = field(default_factory=dict)
    """Job id → when what has crashed for it is tried again."""
    roomless: dict[str, int] = field(default_factory=dict)
    """Jobs that wait for room on the disk, which was said."""
    event_number: int = 0
    started_at: float = 0.0
    """Whatever was due before, nobody could have done while the server was not there. When the
    clock has moved it begins anew (see clock.py)."""
    out: Effects = field(default_factory=Effects)

    def next_provider(self) -> int:
        return max(self.last_provider, *self.providers, 0) + 1

    def called(self, provider: int) -> str:
        """What people are told: its name, and with it the number if others have the same."""
        one = self.providers[provider]
        others = self.namesakes[one.name] - (not one.removed)
        return f"{one.name} #{provider}" if others > 0 else one.name

    def heard_of(self, provider: int) -> Presence:
        return self.presence.setdefault(provider, Presence())

    def open_parts(self, job: str) -> Iterator[Part]:
        return (part for part in self.of_run.get(job, ()) if part.is_open)

    def since(self, noted: float, now: float) -> float:
        """From when on a limit counts that began at the moment that was noted. What was noted
        before the server began, or well ahead of the clock, was noted by another one."""
        if noted > now + CLOCK_MOVED_S:
            return self.started_at
        return max(self.started_at, min(noted, now))

    def returns_by(self, part: Part, now: float) -> float:
        """Until when results are waited for that are being brought back; -inf if none are."""
        presence = self.heard_of(part.provider)
        if presence.state != "returning" or presence.assignment != part.id:
            return -math.inf
        settings = self.settings
        limit_s = settings.bring_back_s if presence.connected else settings.away_s
        return self.since(presence.since, now) + limit_s

    def measured_mbps(self, one: int, other: int) -> float:
        """Directly between two providers, as either has measured it; 0 if nobody has."""
        found = 0.0
        for near, far in ((one, other), (other, one)):
            provider = self.providers.get(near)
            peers = provider.figures.peers if provider and provider.figures else ()
            found = max(found, *(peer.mbps for peer in peers if peer.provider == far), 0.0)
        return found

    def set_figures(self, provider: Provider, figures: Figures | None) -> None:
        provider.figures = figures
        listens = figures is not None and figures.addresses
        (self.listening.add if listens else self.listening.discard)(provider.id)

    # ---- noting what changes

    def order(self, order: Order) -> None:
        self.out.orders.append(order)

    def send(self, provider: int, message: FromServer) -> None:
        if isinstance(message, Steer):  # what one provider has said is not for those it works with
            message = msgspec.structs.replace(message, reason=own_words(message.reason))
        if self.heard_of(provider).connected:
            self.order(Send(provider=provider, message=message))

    def note(
        self,
        now: float,
        level: Level,
        text: str,
        job: str | None = None,
        provider: int | None = None,
    ) -> None:
        self.event_number += 1
        shown = clean(text).replace("\n", " ")[:_MOST_NOTE]
        self.out.notes.append(Event(self.event_number, now, level, shown, job, provider))

    def save_provider(self, provider: Provider) -> None:
        self.out.save(provider)
        self.out.providers.add(provider.id)

    def save_job(self, job: Job) -> None:
        self.out.save(job)
        self.out.jobs.add(job.id)

    def killer_of(self, job: Job) -> Killer:
        """What the graph of this job has done to workers; it may be nothing."""
        new = Killer.of(job)
        return self.killers.get(new.key, new)

    def forget_killer(self, killer: Killer) -> None:
        if self.killers.pop(killer.key, None) is not None:
            self.out.remove(killer.kind, killer.key)

    def save_run(self, run: Run) -> None:
        self.out.save(run)
        self.out.jobs.add(run.job)

    def save_part(self, part: Part) -> None:
        self.out.save(part)
        self.out.jobs.add(part.job)
        self.out.providers.add(part.provider)
        if not part.is_open:
            self.pulses.pop(part.id, None)
        if part.is_open:
            self.at_work[part.provider] = part
        elif self.at_work.get(part.provider) is part:
            del self.at_work[part.provider]
            self.pool_version += 1  # some wait for it, and it may not come back

    def move(self, job: Job, state: JobState, reason: str = "") -> None:
        """A job is in another state, or in the same for another reason."""
        # Some of it may be in words of others, of whatever length.
        reason = clean(reason)[:MOST_TEXT]
        if (job.state, job.reason) != (state, reason):
            job.state, job.reason = state, reason
            self.save_job(job)

    def forget_run(self, job: str) -> None:
        """The records of a job's last run; files and points stay."""
        for part in self.of_run.pop(job, []):
            self.parts.pop(part.id, None)
            self.out.remove(part.kind, part.key)
        if (run := self.runs.pop(job, None)) is not None:
            self.out.remove(run.kind, run.key)

    # ---- after a restart

    @classmethod
    def rebuilt(
        cls,
        records: Mapping[str, Iterable[bytes]],
        settings: Settings,
        event_number: int,
        now: float,
    ) -> "World":
        """From the bodies of all records by kind. Nobody is connected yet."""
        world = cls(settings=settings, event_number=event_number, started_at=now)
        for body in records.get("provider", ()):
            provider = msgspec.json.decode(body, type=Provider)
            world.providers[provider.id] = provider
            world.namesakes[provider.name] += not provider.removed
            world.presence[provider.id] = Presence(since=now)
            world.set_figures(provider, provider.figures)
        world.reached = {
            peer.provider
            for provider in world.providers.values()
            for peer in (provider.figures.peers if provider.figures else ())
            if peer.mbps > 0
        }
        for body in records.get("job", ()):
            job = msgspec.json.decode(body, type=Job)
            world.jobs[job.id] = job
        for body in records.get("killer", ()):
            killer = msgspec.json.decode(body, type=Killer)
            world.killers[killer.key] = killer
        for body in records.get("run", ()):
            run = msgspec.json.decode(body, type=Run)
            world.runs[run.job] = run
        for body in records.get("part", ()):
            part = msgspec.json.decode(body, type=Part)
            world.parts[part.id] = part
            world.of_run.setdefault(part.job, []).append(part)
            if part.is_open:
                world.at_work[part.provider] = part
        for parts in world.of_run.values():
            parts.sort(key=lambda part: (part.cluster, part.stage))
        world.pool_changed_at = now + settings.return_s - settings.settle_s
        return world
