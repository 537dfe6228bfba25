"""The clock has moved: somebody has set it, or the machine has slept.

It is as if the server had been away, and had been started now. Nobody is late because of it, and
nothing is waited for longer than it was meant to be: limits begin anew (`World.since`), and what
was put off until some moment is due. Times in records stay as they are; people may want to know.
"""

from ravnest.server.state import deadlines
from ravnest.server.state.effects import Wake
from ravnest.server.state.words import lasting
from ravnest.server.state.world import World


def moved(world: World, by_s: float, now: float) -> None:
    how = f"{lasting(abs(by_s))} {'ahead' if by_s > 0 else 'back'}"
    text = f"the server's clock was moved {how}, or the machine slept; all limits begin anew"
    world.note(now, "warning", text)
    world.started_at = now
    for presence in world.presence.values():
        presence.since = min(presence.since, now)
        presence.seen_at = min(presence.seen_at, now)
    world.retry_at = dict.fromkeys(world.retry_at, now)
    for declined in world.declined.values():
        for entry in declined.values():
            entry.until = None if entry.until is None else now
    world.probing.clear()
    world.held_since = None
    world.pool_changed_at = now + world.settings.return_s - world.settings.settle_s
    deadlines.pass_time(world, now)
    world.order(Wake(at=now + world.settings.return_s))
