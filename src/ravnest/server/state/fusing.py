"""Putting the stages of a run together ends, well or not. What was trained is given up last.

A fusion becomes the result only if it is no worse, by a margin, than the last one that did. If it
is refused, the last good one stays the result, other clusters of the run are tried, and then the
run counts as lost: the job goes on from the last good weights as its rules say.
"""

from ravnest.server.state import leaving_out, retrying, runs
from ravnest.server.state.events import Fused, FusingFailed
from ravnest.server.state.records import Job, Run, Validation
from ravnest.server.state.recovery import fusible
from ravnest.server.state.words import counted, figure
from ravnest.server.state.world import World

LOST_GAIN = 0.5
"""Of what training has gained over the untrained model: a fusion may lose so much of it again,"""
TIMES_WORSE = 2.0
"""or have so many times the last loss, whichever allows more. A validation loss goes up in honest
runs too, when a model overfits or is stopped in the middle of an epoch."""


def ended(world: World, event: Fused | FusingFailed, now: float) -> None:
    run = world.runs.get(event.job)
    if run is None or run.number != event.run or run.state != "fusing":
        return
    if isinstance(event, Fused):
        world.roomless.pop(event.job, None)
        runs.fused(world, run, event.bytes, judged(event.validation), now)
    elif event.full:
        retrying.wait_for_room(world, world.jobs[run.job], "fusing", event.reason, now)
    elif event.crashed:
        _crashed(world, run, event.reason, now)
    else:
        _cannot_be_fused(world, run, event.reason, now, event.stage, refused=event.refused)


def why_refused(found: Validation) -> str:
    """Why a fusion does not become the result; nothing if it does."""
    if found.not_finite:
        return f"the tensor {found.not_finite!r} has numbers that are not finite"
    best = found.untrained_loss if found.last_loss is None else found.last_loss
    if not found.rows or best is None:
        return ""
    gained = 0.0 if found.untrained_loss is None else abs(found.untrained_loss - best)
    most = best + max(LOST_GAIN * gained, (TIMES_WORSE - 1) * abs(best))
    if found.loss is not None and found.loss <= most:
        return ""
    return f"{judged(found)}; {figure(most)} would be accepted"


def judged(found: Validation | None) -> str:
    """The figures, in words."""
    if found is None or not found.rows:
        note = found.note if found is not None else ""
        return f"not validated{f': {note}' if note else ''}"
    losses = (("before", found.last_loss), ("untrained", found.untrained_loss))
    beside = ", ".join(f"{figure(loss)} {when}" for when, loss in losses if loss is not None)
    own = "that is not finite" if found.loss is None else f"of {figure(found.loss)}"
    rows = counted(found.rows, "held-out row")
    return f"a loss {own} on {rows}{f' ({beside})' if beside else ''}"


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


def _cannot_be_fused(
    world: World,
    run: Run,
    reason: str,
    now: float,
    stage: int | None = None,
    *,
    refused: bool = False,
) -> None:
    """Every cluster holds the whole model: perhaps another one does. Whoever has brought back what
    is no stage is done without from then on, as if its worker had failed."""
    assert run.fuses is not None
    how = f"the stages of cluster {run.fuses} cannot be put together"
    if refused:
        how = f"the weights of cluster {run.fuses} are refused, those before stay the result"
    cause = f"{how}: {reason}"
    world.note(now, "warning", cause, run.job)
    for part in world.of_run[run.job]:
        if (part.cluster, part.stage) == (run.fuses, stage):
            leaving_out.consider(world, part, cause)
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
