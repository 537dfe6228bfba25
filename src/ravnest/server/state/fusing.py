"""Putting the stages of a run together ends, well or not. What was trained is given up last."""

from ravnest.server.state import retrying, runs
from ravnest.server.state.events import Fused, FusingFailed
from ravnest.server.state.records import Job, Run
from ravnest.server.state.recovery import fusible
from ravnest.server.state.world import World


def ended(world: World, event: Fused | FusingFailed, now: float) -> None:
    run = world.runs.get(event.job)
    if run is None or run.number != event.run or run.state != "fusing":
        return
    if isinstance(event, Fused):
        world.roomless.pop(event.job, None)
        runs.fused(world, run, event.bytes, now)
    elif event.full:
        retrying.wait_for_room(world, world.jobs[run.job], "fusing", event.reason, now)
    elif event.crashed:
        _crashed(world, run, event.reason, now)
    else:
        _cannot_be_fused(world, run, event.reason, now)


def _crashed(world: World, run: Run, reason: str, now: float) -> None:
    job = world.jobs[run.job]
    run.fusing_crashes += 1
    world.save_run(run)
    world.note(now, "warning", f"fusing broke off: {reason}", job.id)
    if run.fusing_crashes <= retrying.MOST_RETRIES:
        world.move(job, "fusing", f"fusing is tried again: {reason}")
        retrying.later(world, job.id, now)
    elif run.fusing_crashes == retrying.MOST_RETRIES + 1:
        run.state, run.ended_at = "over", now
        runs.fail(world, job, f"fusing failed, resume tries it once more: {reason}", now)
    else:  # it was resumed for this, and has to get on
        _cannot_be_fused(world, run, reason, now)


def _cannot_be_fused(world: World, run: Run, reason: str, now: float) -> None:
    """Every cluster holds the whole model: perhaps another one does."""
    assert run.fuses is not None
    cause = f"the stages of cluster {run.fuses} cannot be put together: {reason}"
    world.note(now, "warning", cause, run.job)
    run.unfusible.append(run.fuses)
    run.fusing_crashes = 0
    left = [part for part in world.of_run[run.job] if part.cluster not in run.unfusible]
    run.fuses = fusible(left)
    world.save_run(run)
    if run.fuses is not None:
        runs.order_fusing(world, run)
        return
    run.lost, run.cause = True, run.cause or cause
    runs.conclude(world, run, now)


def take_up(world: World, job: Job) -> bool:
    """A job is resumed; whether there is something trained that was never put together."""
    run = world.runs.get(job.id)
    if run is None or run.state != "over" or run.fuses is None or job.fused_run == run.number:
        return False
    run.state, run.ended_at = "fusing", None
    world.save_run(run)
    world.move(job, "fusing", "the trained stages are put together")
    world.save_job(job)
    runs.order_fusing(world, run)
    return True
