"""What a process has not finished is begun again after a while: a few times if it died, and until
there is room if it was for lack of that."""

from ravnest.api.views import JobState
from ravnest.server.state.effects import Wake
from ravnest.server.state.records import Job
from ravnest.server.state.world import World

MOST_RETRIES = 3
_MOST_WAIT_S = 3600.0


def later(world: World, job: str, now: float) -> None:
    world.retry_at[job] = now + world.settings.retry_s
    world.order(Wake(at=world.retry_at[job]))


def wait_for_room(world: World, job: Job, state: JobState, reason: str, now: float) -> None:
    """For as long as it takes; nobody tells the server when somebody has made room. Each time it is
    tried others wait for their turn, so it is tried less and less often."""
    tried = world.roomless.get(job.id, 0)
    world.roomless[job.id] = tried + 1
    if not tried:
        world.note(now, "warning", f"waits for room on the server's disk: {reason}", job.id)
    world.move(job, state, f"waits for room on the server's disk: {reason}")
    wait_s = min(world.settings.room_s * 2.0 ** min(tried, 10), _MOST_WAIT_S)
    world.retry_at[job.id] = now + wait_s
    world.order(Wake(at=world.retry_at[job.id]))


def is_due(world: World, job: str, now: float) -> bool:
    """Whether nothing has to be waited for; if not, the time is asked for anew."""
    at = world.retry_at.get(job)
    if at is not None and now < at:
        world.order(Wake(at=at))
        return False
    world.retry_at.pop(job, None)
    return True
