"""What a process has not finished is begun again after a while, a few times."""

from ravnest.server.state.effects import Wake
from ravnest.server.state.world import World

MOST_RETRIES = 3


def later(world: World, job: str, now: float) -> None:
    world.retry_at[job] = now + world.settings.retry_s
    world.order(Wake(at=world.retry_at[job]))


def is_due(world: World, job: str, now: float) -> bool:
    """Whether nothing has to be waited for; if not, the time is asked for anew."""
    at = world.retry_at.get(job)
    if at is None:
        return True
    # Further ahead than it was ever put: the clock was put back.
    if now < at <= now + world.settings.retry_s:
        world.order(Wake(at=at))
        return False
    del world.retry_at[job]
    return True
