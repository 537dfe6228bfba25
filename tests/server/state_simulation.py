"""A server's state among agents, networks and disks that fail, on a clock that nobody waits for.

What is decided is "on disk" at once or, if the server dies in that moment, not at all; what is said
may get lost with a connection. Agents behave as `ravnest join` does.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from ravnest.api.control import (
    Assign,
    Beat,
    Begin,
    FromAgent,
    FromServer,
    Hello,
    Leaving,
    Measured,
    Prepared,
    Probe,
    Refused,
    Settled,
    Steer,
    server_decoder,
)
from ravnest.api.dialling import Ip, bare_ip
from ravnest.api.limits import FileRef, encode
from ravnest.api.machine import Caps, Figures, MachineFacts, PeerFigure
from ravnest.api.work import Assignment, TrainingSpec, WorkEnd
from ravnest.errors import JobError
from ravnest.server.changes import Event as Note
from ravnest.server.changes import Put, Remove
from ravnest.server.state.effects import (
    Close,
    Discard,
    DropPlan,
    Effects,
    Fuse,
    Hand,
    MakePlan,
    Send,
    Wake,
)
from ravnest.server.state.events import (
    ClockMoved,
    Connected,
    Disconnected,
    EnrolledNow,
    Event,
    Fused,
    FusingFailed,
    Heard,
    JobSteered,
    PartEnded,
    PlanFailed,
    PlanMade,
    ProviderSteered,
    Started,
    Submitted,
    Tick,
)
from ravnest.server.state.machine import handle
from ravnest.server.state.records import Job, Part, PlanFacts, PlannedPart, Validation
from ravnest.server.state.words import own_words
from ravnest.server.state.world import Settings, World

SETTINGS = Settings()
SAID = (
    "boom",
    "it was them",
    "too large",
    "signal 11",
    "words_of_a_worker",
    "no tensor",
    "no thanks",
)
"""By others than the server."""
TRAINED = FileRef(path="trained.json", sha256="0" * 64, size=1)
FACTS = MachineFacts(
    hostname="h", system="s", python="p", torch="t", ravnest="r", cores=1, memory_bytes=1
)


@dataclass
class Agent:
    id: int
    connected: bool = False
    state: str = "idle"
    work: str | None = None
    end: WorkEnd | None = None
    peers: set[int] = field(default_factory=set)
    gone: bool = False
    """It was told not to come back."""
    inbox: list[FromServer] = field(default_factory=list)
    outbox: list[FromAgent | PartEnded] = field(default_factory=list)

    def say(self, message: FromAgent | PartEnded) -> None:
        if self.connected:
            self.outbox.append(message)

    def say_end(self) -> None:
        assert self.work is not None
        assert self.end is not None
        results = (TRAINED,) if self.end.saved else ()
        self.say(PartEnded(provider=self.id, assignment=self.work, end=self.end, results=results))

    def beat(self) -> None:
        self.say(Beat(state=self.state, assignment=self.work))

    def connect(self) -> None:
        self.connected = True
        self.inbox, self.outbox = [], []
        self.say(
            Hello(protocol=1, facts=FACTS, caps=Caps(), state=self.state, assignment=self.work)
        )
        self.say(Measured(figures=figures(self.id, self.peers)))
        if self.end is not None:
            self.say_end()
        elif self.state == "ready":
            self.say(Prepared(assignment=self.work))

    def disconnect(self) -> None:
        self.connected = False
        self.inbox, self.outbox = [], []

    def finish(self, end: WorkEnd) -> None:
        self.state, self.end = "returning", end
        self.say_end()

    def free(self) -> None:
        self.state, self.work, self.end = "idle", None, None
        self.beat()

    def hear(self, message: FromServer) -> None:
        match message:
            case Probe(peers=peers) if self.state == "idle":
                self.peers |= {peer.provider for peer in peers}
                self.say(Measured(figures=figures(self.id, self.peers)))
            case Assign(assignment=new):
                self._assigned(new.id)
            case Begin(assignment=name) if name == self.work:
                if self.state == "ready":
                    self.state = "training"
                    self.beat()
            case Steer(assignment=name, action="drop") if name == self.work:
                self.free()
            case Steer(assignment=name, action="stop") if name == self.work:
                if self.state == "training":
                    self.finish(WorkEnd(outcome="stopped", epochs_done=1, saved=True))
            case Settled(assignment=name) if name == self.work and self.end is not None:
                self.free()

    def _assigned(self, name: str) -> None:
        if self.work == name:
            if self.end is not None:
                self.say_end()
            elif self.state == "ready":
                self.say(Prepared(assignment=name))
        elif self.work is not None:
            self.say(Refused(assignment=name, reason="busy"))
        else:
            self.state, self.work = "preparing", name
            self.beat()


def figures(id: int = 0, peers: Iterable[int] = ()) -> Figures:
    """Every second provider can be reached by the others."""
    return Figures(
        memory_bytes=1,
        gflops=1.0,
        up_mbps=1.0,
        down_mbps=1.0,
        latency_ms=1.0,
        addresses=(f"{source(id)}:7700",) if id % 2 else (),
        peers=tuple(PeerFigure(provider=peer, mbps=1.0) for peer in sorted(peers)),
    )


def source(id: int) -> Ip | None:
    """All of them on one LAN, and the server as well."""
    return bare_ip(f"10.0.{id // 256}.{id % 256}")


class Simulation:
    def __init__(self) -> None:
        self.now = 1e8
        self.disk: dict[tuple[str, str], bytes] = {}
        self.notes: list[Note] = []
        self.agents: dict[int, Agent] = {}
        self.submitted: set[str] = set()
        self.deleted: set[str] = set()
        self.acknowledged: dict[str, bool] = {}
        """Assignment → whether it was settled with results."""
        self.plans: list[MakePlan] = []
        self.fusings: list[Fuse] = []
        self.wakes: list[float] = []
        self.bring_junk: set[int] = set()
        """Providers whose results are no stages."""
        self.world = World(settings=SETTINGS)
        self.happen(Started())

    # ---- the server

    def happen(self, event: Event, *, dies: str = "") -> None:
        """`dies`: before what follows is on disk, or after that and before anybody is told."""
        try:
            effects = handle(self.world, event, self.now)
        except JobError:
            return
        if dies != "before":
            self._keep(effects)
        if dies:
            self.restart()
        else:
            self._perform(effects)
        self.check()

    def _keep(self, effects: Effects) -> None:
        for change in effects.changes:
            match change:
                case Put():
                    self.disk[change.kind, change.id] = change.body
                case Remove():
                    self.disk.pop((change.kind, change.id), None)
                case Note():
                    self.notes.append(change)

    def _perform(self, effects: Effects) -> None:
        for order in effects.orders:
            match order:
                case Send():
                    self._send(order.provider, order.message)
                case Hand():
                    self._send(order.provider, _assign(self.world.parts[order.part]))
                case Close():
                    agent = self.agents[order.provider]
                    agent.gone = agent.gone or order.final
                    self.cut(agent.id)
                case MakePlan():
                    self.plans = [p for p in self.plans if p.job != order.job] + [order]
                case DropPlan() | Discard():
                    self.plans = [p for p in self.plans if p.job != order.job]
                case Fuse():
                    self.fusings = [f for f in self.fusings if f.job != order.job] + [order]
                case Wake():
                    self.wakes.append(order.at)

    def _send(self, provider: int, message: FromServer) -> None:
        agent = self.agents[provider]
        text = encode(message)
        assert server_decoder.decode(text) == message
        assert not any(word.encode() in text for word in SAID), message
        if isinstance(message, Settled):
            part = self.disk.get(("part", message.assignment))
            kept = part is not None and msgspec.json.decode(part, type=Part).has_results
            self.acknowledged[message.assignment] = kept
        if agent.connected:
            agent.inbox.append(message)

    def restart(self) -> None:
        """The server dies and comes back with what is on disk."""
        for agent in self.agents.values():
            agent.disconnect()
        self.plans, self.fusings, self.wakes = [], [], []
        kinds = ("provider", "job", "run", "part", "killer")
        records = {kind: [b for (k, _), b in self.disk.items() if k == kind] for kind in kinds}
        number = max((note.number for note in self.notes), default=0)
        self.world = World.rebuilt(records, SETTINGS, number, self.now)
        for agent in list(self.agents):
            if agent not in self.world.providers:
                del self.agents[agent]  # its enrolment was never acknowledged
        self.happen(Started())

    # ---- what may happen

    def enrol(self) -> None:
        number = self.world.next_provider()
        self.agents[number] = Agent(number)
        self.happen(
            EnrolledNow(provider=number, name=f"p{number}", digest="d", facts=FACTS, caps=Caps())
        )

    def submit(
        self, asked: bool, max_providers: int | None, owner: str = "o", graph: str = ""
    ) -> None:
        id = f"j{len(self.submitted)}"
        job = Job(
            id=id,
            name=id,
            owner="t",
            owner_name=owner,
            submitted_at=self.now,
            epochs=2,
            asked=asked,
            max_providers=max_providers,
            graph=graph,
        )
        self.submitted.add(id)
        self.happen(Submitted(job=job))

    def steer(self, job: str, action: str, *, by_operator: bool = False) -> None:
        if job in self.world.jobs:
            if action == "delete":
                self.deleted.add(job)
            self.happen(JobSteered(job=job, action=action, by="o", by_operator=by_operator))

    def steer_provider(self, provider: int, action: str) -> None:
        if provider in self.world.providers and not self.world.providers[provider].removed:
            self.happen(ProviderSteered(provider=provider, action=action, by="o"))

    def connect(self, id: int) -> None:
        agent = self.agents[id]
        if not agent.connected and not agent.gone:
            agent.connect()

    def cut(self, id: int) -> None:
        agent = self.agents[id]
        if agent.connected:
            agent.disconnect()
            if self.world.heard_of(id).connected:
                self.happen(Disconnected(provider=id))

    def lose_everything(self, id: int) -> None:
        """The agent is killed; its next one knows nothing."""
        self.cut(id)
        agent = self.agents.get(id)
        if agent is not None:
            agent.state, agent.work, agent.end = "idle", None, None

    def die(self, id: int) -> None:
        """The machine is switched off and never comes back."""
        self.cut(id)
        self.agents[id].gone = True

    def hear_one(self, id: int, dies: str = "") -> bool:
        """The server takes the next thing an agent has said."""
        agent = self.agents[id]
        if not agent.outbox:
            return False
        message = agent.outbox.pop(0)
        if isinstance(message, Hello):
            self.happen(Connected(provider=id, hello=message, source=source(id)), dies=dies)
        elif not self.world.heard_of(id).connected:
            return True
        elif isinstance(message, PartEnded):
            self.happen(message, dies=dies)
        else:
            self.happen(Heard(provider=id, message=message), dies=dies)
        return True

    def tell_one(self, id: int) -> bool:
        agent = self.agents[id]
        if not agent.inbox:
            return False
        agent.hear(agent.inbox.pop(0))
        return True

    def go_on(self, id: int, how: str) -> bool:
        """The machine has done something: prepared, or trained to some end."""
        agent = self.agents[id]
        if agent.state == "preparing":
            if how in ("refused", "declined"):
                lasting = how == "refused"
                agent.say(Refused(assignment=agent.work, reason="no thanks", lasting=lasting))
                agent.free()
            else:
                agent.state = "ready"
                agent.say(Prepared(assignment=agent.work))
            return True
        if agent.state == "training":
            ends = {
                "failed": WorkEnd(outcome="failed", reason="boom"),
                "blames": WorkEnd(outcome="failed", reason="it was them", culprit="node_1"),
                "lies": WorkEnd(
                    outcome="failed", reason="it was them" * 999, culprit="words_of_a_worker"
                ),
                "stopped": WorkEnd(outcome="stopped", epochs_done=1, saved=True),
                "unsaved": WorkEnd(outcome="done", epochs_done=2),
                "signal": WorkEnd(outcome="failed", reason="ended with signal 11", signal=11),
                "memory": WorkEnd(outcome="failed", reason="too large", out_of_memory=True),
            }
            done = WorkEnd(outcome="done", epochs_done=2, saved=True)
            agent.finish(ends.get(how, done))
            return True
        return False

    def leave(self, id: int, now: bool) -> None:
        self.agents[id].say(Leaving(now=now))

    def plan_one(self, how: str) -> bool:
        if not self.plans:
            return False
        order = self.plans.pop(0)
        if how in ("unfit", "broken", "crashed", "full"):
            self.happen(
                PlanFailed(
                    job=order.job,
                    attempt=order.attempt,
                    reason=how,
                    hopeless=how == "broken",
                    crashed=how in ("crashed", "full"),
                    full=how == "full",
                )
            )
            return True
        members = [spec.id for spec in order.pool]
        width = 2 if len(members) % 2 == 0 else 1
        parts = tuple(
            PlannedPart(
                provider=provider,
                node=f"node_{provider}",
                cluster=place // width,
                stage=place % width,
                role="Root" if place % width == 0 else "Leaf",
            )
            for place, provider in enumerate(members)
        )
        plan = PlanFacts(run=order.run, parts=parts, clusters=len(members) // width)
        self.happen(PlanMade(job=order.job, attempt=order.attempt, plan=plan))
        return True

    def fuse_one(self, how: str = "fits") -> bool:
        if not self.fusings:
            return False
        order = self.fusings.pop(0)
        stages = {part.provider: part for part in self.world.of_run.get(order.job, ())}
        junk = [
            stages[id].stage
            for id in self.bring_junk & stages.keys()
            if stages[id].cluster == order.cluster
        ]
        if junk:
            reason = f"stage {junk[0]} cannot be used"
            self.happen(FusingFailed(job=order.job, run=order.run, reason=reason, stage=junk[0]))
        elif how != "fits":
            crashed, full = how in ("crashed", "full"), how == "full"
            self.happen(
                FusingFailed(
                    job=order.job, run=order.run, reason="no tensor", crashed=crashed, full=full
                )
            )
        else:
            validation = Validation(note="no tensor")
            self.happen(Fused(job=order.job, run=order.run, bytes=10, validation=validation))
        return True

    def wait(self, seconds: float) -> None:
        """Time passes; whatever was to be done meanwhile is done when it is due."""
        until = self.now + seconds
        while self.wakes and min(self.wakes) <= until:
            self.now = max(self.now, min(self.wakes))
            self.wakes = [at for at in self.wakes if at > self.now]
            self.happen(Tick())
        self.now = until

    def move_clock(self, by_s: float) -> None:
        """Somebody sets it, or the machine sleeps; it is noticed as soon as something happens, and
        whatever was asked for by the other clock is asked for anew."""
        self.now += by_s
        self.wakes = []
        self.happen(ClockMoved(by_s=by_s))

    def correct_clock(self, by_s: float) -> None:
        """By so little that it is not noticed; timers do not go by this clock."""
        self.now += by_s
        self.wakes = [at + by_s for at in self.wakes]

    def talk(self) -> None:
        """Everything that has been said is heard."""
        heard = True
        while heard:
            steps = (self.hear_one, self.tell_one)
            heard = any([step(id) for id in list(self.agents) for step in steps])  # noqa: C419

    def calm_down(self) -> None:
        """Nothing fails any more: everybody connects, works, and time passes when nothing else
        happens. Returns when there is nothing left to do."""
        for job in list(self.world.jobs.values()):
            if job.state == "paused":
                self.steer(job.id, "continue")
        for _ in range(3000):
            for agent in self.agents.values():
                self.connect(agent.id)
            moved = [
                step(id)
                for id in list(self.agents)
                for step in (self.hear_one, self.tell_one, lambda id: self.go_on(id, "done"))
            ]
            if any(moved) or self.plan_one("fits") or self.fuse_one():
                continue
            if not self.wakes:
                return
            self.wait(max(0.0, min(self.wakes) - self.now))
        raise AssertionError("it never comes to rest")

    # ---- what must always hold

    def check(self) -> None:
        records = [
            msgspec.json.decode(body, type=Part)
            for (kind, _), body in self.disk.items()
            if kind == "part"
        ]
        busy = [part.provider for part in records if part.is_open]
        assert len(busy) == len(set(busy)), "a provider is in two runs"
        for job in self.submitted - self.deleted:
            assert ("job", job) in self.disk, f"{job} is lost"
        for job in self.world.jobs.values():
            if job.state not in ("running", "done"):
                assert job.reason, f"{job.id} is {job.state} and nobody knows why"
        told = [job.reason for job in self.world.jobs.values()]
        for text in (*told, *(note.text for note in self.notes[-9:])):
            assert not any(word in own_words(text) for word in SAID), text
        for part in records:
            if part.is_open:
                job = self.world.jobs[part.job]
                assert job.state in ("preparing", "running", "paused", "stopping"), job
        assert set(self.world.at_work) == set(busy)
        working = {part.provider for part in records if part.is_open}
        assert not working & self.world.free
        told = {id: provider.figures for id, provider in self.world.providers.items()}
        listening = {id for id, figures in told.items() if figures and figures.addresses}
        assert self.world.listening == listening
        present = (one.name for one in self.world.providers.values() if not one.removed)
        assert self.world.namesakes == Counter(present)


def _assign(part: Part) -> Assign:
    return Assign(
        assignment=Assignment(
            id=part.id,
            job=part.job,
            job_name="n",
            run=part.run,
            provider=part.provider,
            node=part.node,
            cluster=part.cluster,
            clusters=1,
            stage=part.stage,
            stages=1,
            role="Root",
            memory_bytes=1,
            files=(),
            training=TrainingSpec(),
        )
    )


def pool_of(count: int) -> Simulation:
    """So many providers, enrolled and connected."""
    sim = Simulation()
    for _ in range(count):
        sim.enrol()
        sim.connect(max(sim.agents))
    sim.talk()
    return sim


def preparing(sim: Simulation) -> Job:
    """A job that has been submitted and planned; its providers fetch their parts."""
    sim.submit(True, None)
    sim.wait(15)
    sim.plan_one("fits")
    sim.talk()
    return sim.world.jobs[max(sim.submitted)]


def training(sim: Simulation) -> Job:
    """A job that has been submitted, planned, prepared and begun."""
    job = preparing(sim)
    for agent in sim.agents:
        sim.go_on(agent, "done")
    sim.talk()
    assert job.state == "running", job
    return job
