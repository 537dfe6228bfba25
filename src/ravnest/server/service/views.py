"""The state as others see it: records and what is live, put together for eyes and programs."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ravnest.api.views import (
    ClusterView,
    EventView,
    JobView,
    LinkKind,
    LinkView,
    ProviderView,
    RingView,
    RunView,
    Series,
    StageView,
)
from ravnest.api.work import WORKER_OVERHEAD_BYTES, offered_bytes
from ravnest.server.changes import Event, Point
from ravnest.server.service.live import LiveRun
from ravnest.server.state.records import Job, Part, Provider, Run
from ravnest.server.state.world import World


def offered_by(provider: Provider) -> int:
    """0 as long as it is not measured."""
    figures, of_device = provider.figures, provider.facts.device_memory_bytes
    return offered_bytes(figures.memory_bytes, of_device) if figures else 0


def provider_view(world: World, id: int) -> ProviderView:
    provider, presence, part = world.providers[id], world.heard_of(id), world.at_work.get(id)
    facts, figures, beat = provider.facts, provider.figures, presence.beat
    state = presence.state if presence.connected else "away"
    if provider.paused and state == "idle":
        state = "paused"
    return ProviderView(
        id=id,
        name=provider.name,
        state=state,
        since=presence.since,
        seen_at=presence.seen_at,
        hostname=facts.hostname,
        system=facts.system,
        ravnest=facts.ravnest,
        torch=facts.torch,
        device=facts.device,
        device_name=facts.device_name,
        cores=facts.cores,
        memory_bytes=figures.memory_bytes if figures else 0,
        memory_free_bytes=beat.memory_free_bytes if beat else 0,
        worker_memory_bytes=beat.worker_memory_bytes if beat else 0,
        worker_limit_bytes=offered_by(provider),
        cpu=beat.cpu if beat else 0.0,
        gflops=figures.gflops if figures else 0.0,
        rates={str(name): rate for name, rate in figures.rates.items()} if figures else {},
        up_mbps=figures.up_mbps if figures else 0.0,
        down_mbps=figures.down_mbps if figures else 0.0,
        latency_ms=figures.latency_ms if figures else 0.0,
        reachable=id in world.reached,
        scripts=provider.caps.scripts,
        no_sandbox=facts.no_sandbox,
        hours=provider.caps.hours,
        job=part.job if part else None,
        cluster=part.cluster if part else None,
        stage=part.stage if part else None,
        measured=figures is not None,
        paused=provider.paused or state == "paused" or (beat is not None and beat.paused),
    )


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job was when somebody last said so; kept now and then."""

    job: str
    at: float
    run: int = 0
    epoch: float = 0.0
    step: int = 0
    loss: float | None = None
    metrics: dict[str, float] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, view: JobView, at: float) -> "Progress":
        return cls(
            job=view.id,
            at=at,
            run=view.run,
            epoch=view.epoch,
            step=view.step,
            loss=view.loss,
            metrics=view.metrics,
        )


def _epoch_of_all(roots: Sequence[Part], live: LiveRun) -> float:
    """How often all clusters that are left have been through their rows."""
    left = [part for part in roots if part.state not in ("failed", "dropped")] or roots
    found = []
    for part in left:
        report = live.reports.get(part.provider)
        found.append(live.epoch.get(part.cluster, float(report.epoch) if report else 0.0))
    return min(found, default=0.0)


def job_view(
    world: World, job: Job, live: LiveRun | None, known: Progress | None = None
) -> JobView:
    """Without reports since the server began, what was known before."""
    roots = [part for part in world.of_run.get(job.id, ()) if part.stage == 0]
    first = live.reports.get(roots[0].provider) if live and roots else None
    working = job.state in ("running", "paused", "stopping")
    # What a worker reports is an average over the last steps: in a pause, of those before it.
    speeds = [
        live.reports[part.provider].samples_per_second
        for part in roots
        if live and part.is_open and part.provider in live.reports and job.state != "paused"
    ]
    epoch = float(job.epochs_done)
    if working or job.state == "fusing":
        # Never behind what is kept: the first reports of a run have not trained anything yet.
        if live is not None:
            epoch = max(epoch, _epoch_of_all(roots, live))
        elif known is not None and known.run == job.run:
            epoch = max(epoch, known.epoch)
    epoch = min(epoch, float(job.epochs))  # whatever they say
    loss = live.loss.get(0) if live else None
    if loss is None and known is not None:
        loss = known.loss
    metrics = {**(known.metrics if known else {}), **job.metrics, **(live.metrics if live else {})}
    return JobView(
        id=job.id,
        name=job.name,
        owner=job.owner_name,
        owner_role=job.owner_role,
        state=job.state,
        reason=job.reason,
        submitted_at=job.submitted_at,
        began_at=job.began_at,
        ended_at=job.ended_at,
        run=job.run,
        epoch=epoch,
        epochs=job.epochs,
        batch_size=job.batch_size,
        step=first.step if first else known.step if known else 0,
        samples_per_second=sum(speeds) if working else 0.0,
        loss=loss,
        metrics={name.removeprefix("eval/"): value for name, value in metrics.items()},
        parameters=job.parameters,
        result_bytes=job.result_bytes,
    )


def run_view(world: World, run: Run, live: LiveRun | None, rings: Iterable[RingView]) -> RunView:
    parts, rings = world.of_run.get(run.job, []), tuple(rings)
    clusters: dict[int, list[Part]] = {}
    for part in parts:
        clusters.setdefault(part.cluster, []).append(part)
    return RunView(
        job=run.job,
        run=run.number,
        clusters=tuple(
            _cluster_view(world, stages, live) for _, stages in sorted(clusters.items())
        ),
        links=tuple(_links(world, clusters, rings, live)),
        rings=rings,
        rounds=tuple(live.rounds) if live else (),
    )


def _cluster_view(world: World, stages: list[Part], live: LiveRun | None) -> ClusterView:
    first = stages[0]
    id, root = first.cluster, live.reports.get(first.provider) if live else None
    moves = first.is_open and world.jobs[first.job].state != "paused"
    return ClusterView(
        id=id,
        stages=tuple(_stage_view(world, part, live) for part in stages),
        step=root.step if root else 0,
        epoch=live.epoch.get(id, float(root.epoch) if root else 0.0) if live else 0.0,
        samples_per_second=root.samples_per_second if root and moves else 0.0,
        loss=live.loss.get(id) if live else None,
    )


def _stage_view(world: World, part: Part, live: LiveRun | None) -> StageView:
    report = live.reports.get(part.provider) if live else None
    known = part.provider in world.providers
    return StageView(
        provider=part.provider,
        name=world.called(part.provider) if known else part.node,
        role=part.role,
        stage=part.stage,
        parameters=part.parameters,
        # What is used is of the whole process.
        memory_bytes=part.memory_bytes + WORKER_OVERHEAD_BYTES,
        state=part.state,
        memory_used_bytes=report.memory_bytes if report else 0,
        busy=report.busy if report and part.is_open else 0.0,
        in_flight=report.in_flight if report and part.is_open else 0,
        updates=report.updates if report else 0,
        staleness=report.staleness if report else 0.0,
        compute_s=part.compute_s,
    )


def _links(
    world: World,
    clusters: dict[int, list[Part]],
    rings: tuple[RingView, ...],
    live: LiveRun | None,
) -> Iterator[LinkView]:
    of = {part.provider: part for stages in clusters.values() for part in stages}
    seen: set[frozenset[int]] = set()
    for stages in clusters.values():
        for one, other in itertools.pairwise(stages):
            seen.add(frozenset((one.provider, other.provider)))
            yield _link(world, one, other, "pipeline", live)
    for ring in rings:
        members = ring.providers
        for place, source in enumerate(members):
            target = members[(place + 1) % len(members)]
            pair = frozenset((source, target))
            if len(pair) == 2 and pair not in seen and source in of and target in of:
                seen.add(pair)
                yield _link(world, of[source], of[target], "ring", live)


def _link(world: World, one: Part, other: Part, kind: LinkKind, live: LiveRun | None) -> LinkView:
    ours, theirs = one.provider, other.provider
    flows = live.traffic if live and one.is_open and other.is_open else {}
    near, far = flows.get((ours, theirs)), flows.get((theirs, ours))
    relayed = theirs in one.relayed or ours in other.relayed
    known = one.state != "assigned" and other.state != "assigned"
    return LinkView(
        source=ours,
        target=theirs,
        kind=kind,
        path="relay" if relayed else "direct" if known else "unknown",
        # Whoever sends knows best; the other one counts the same a moment later.
        forward_bytes_per_s=near.sent_per_s if near else far.received_per_s if far else 0.0,
        backward_bytes_per_s=far.sent_per_s if far else near.received_per_s if near else 0.0,
        measured_mbps=world.measured_mbps(ours, theirs),
    )


def series_view(points: Iterable[Point]) -> Series:
    """Points in the order in which they came. What a run trained and lost is left out as far as a
    later one has trained it anew: epochs tell, for steps of an epoch are fewer in more clusters."""
    curves: dict[str, list[tuple[float, float, float, float]]] = {}
    for point in points:
        curve = curves.setdefault(f"{point.series}@{point.cluster}", [])
        while curve and (curve[-1][1], curve[-1][0]) >= (point.epoch, point.step):
            curve.pop()
        if point.value is not None:
            curve.append((point.step, point.epoch, point.at, point.value))
    return Series(points={name: tuple(curve) for name, curve in curves.items() if curve})


def event_view(event: Event) -> EventView:
    level = event.level
    return EventView(
        number=event.number,
        at=event.at,
        level="error" if level == "error" else "warning" if level == "warning" else "info",
        text=event.text,
        job=event.job,
        provider=event.provider,
    )
