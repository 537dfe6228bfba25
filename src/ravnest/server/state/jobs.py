"""A job is submitted, planned with whoever is free, and steered by people."""

from collections.abc import Callable
from functools import partial

from ravnest.api.control import Steer
from ravnest.api.views import ENDED_JOBS
from ravnest.errors import JobError
from ravnest.server.state import declining, fusing, introducing, leaving_out, pool, retrying, runs
from ravnest.server.state.effects import Discard, DropPlan, MakePlan, Wake
from ravnest.server.state.events import JobSteered, PlanFailed, PlanMade
from ravnest.server.state.records import Job
from ravnest.server.state.recovery import why_dangerous
from ravnest.server.state.words import counted
from ravnest.server.state.world import World

NEW = "not looked at yet"
_KEPT_BESIDE = ("spec", "hashes", "progress")
"""Kinds of records that the service keeps of a job, and this never looks into."""


def submitted(world: World, job: Job, now: float) -> None:
    world.jobs[job.id] = job
    world.move(job, "waiting", NEW)
    world.save_job(job)
    world.note(now, "info", f"{job.name} was submitted by {job.owner_name}", job.id)


# ---- planning


def consider(world: World, now: float) -> None:
    """Plan what can be planned, oldest first; say of the others what they wait for."""
    waiting = [job for job in world.jobs.values() if job.state in ("waiting", "planned")]
    if not waiting:
        world.held_since = None
        return
    settled_at = _settled_at(world, now)
    if now >= settled_at:
        world.held_since = None
    for job in sorted(waiting, key=lambda job: _turn(world, job)):
        declining.ask_those_again(world, job, now)
        if world.judged.get(job.id) == world.pool_version:
            continue
        if now < settled_at:
            settled_at = _hold(world, settled_at, now)
        if now < settled_at:
            world.order(Wake(at=settled_at))
            if job.state == "waiting" and job.reason == NEW:
                world.move(job, "waiting", "the pool is changing")
            continue
        if not retrying.is_due(world, job.id, now):
            continue
        if reason := why_dangerous(world.killer_of(job)):
            runs.fail(world, job, reason, now)
            continue
        if world.planning is not None:
            other = world.jobs[world.planning].name
            if job.state == "waiting":
                world.move(job, "waiting", f"{other} is being planned first")
            continue
        world.held_since = None
        if not _plan(world, job):
            world.judged[job.id] = world.pool_version


def _turn(world: World, job: Job) -> tuple[int, float, str]:
    """Owners whose last plan is longest ago come first: many jobs, or slow ones, of somebody else
    keep nobody waiting for longer than one of them."""
    return world.planned_for.get(job.owner_name, 0), job.submitted_at, job.id


def _settled_at(world: World, now: float) -> float:
    """When the pool has been as it is for long enough, and what is between them is known."""
    quiet_at = world.pool_changed_at + world.settings.settle_s
    return max(quiet_at, introducing.measured_by(world, now))


def _hold(world: World, settled_at: float, now: float) -> float:
    """Something is to be planned and the pool is changing: how long that is waited for."""
    if world.held_since is None:
        world.held_since = now
    return min(settled_at, world.held_since + world.settings.settle_most_s)


def _plan(world: World, job: Job) -> bool:
    found = pool.willing(world, job)
    if not found and leaving_out.nobody_else(world, job) and leaving_out.ask_again(world, job):
        found = pool.willing(world, job)
    job.plan = None
    if not found:
        world.move(job, "waiting", pool.why_nobody(world, job))
        return False
    world.judged[job.id] = world.pool_version
    world.planning = job.id
    world.attempt += 1
    world.planned_for[job.owner_name] = world.attempt
    world.move(job, "planning", f"with {counted(len(found), 'provider')}")
    world.save_job(job)
    world.order(
        MakePlan(
            job=job.id,
            attempt=world.attempt,
            run=job.run + 1,
            pool=pool.as_pool(found, job.precision),
            fused_run=job.fused_run,
            epochs_done=job.epochs_done,
        )
    )
    return True


def _is_current(world: World, event: PlanMade | PlanFailed) -> bool:
    return world.planning == event.job and world.attempt == event.attempt


def planned(world: World, event: PlanMade, now: float) -> None:
    if not _is_current(world, event):
        return
    job = world.jobs[event.job]
    world.planning = None
    job.plan_crashes = 0
    world.roomless.pop(job.id, None)
    job.plan, job.parameters = event.plan, event.plan.parameters
    world.save_job(job)
    count = len(event.plan.parts)
    world.note(
        now,
        "info",
        f"planned with {counted(count, 'provider')} in {counted(event.plan.clusters, 'cluster')}, "
        f"{counted(event.plan.steps_per_s, 'batch')} per second expected",
        job.id,
    )
    if job.asked:
        begin_if_all_free(world, job, now)
    else:
        world.move(job, "planned", f"waits to be started, with {counted(count, 'provider')}")


def begin_if_all_free(world: World, job: Job, now: float) -> None:
    assert job.plan is not None
    gone = [part.provider for part in job.plan.parts if part.provider not in world.free]
    if not gone:
        runs.begin(world, job, now)
        return
    for provider in gone:
        # Whoever comes for each plan and goes before it begins must not keep the job from ever
        # beginning. One that works for another job has not gone.
        if provider not in world.at_work:
            declining.declined(world, job, provider, now)
    name = world.called(gone[0])
    job.plan = None
    world.judged.pop(job.id, None)
    world.move(job, "waiting", f"{name} was planned with and is not free any more")
    world.save_job(job)


def not_planned(world: World, event: PlanFailed, now: float) -> None:
    if not _is_current(world, event):
        return
    job = world.jobs[event.job]
    world.planning = None
    if event.full:
        world.judged.pop(job.id, None)
        retrying.wait_for_room(world, job, "waiting", event.reason, now)
        return
    job.plan_crashes = job.plan_crashes + 1 if event.crashed else 0
    world.save_job(job)
    if event.crashed and job.plan_crashes <= retrying.MOST_RETRIES:
        world.judged.pop(job.id, None)
        world.move(job, "waiting", f"planning is tried again: {event.reason}")
        world.note(now, "warning", f"planning broke off: {event.reason}", job.id)
        retrying.later(world, job.id, now)
    elif event.hopeless or event.crashed:
        runs.fail(world, job, f"it cannot be planned: {event.reason}", now)
    elif leaving_out.ask_again(world, job):
        world.move(job, "waiting", f"those who failed are asked again: {event.reason}")
    else:
        reason = f"cannot be planned yet: {event.reason}"
        world.move(job, "waiting", reason)
        world.note(now, "info", reason, job.id)


# ---- steering


def steered(world: World, event: JobSteered, now: float) -> None:
    job = world.jobs[event.job]
    steps: dict[str, Callable[[World, Job, float], None]] = {
        "start": _start,
        "stop": _stop,
        "pause": _pause,
        "continue": _continue,
        "resume": partial(_resume, by_operator=event.by_operator),
        "delete": _delete,
    }
    steps[event.action](world, job, now)
    if event.action not in ("stop", "delete"):
        world.note(now, "info", f"{event.action}: asked by {event.by}", job.id)


def _refuse(job: Job, action: str, when: str) -> JobError:
    return JobError(f"{action} is for a job that {when}; {job.id} is {job.state}")


def _start(world: World, job: Job, now: float) -> None:
    if job.state not in ("waiting", "planning", "planned"):
        raise _refuse(job, "start", "waits to be started")
    job.asked = True
    world.save_job(job)
    if job.state == "planned":
        begin_if_all_free(world, job, now)


def _stop(world: World, job: Job, now: float) -> None:
    if job.state in ENDED_JOBS:
        raise _refuse(job, "stop", "has not ended")
    world.note(now, "info", "stop was asked for", job.id)
    run = world.runs.get(job.id)
    if job.state in ("waiting", "planning", "planned") or run is None:
        _forget_plan(world, job)
        runs.stopped(world, job, now)
        return
    job.stop_wanted = True
    world.save_job(job)
    if run.state in ("stopping", "fusing"):
        world.move(job, job.state, "stop was asked for")
    runs.stop(world, run, "stop was asked for", now)


def _forget_plan(world: World, job: Job) -> None:
    job.plan = None
    if world.planning == job.id:
        world.planning = None
        world.order(DropPlan(job=job.id))


def _pause(world: World, job: Job, now: float) -> None:
    run = world.runs.get(job.id)
    if job.state != "running" or run is None:
        raise _refuse(job, "pause", "is running")
    run.state = "paused"
    world.save_run(run)
    for part in world.open_parts(job.id):
        world.send(part.provider, Steer(assignment=part.id, action="pause"))
    world.move(job, "paused", "by request")


def _continue(world: World, job: Job, now: float) -> None:
    run = world.runs.get(job.id)
    if job.state != "paused" or run is None:
        raise _refuse(job, "continue", "is paused")
    run.state = "running"
    world.save_run(run)
    for part in world.open_parts(job.id):
        world.send(part.provider, Steer(assignment=part.id, action="resume"))
    world.move(job, "running")
    runs.keep_watch(world, run, now)


def _resume(world: World, job: Job, now: float, *, by_operator: bool) -> None:
    if job.state not in ("stopped", "failed"):
        raise _refuse(job, "resume", "was stopped or has failed")
    killer = world.killer_of(job)
    if by_operator:
        world.forget_killer(killer)
    elif reason := why_dangerous(killer):
        raise JobError(f"only an operator can resume {job.id}: {reason}")
    job.lost_runs, job.cause, job.ended_at = 0, "", None
    job.refused, job.left_out, job.excused, job.plan_crashes = {}, {}, [], 0
    world.retry_at.pop(job.id, None)
    world.declined.pop(job.id, None)
    world.accusers.pop(job.id, None)
    if not fusing.take_up(world, job):
        runs.again(world, job, "resumed", now)


def _delete(world: World, job: Job, now: float) -> None:
    _forget_plan(world, job)
    for part in list(world.open_parts(job.id)):
        runs.drop(world, part, "the job was deleted", now)
    world.forget_run(job.id)
    del world.jobs[job.id]
    world.judged.pop(job.id, None)
    world.retry_at.pop(job.id, None)
    world.roomless.pop(job.id, None)
    world.declined.pop(job.id, None)
    world.accusers.pop(job.id, None)
    world.out.remove(job.kind, job.key)
    for kind in _KEPT_BESIDE:
        world.out.remove(kind, job.id)
    world.out.forget(job.id)
    world.out.jobs.add(job.id)
    world.order(Discard(job=job.id))
    world.note(now, "info", f"{job.name} was deleted", job.id)
