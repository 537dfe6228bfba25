"""What a process has not finished is begun again after a while: a few times if it died, and until
there is room if it was for lack of that."""

from ravnest.api.views import JobState
from ravnest.server.state.effects import Wake
from ravnest.server.state.records import Job
from ravnest.server.state.world import World

MOST_RETRIES = 3


def later(world: World, job: str, now: float) -> None:
    world.retry_at[job] = now + world.settings.retry_s
    world.order(Wake(at=world.retry_at[job]))


def wait_for_room(world: World, job: Job, state: JobState, reason: str, now: float) -> None:
    """For as long as it takes; nobody tells the server when somebody has made room."""
    if job.id not in world.roomless:
        world.roomless.add(job.id)
        world.note(now, "warning", f"waits for room on the server's disk: {reason}", job.id)
    world.move(job, state, f"waits for room on the server's disk: {reason}")
    world.retry_at[job.id] = now + world.settings.room_s
    world.order(Wake(at=world.retry_at[job.id]))


def is_due(world: World, job: str, now: float) -> bool:
    """Whether nothing has to be waited for; if not, the time is asked for anew."""
    at = world.retry_at.get(job)
    if at is None:
        return True
    # Further ahead than it was ever put: the clock was put back.
    if now < at <= now + max(world.settings.retry_s, world.settings.room_s):
        world.order(Wake(at=at))
        return False
    del world.retry_at[job]
    return True
