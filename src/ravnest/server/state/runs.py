"""A run begins, trains, is stopped or lost, and ends; then it is decided how the job goes on."""

from ravnest.api.control import Begin, Steer
from ravnest.api.work import MOST_METRICS
from ravnest.server.state import declining, pool
from ravnest.server.state.effects import Fuse, Hand, Wake
from ravnest.server.state.records import Job, Part, Run, part_id
from ravnest.server.state.recovery import (
    after_loss,
    brought_back,
    epochs_of,
    fusible,
    gives_up,
    is_done,
    what_is_missing,
    why_dangerous,
)
from ravnest.server.state.words import counted
from ravnest.server.state.world import Pulse, World

_LASTED_S = 3600.0
"""Who has worked for so long has not come only to go."""


def begin(world: World, job: Job, now: float) -> None:
    """The plan of this job is carried out: every provider gets its part."""
    plan = job.plan
    assert plan is not None
    world.forget_run(job.id)
    run = Run(job=job.id, number=plan.run, began_at=now, clusters=plan.clusters)
    parts = [
        Part(
            id=part_id(job.id, run.number, planned.provider),
            job=job.id,
            run=run.number,
            provider=planned.provider,
            node=planned.node,
            cluster=planned.cluster,
            stage=planned.stage,
            role=planned.role,
            parameters=planned.parameters,
            memory_bytes=planned.memory_bytes,
            compute_s=planned.compute_s,
        )
        for planned in sorted(plan.parts, key=lambda part: (part.cluster, part.stage))
    ]
    world.runs[job.id], world.of_run[job.id] = run, parts
    job.run, job.plan = run.number, None
    world.judged.pop(job.id, None)
    world.save_run(run)
    for part in parts:
        world.parts[part.id] = part
        world.save_part(part)
        pool.review(world, part.provider, now)
        world.order(Hand(provider=part.provider, part=part.id))
    world.move(job, "preparing", f"parts are fetched by {counted(len(parts), 'provider')}")
    world.save_job(job)
    world.order(Wake(at=now + world.settings.prepare_s))
    with_whom = counted(len(parts), "provider")
    world.note(now, "info", f"run {run.number} begins with {with_whom}", job.id)


def train(world: World, run: Run, now: float) -> None:
    """Everybody is prepared."""
    job = world.jobs[run.job]
    run.state, run.training_at = "running", now
    for entry in world.declined.get(run.job, {}).values():
        entry.until = None  # whoever is not in this run may be in the next
    job.began_at = now if job.began_at is None else job.began_at
    for part in world.open_parts(run.job):
        part.state = "training"
        world.save_part(part)
        world.send(part.provider, Begin(assignment=part.id))
    world.save_run(run)
    world.save_job(job)
    world.move(job, "running")
    world.note(now, "info", "all providers are prepared; training begins", job.id)
    keep_watch(world, run, now)


def keep_watch(world: World, run: Run, now: float) -> None:
    """From now on somebody has to get on."""
    for part in world.open_parts(run.job):
        world.pulses[part.id] = Pulse(advanced_at=now)
    world.order(Wake(at=now + world.settings.standstill_s))


def stop(world: World, run: Run, reason: str, now: float) -> None:
    """Everybody saves, brings back, ends. A run that has not begun to train is dropped."""
    job = world.jobs[run.job]
    if run.state == "preparing":
        for part in list(world.open_parts(run.job)):
            drop(world, part, reason, now)
        close_if_ended(world, run, now)
        return
    if run.state in ("stopping", "fusing", "over"):
        return
    run.state, run.stopped_at = "stopping", now
    world.save_run(run)
    for part in world.open_parts(run.job):
        world.send(part.provider, Steer(assignment=part.id, action="stop", reason=reason))
    world.move(job, "stopping", reason)
    world.order(Wake(at=now + world.settings.stop_s))


def drop(world: World, part: Part, reason: str, now: float) -> None:
    """Nothing is expected of this part any more."""
    part.state, part.reason = "dropped", reason
    world.save_part(part)
    world.send(part.provider, Steer(assignment=part.id, action="drop", reason=reason))
    pool.review(world, part.provider, now)


def lose(world: World, part: Part, cause: str, now: float, *, secondhand: bool = False) -> None:
    """A part is lost; what that means for the others is decided elsewhere, and done here."""
    run, job = world.runs[part.job], world.jobs[part.job]
    part.state, part.reason = "failed", cause
    world.save_part(part)
    if world.heard_of(part.provider).assignment == part.id:  # it does not know, and would go on
        world.send(part.provider, Steer(assignment=part.id, action="drop", reason=cause))
    pool.review(world, part.provider, now)
    if not run.cause or (run.secondhand and not secondhand):
        run.cause, run.secondhand = cause, secondhand
    world.note(now, "warning", cause, job.id, part.provider)
    losses = after_loss(run, world.of_run[job.id], part)
    run.lost = True
    for other in losses.drop:
        drop(world, other, cause, now)
    if losses.stop and run.state in ("running", "paused"):
        stop(world, run, cause, now)
    world.save_run(run)
    close_if_ended(world, run, now)


def depart(world: World, part: Part, why: str, now: float) -> None:
    """A provider wants out in good order: the run is stopped, and goes on without it."""
    run = world.runs[part.job]
    name = world.called(part.provider)
    if run.departing or run.state in ("stopping", "fusing", "over"):
        return
    # Who goes and comes at once, again and again, must not end one run after the other.
    if run.training_at is not None and now - run.training_at > _LASTED_S:
        world.declined.get(part.job, {}).pop(part.provider, None)
    declining.declined(world, world.jobs[part.job], part.provider, now)
    run.departing = f"{name} {why}"
    world.save_run(run)
    world.note(now, "info", f"{run.departing}; the run is saved and goes on without", run.job)
    stop(world, run, run.departing, now)


def close_if_ended(world: World, run: Run, now: float) -> None:
    """Once every part has ended: put the stages together, or decide without them."""
    if run.state in ("fusing", "over") or any(world.open_parts(run.job)):
        return
    run.fuses = fusible(world.of_run[run.job])
    if run.fuses is None:
        conclude(world, run, now)
        return
    run.state = "fusing"
    world.save_run(run)
    world.move(world.jobs[run.job], "fusing", "the trained stages are put together")
    order_fusing(world, run)


def order_fusing(world: World, run: Run) -> None:
    assert run.fuses is not None
    world.order(Fuse(job=run.job, run=run.number, cluster=run.fuses))


def fused(world: World, run: Run, size: int, judged: str, now: float) -> None:
    job = world.jobs[run.job]
    parts = [part for part in world.of_run[run.job] if part.cluster not in run.unfusible]
    kept = brought_back(parts)
    trained = [part for stages in kept.values() for part in stages]
    done = min(epochs_of(trained), job.epochs)
    if done > job.epochs_done:
        job.lost_runs, job.cause = 0, ""
    job.epochs_done, job.fused_run, job.result_bytes = done, run.number, size
    for part in (part for part in trained if part.cluster == run.fuses):
        for name, value in (part.end.metrics if part.end else {}).items():
            if name in job.metrics or len(job.metrics) < MOST_METRICS:
                job.metrics[name] = value
    world.save_job(job)
    weights = f"the weights after {counted(done, 'epoch')} are fused"
    world.note(now, "info", f"{weights}; {judged}", job.id)
    if is_done(trained):
        _end_run(world, run, now)
        job.ended_at = now
        missing = what_is_missing(run, world.of_run[run.job], kept)
        world.move(job, "done", missing)
        words = f"the job is done{f', but {missing}' if missing else ''}"
        world.note(now, "warning" if missing else "info", words, job.id)
    else:
        conclude(world, run, now)


def conclude(world: World, run: Run, now: float) -> None:
    """A run is over and the job is not done."""
    job = world.jobs[run.job]
    _end_run(world, run, now)
    if job.stop_wanted:
        stopped(world, job, now)
    elif reason := why_dangerous(world.killer_of(job)):
        fail(world, job, reason, now)
    elif run.lost and run.excused:
        job.cause = job.cause or run.cause
        again(world, job, f"goes on without who failed: {run.cause}", now)
    elif run.lost:
        _lost(world, job, run.cause, now)
    elif run.departing:
        again(world, job, f"begins anew: {run.departing}", now)
    elif run.fuses is None:
        _lost(world, job, "no cluster has brought back all of its stages", now)
    else:
        again(world, job, "the providers ended before the job was done", now)


def stopped(world: World, job: Job, now: float) -> None:
    done = counted(job.epochs_done, "epoch")
    kept = f"the weights after {done} are kept" if job.fused_run else "nothing was trained yet"
    job.ended_at, job.stop_wanted = now, False
    world.move(job, "stopped", f"by request; {kept}. It can be resumed")
    world.note(now, "info", f"stopped; {kept}", job.id)


def _lost(world: World, job: Job, cause: str, now: float) -> None:
    job.lost_runs += 1
    job.cause = job.cause or cause
    if gives_up(job):
        also = f", {counted(len(job.excused), 'provider')} left out" if job.excused else ""
        reason = f"{counted(job.lost_runs, 'run')} lost{also}; the first because {job.cause}"
        fail(world, job, reason, now)
    else:
        again(world, job, f"run {job.run} was lost: {cause}", now)


def again(world: World, job: Job, reason: str, now: float) -> None:
    """Back to planning, with whoever is there then."""
    job.asked = True
    world.judged.pop(job.id, None)
    world.move(job, "waiting", reason)
    world.save_job(job)


def fail(world: World, job: Job, reason: str, now: float) -> None:
    job.ended_at, job.plan, job.stop_wanted = now, None, False
    world.save_job(job)
    world.move(job, "failed", reason)
    world.note(now, "error", reason, job.id)


def _end_run(world: World, run: Run, now: float) -> None:
    run.state, run.ended_at = "over", now
    world.save_run(run)
