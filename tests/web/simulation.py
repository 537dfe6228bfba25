"""A pool of machines and a run with two clusters, made up: what a server would show of them.

All of it is `ravnest.api.views`, computed from a seed and a clock that only `advance` moves.
Nothing here knows of HTTP or browsers; `fake_server.py` serves it.
"""

import random
from dataclasses import dataclass, field

from msgspec.structs import replace
from web.pipeline import Pipeline

from ravnest.api.views import (
    Changes,
    ClusterView,
    EventView,
    JobDetail,
    JobView,
    LinkView,
    Overview,
    PlanView,
    ProviderView,
    RingView,
    RoundView,
    RunView,
    Series,
    ServerView,
    StageView,
    Timeline,
    TimelineRow,
)
from ravnest.api.work import WORKER_OVERHEAD_BYTES

MB, GB = 10**6, 10**9
START = 1_790_000_000.0
JOB = "job-resnet"
BATCH = 64

# name, host, device, its name, cores, memory, GFLOP/s, up, down, delay, reachable
_MACHINES = [
    ("ada-laptop", "ada-x1", "cpu", "Core i7-1260P", 12, 9.5, 210, 38, 94, 14, False),
    ("workshop-pc", "workshop", "cuda:0", "GeForce RTX 3060", 16, 11.2, 5900, 42, 240, 9, True),
    ("lab-gpu-1", "lab1.example", "cuda:0", "Tesla T4", 8, 14.6, 4100, 880, 910, 3, True),
    ("lab-gpu-2", "lab2.example", "cuda:0", "Tesla T4", 8, 14.6, 4050, 870, 905, 3, True),
    ("mini", "mac-mini", "mps", "Apple M2", 8, 10.4, 2600, 55, 310, 11, False),
    ("attic-nas", "nas", "cpu", "Celeron J4125", 4, 1.6, 22, 30, 88, 18, False),
    ("grace-desktop", "grace", "cpu", "Ryzen 7 5800X", 16, 22.0, 420, 18, 120, 21, True),
]
_SPEEDS = {1: 0.6, 2: 1.0, 3: 0.9, 4: 1.3, 5: 0.0, 6: 1.4, 0: 1.1}


@dataclass
class Curve:
    """One series of one cluster."""

    points: list[tuple[float, float, float, float]] = field(default_factory=list)


class Simulation:
    """`advance` moves the clock and returns what has changed since the last call."""

    def __init__(self, *, machines: int = len(_MACHINES), jobs: bool = True, seed: int = 7) -> None:
        self.now = START
        self.no_sandbox = ""
        self.random = random.Random(seed)
        self.providers: dict[int, ProviderView] = {}
        self.jobs: dict[str, JobView] = {}
        self.events: list[EventView] = []
        self.actions: list[tuple[str, str]] = []
        self.curves: dict[str, Curve] = {}
        self.rounds: list[RoundView] = []
        self.clusters: dict[int, tuple[int, ...]] = {}
        self.pipelines: dict[int, Pipeline] = {}
        self._changed_providers: set[int] = set()
        self._changed_jobs: set[str] = set()
        self._gone_jobs: set[str] = set()
        self._gone_providers: set[int] = set()
        self._said = 0
        self._next_round = START + 6.0
        for number in range(machines):
            self._join(number)
        if jobs and machines >= 5:
            self._submit_jobs()
        self._changed_providers.clear()
        self._changed_jobs.clear()
        self._said = len(self.events)

    # ---- what is there ----

    def server(self) -> ServerView:
        heard = [p for p in self.providers.values() if p.state != "away"]
        return ServerView(
            name="ravnest at home",
            version="0.1.0",
            started_at=START - 86_400 * 2.2,
            now=self.now,
            providers=len(self.providers),
            heard=len(heard),
            memory_bytes=sum(p.worker_limit_bytes for p in heard),
            gflops=sum(p.gflops for p in heard),
            relayed_bytes=int(1.4 * GB + 2.1 * MB * (self.now - START)),
            relayed_bytes_per_s=2.1 * MB if self.pipelines else 0.0,
            no_sandbox=self.no_sandbox,
        )

    def overview(self) -> Overview:
        return Overview(
            server=self.server(),
            providers=tuple(self.providers.values()),
            jobs=tuple(self.jobs.values()),
            runs=(self.run(),) if JOB in self.jobs else (),
            events=tuple(self.events[-100:]),
        )

    def detail(self, job: str) -> JobDetail:
        view = self.jobs[job]
        if job != JOB:
            return JobDetail(job=view, files=12, bytes=3 * MB)
        return JobDetail(job=view, plan=_plan(), run=self.run(), files=214, bytes=int(1.9 * GB))

    def series(self, job: str) -> Series:
        if job != JOB:
            return Series(points={})
        return Series(points={name: tuple(curve.points) for name, curve in self.curves.items()})

    def timeline(self, job: str, seconds: float) -> Timeline:
        rows = []
        began = self.now - seconds
        for cluster, members in self.clusters.items():
            for stage, provider in enumerate(members):
                spans = tuple(
                    span for span in self.pipelines[cluster].spans[stage] if span[4] > began
                )
                node = f"node_{provider}"
                rows.append(
                    TimelineRow(
                        provider=provider, node=node, cluster=cluster, stage=stage, spans=spans
                    )
                )
        shown = tuple(rows) if job == JOB else ()
        return Timeline(began=began, ended=self.now, rows=shown)

    def run(self) -> RunView:
        return RunView(
            job=JOB,
            run=1,
            clusters=tuple(self._cluster(number) for number in self.clusters),
            links=tuple(self._links()),
            rings=_rings(self.clusters),
            rounds=tuple(self.rounds[-50:]),
        )

    # ---- what happens ----

    def advance(self, seconds: float) -> Changes:
        self.now += seconds
        points: dict[str, tuple[tuple[object, ...], ...]] = {}
        if self.jobs.get(JOB) is not None and self.jobs[JOB].state == "running":
            points = {JOB: tuple(self._train())}
            self._average()
        for number in self._busy_machines():
            machine = self.providers[number]
            wobble = 0.92 + 0.08 * self.random.random()
            used = int(_predicted(number) * wobble) if self._works(number) else 0
            cpu = self.random.uniform(0.5, 0.95) if used else 0.03
            self._set_provider(replace(machine, worker_memory_bytes=used, cpu=cpu))
        return self.changes(points)

    def changes(self, points: dict[str, tuple[tuple[object, ...], ...]] | None = None) -> Changes:
        """What is different since the last call."""
        changes = Changes(
            server=self.server(),
            providers=tuple(self.providers[n] for n in sorted(self._changed_providers)),
            jobs=tuple(self.jobs[n] for n in sorted(self._changed_jobs)),
            gone_providers=tuple(sorted(self._gone_providers)),
            gone_jobs=tuple(sorted(self._gone_jobs)),
            runs=(self.run(),) if JOB in self.jobs else (),
            gone_runs=tuple(sorted(self._gone_jobs)),
            events=tuple(self.events[self._said :]),
            points=points or {},
        )
        self._said = len(self.events)
        self._changed_providers.clear()
        self._changed_jobs.clear()
        self._gone_jobs.clear()
        self._gone_providers.clear()
        return changes

    def act_on_job(self, job: str, action: str) -> JobView:
        self.actions.append((job, action))
        view = self.jobs[job]
        states = {
            "start": "running",
            "pause": "paused",
            "continue": "running",
            "resume": "running",
            "stop": "stopped",
        }
        if action == "delete":
            del self.jobs[job]
            self._gone_jobs.add(job)
            return view
        view = replace(view, state=states[action], reason=f"{action} by the operator")
        self._set_job(view)
        self.say("info", f"Job {view.name}: {action} by the operator", job=job)
        return view

    def act_on_provider(self, number: int, action: str) -> ProviderView:
        self.actions.append((f"provider-{number}", action))
        machine = self.providers[number]
        if action == "remove":
            self._gone_providers.add(number)
            return self.providers.pop(number)
        paused = action == "pause"
        state = "paused" if paused else "idle"
        machine = replace(machine, state=state, since=self.now, paused=paused)
        self._set_provider(machine)
        self.say("info", f"{machine.name}: {action} by the operator", provider=number)
        return machine

    def say(
        self, level: str, text: str, *, job: str | None = None, provider: int | None = None
    ) -> None:
        number = len(self.events) + 1
        self.events.append(
            EventView(
                number=number, at=self.now, level=level, text=text, job=job, provider=provider
            )
        )

    def rename(self, number: int, name: str) -> None:
        self._set_provider(replace(self.providers[number], name=name))

    def lose(self, number: int) -> None:
        machine = self.providers[number]
        self._set_provider(replace(machine, state="away", since=self.now, seen_at=self.now))
        self.say("warning", f"{machine.name} has not been heard of for 30 s", provider=number)

    # ---- inside ----

    def _join(self, number: int) -> None:
        row = _MACHINES[number % len(_MACHINES)]
        name, host, device, device_name, cores, memory, gflops, up, down, delay, reachable = row
        if number >= len(_MACHINES):
            name, host = f"{name}-{number}", f"{host}-{number}"
            gflops = round(gflops * self.random.uniform(0.6, 1.4))
        self.providers[number] = ProviderView(
            id=number,
            name=name,
            state="idle",
            since=self.now - 3600 * (1 + number % 30),
            seen_at=self.now - 1,
            hostname=host,
            system="Linux 6.12 x86_64",
            ravnest="0.1.0",
            torch="2.9.0",
            device=device,
            device_name=device_name,
            cores=cores,
            memory_bytes=int(memory * GB) - WORKER_OVERHEAD_BYTES,
            worker_limit_bytes=int(memory * GB),
            memory_free_bytes=int(memory * 1.2 * GB),
            gflops=gflops,
            up_mbps=up,
            down_mbps=down,
            latency_ms=delay,
            reachable=reachable,
            hours="22:00-07:00" if number % 7 == 6 else None,
            measured=True,
            cpu=0.03,
        )
        if number < 40:
            self.say("info", f"{name} has joined with {memory} GB of memory", provider=number)

    def _submit_jobs(self) -> None:
        self.clusters = {0: (2, 3, 1), 1: (4, 0)}
        for cluster, members in self.clusters.items():
            speeds = [_SPEEDS[number] for number in members]
            self.pipelines[cluster] = Pipeline(speeds, began=self.now)
            for stage, number in enumerate(members):
                self.providers[number] = replace(
                    self.providers[number],
                    state="training",
                    job=JOB,
                    cluster=cluster,
                    stage=stage,
                    since=self.now - 312,
                    worker_memory_bytes=_predicted(number),
                    cpu=0.8,
                )
        if 5 in self.providers:
            machine = replace(self.providers[5], state="away", since=self.now - 5400)
            self.providers[5] = replace(machine, seen_at=self.now - 5400)
        common = {"owner": "mira", "submitted_at": self.now - 400}
        self.jobs[JOB] = JobView(
            id=JOB,
            name="cifar10-resnet18",
            state="running",
            began_at=self.now - 312,
            run=1,
            batch_size=BATCH,
            epochs=30,
            epoch=3.0,
            step=1170,
            parameters=11_173_962,
            loss=1.1,
            **common,
        )
        self.jobs["job-digits"] = JobView(
            id="job-digits",
            name="digits-mlp",
            owner="jo",
            state="done",
            submitted_at=self.now - 90_000,
            began_at=self.now - 89_940,
            ended_at=self.now - 89_700,
            run=1,
            epoch=20,
            epochs=20,
            step=560,
            loss=0.041,
            metrics={"accuracy": 0.978, "loss": 0.09},
            parameters=85_002,
            result_bytes=341_000,
        )
        self.jobs["job-gpt"] = JobView(
            id="job-gpt",
            name="gpt2-medium-poems",
            owner="mira",
            state="waiting",
            reason="The pool holds 61.9 GB of the 74.2 GB that this model needs for training: "
            "12.3 GB more memory would do, for example one more machine like lab-gpu-1.",
            submitted_at=self.now - 1900,
            epochs=3,
            parameters=354_823_168,
        )
        for number, cluster in ((cluster, f"@{cluster}") for cluster in self.clusters):
            self.curves[f"train/loss{cluster}"] = Curve()
            for step in range(0, 1170, 10):
                self._point(number, step, self.now - 312 + step * 0.265)
        self.say("info", "Planned: 2 clusters with 5 machines, 3.4 times one machine", job=JOB)
        self.say("info", "Run 1 begins", job=JOB)
        self.say("warning", "ada-laptop cannot be reached by mini directly: relayed", job=JOB)

    def _point(self, cluster: int, step: int, at: float) -> list[tuple[object, ...]]:
        epoch = step / 390
        noise = self.random.gauss(0, 0.05)
        loss = 0.25 + 2.05 * (1 + step / 260) ** -0.85 + noise * (0.4 + 1 / (1 + epoch))
        loss = max(0.01, loss + 0.04 * cluster)
        fresh: list[tuple[object, ...]] = [("train/loss", cluster, step, epoch, at, loss)]
        self.curves[f"train/loss@{cluster}"].points.append((step, epoch, at, loss))
        if cluster == 0 and step % 130 == 0 and step:
            accuracy = 0.93 - 0.83 * (1 + step / 300) ** -1.1 + noise * 0.1
            for name, value in (("eval/accuracy", accuracy), ("eval/loss", loss * 0.9 + 0.12)):
                self.curves.setdefault(f"{name}@0", Curve()).points.append((step, epoch, at, value))
                fresh.append((name, cluster, step, epoch, at, value))
            job = self.jobs.get(JOB)
            if job is not None:
                self._set_job(replace(job, metrics={"accuracy": accuracy, "loss": loss}))
        return fresh

    def _train(self) -> list[tuple[object, ...]]:
        job = self.jobs[JOB]
        fresh: list[tuple[object, ...]] = []
        last = int(self.curves["train/loss@0"].points[-1][0])
        elapsed = self.now - self.curves["train/loss@0"].points[-1][2]
        steps = int(elapsed / 0.265) // 10
        for count in range(1, steps + 1):
            at = self.now - elapsed + count * 2.65
            for cluster in self.clusters:
                fresh += self._point(cluster, last + 10 * count, at)
        for pipeline in self.pipelines.values():
            pipeline.run_until(self.now)
        job = self.jobs[JOB]
        step = last + int(elapsed / 0.265)
        rate = 446 + self.random.uniform(-18, 18)
        loss = self.curves["train/loss@0"].points[-1][3]
        self._set_job(replace(job, step=step, epoch=step / 390, samples_per_second=rate, loss=loss))
        return fresh

    def _average(self) -> None:
        while self._next_round <= self.now:
            began = self._next_round
            for ring in range(3):
                outcome = "given up" if self.random.random() < 0.06 else "applied"
                number = 1 + sum(known.ring == ring for known in self.rounds)
                self.rounds.append(
                    RoundView(
                        ring=ring,
                        number=number,
                        began=began + 0.15 * ring,
                        ended=began + 0.15 * ring + self.random.uniform(0.5, 1.4),
                        members=2,
                        outcome=outcome,
                    )
                )
            for pipeline in self.pipelines.values():
                pipeline.pause_for_averaging(began, 0.12)
            self._next_round += 8.0

    def _cluster(self, number: int) -> ClusterView:
        job = self.jobs[JOB]
        stages = []
        members = self.clusters[number]
        for stage, provider in enumerate(members):
            machine = self.providers[provider]
            role = "Root" if stage == 0 else "Leaf" if stage == len(members) - 1 else "Stem"
            stages.append(
                StageView(
                    provider=provider,
                    name=machine.name,
                    role=role,
                    stage=stage,
                    parameters=_PARAMETERS[provider],
                    memory_bytes=_predicted(provider),
                    memory_used_bytes=machine.worker_memory_bytes,
                    state="training" if job.state == "running" else job.state,
                    busy=self.pipelines[number].busy(stage, self.now, 5.0),
                    in_flight=len(members) - stage,
                    updates=job.step,
                    staleness=float(len(members) - stage - 1),
                    compute_s=0.05 * _SPEEDS[provider],
                )
            )
        share = 0.58 if number == 0 else 0.42
        return ClusterView(
            id=number,
            stages=tuple(stages),
            step=job.step,
            epoch=job.epoch,
            samples_per_second=job.samples_per_second * share,
            loss=self.curves[f"train/loss@{number}"].points[-1][3],
        )

    def _links(self) -> list[LinkView]:
        moving = self.jobs[JOB].state == "running"

        def link(source: int, target: int, kind: str, path: str, speed: float) -> LinkView:
            forward = speed * MB * self.random.uniform(0.85, 1.15) * moving
            backward = speed * MB * self.random.uniform(0.8, 1.1) * moving
            return LinkView(
                source=source,
                target=target,
                kind=kind,
                path=path,
                forward_bytes_per_s=forward,
                backward_bytes_per_s=backward,
                measured_mbps=min(self.providers[source].up_mbps, self.providers[target].down_mbps),
            )

        averaging = bool(self.rounds) and self.now - self.rounds[-1].ended < 1.5
        ring = 1.2 if averaging else 0.0
        return [
            link(2, 3, "pipeline", "direct", 6.4),
            link(3, 1, "pipeline", "direct", 3.1),
            link(4, 0, "pipeline", "relay", 2.1),
            link(2, 4, "ring", "direct", ring),
            link(3, 4, "ring", "direct", ring * 0.7),
            link(1, 0, "ring", "relay", ring * 0.4),
        ]

    def _busy_machines(self) -> list[int]:
        return [number for members in self.clusters.values() for number in members]

    def _works(self, number: int) -> bool:
        return self.jobs.get(JOB) is not None and self.jobs[JOB].state in {"running", "paused"}

    def _set_provider(self, view: ProviderView) -> None:
        self.providers[view.id] = view
        self._changed_providers.add(view.id)

    def _set_job(self, view: JobView) -> None:
        self.jobs[view.id] = view
        self._changed_jobs.add(view.id)


_PARAMETERS = {2: 2_780_000, 3: 3_910_000, 1: 4_483_962, 4: 6_300_000, 0: 4_873_962}


def _predicted(number: int) -> int:
    return int({2: 1.31, 3: 0.94, 1: 0.71, 4: 1.62, 0: 0.83}.get(number, 0.5) * GB)


def _rings(clusters: dict[int, tuple[int, ...]]) -> tuple[RingView, ...]:
    if len(clusters) < 2:
        return ()
    return (
        RingView(id=0, first_parameter="conv1.weight", bytes=11_120_000, providers=(2, 4)),
        RingView(id=1, first_parameter="layer3.0.conv1.weight", bytes=14_080_000, providers=(3, 4)),
        RingView(id=2, first_parameter="layer4.0.conv2.weight", bytes=19_490_000, providers=(1, 0)),
    )


def _plan() -> PlanView:
    return PlanView(
        steps_per_s=7.4,
        single_machine_steps_per_s=2.2,
        batch_size=BATCH,
        parameters=11_173_962,
        model="ResNet-18 (CIFAR-10)",
        clusters=2,
        providers=5,
        idle=((6, "would be idle most of the time: the pool is 1 % faster with it"),),
        warnings=("mini and ada-laptop talk through the server: 2.1 MB/s of its bandwidth",),
        report="Cluster 0: 4.3 batches/s, limited by computing of node_2\n"
        f"  provider  role  {'memory / limit, as wide as the table of a plan is  ' * 5}\n"
        "Cluster 1: 3.1 batches/s, limited by the link of node_4\n\n"
        "7.4 batches/s together, 2.2 on the fastest machine alone: 3.4 times as fast",
    )
