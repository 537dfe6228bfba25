"""A provider that refuses a job for a reason that passes is asked again after a while.

A full disk, a broken line or a pause end some day, and a job with few providers must not be without
them for ever. But each refusal costs the others a start, so it takes longer every time.
"""

from ravnest.server.state.effects import Wake
from ravnest.server.state.records import Job
from ravnest.server.state.world import Declined, World

_MOST_S = 3600.0


def declined(world: World, job: Job, provider: int, now: float) -> None:
    entry = world.declined.setdefault(job.id, {}).setdefault(provider, Declined())
    entry.times += 1
    entry.until = now + _wait(world, entry)
    world.order(Wake(at=entry.until))


def _wait(world: World, entry: Declined) -> float:
    return min(world.settings.declined_s * 2.0 ** min(entry.times - 1, 10), _MOST_S)


def ask_those_again(world: World, job: Job, now: float) -> None:
    """Whose time is over counts for this job as before; the others are waited for."""
    for entry in world.declined.get(job.id, {}).values():
        if entry.until is None:
            continue
        if now < entry.until:
            world.order(Wake(at=entry.until))
        else:
            entry.until = None
            world.judged.pop(job.id, None)
