"""A provider that fails by itself is done without, as long as the job can be done without it.

One bad machine must not use up the runs that a job may lose. A job that fails everywhere must still
end: each provider is excused once, and whoever is asked again fails at the job's expense.
"""

from ravnest.server.state import pool, runs
from ravnest.server.state.records import Job, Part
from ravnest.server.state.world import World


def lose(world: World, part: Part, cause: str, now: float) -> None:
    """A part is lost, and nobody is to blame but the provider that has it."""
    consider(world, part, cause)
    runs.lose(world, part, cause, now)


def consider(world: World, part: Part, cause: str) -> bool:
    """It does not do its part, and nobody else is to blame; whether that is excused."""
    job, run = world.jobs[part.job], world.runs[part.job]
    if part.provider in job.excused or not _others(world, job, part.provider):
        return False
    job.left_out[part.provider] = cause
    job.excused.append(part.provider)
    run.excused = True
    world.save_job(job)
    world.save_run(run)
    return True


def accuses(world: World, part: Part, culprit: int, cause: str) -> None:
    """Its worker has failed and says that another one is to blame. Once, that may be an accident of
    both. The second time the accused is done without, and whoever goes on blaming is the reason
    itself."""
    accused = world.accusers.setdefault(part.job, {}).setdefault(part.provider, [])
    accused.append(culprit)
    blamed = next(one for one in world.of_run[part.job] if one.provider == culprit)
    if accused == [culprit, culprit] and consider(world, blamed, cause):
        return
    if len(accused) > 1:
        consider(world, part, cause)


def _others(world: World, job: Job, failed: int) -> bool:
    """Whether somebody else is there for this job, free or at work."""
    return any(
        pool.why_not_for(world, job, world.providers[id]) is None
        for id in (*world.free, *world.at_work)
        if id != failed
    )


def ask_again(world: World, job: Job) -> bool:
    """It cannot be done without them; whether there was anybody to ask."""
    if not job.left_out:
        return False
    job.left_out = {}
    world.judged.pop(job.id, None)
    world.save_job(job)
    return True


def nobody_else(world: World, job: Job) -> bool:
    return not _others(world, job, 0)
