"""What follows from time alone: providers that stay away, runs that stand still or do not end."""

from ravnest.server.state import leaving_out, retrying, runs, standstill
from ravnest.server.state.effects import Wake
from ravnest.server.state.records import Part, Run
from ravnest.server.state.words import counted
from ravnest.server.state.world import World


def pass_time(world: World, now: float) -> None:
    """Do what is due, and ask to be woken for what is due next."""
    for part in list(world.at_work.values()):
        presence = world.heard_of(part.provider)
        if part.is_open and not presence.connected:
            due = world.since(presence.since, now) + world.settings.away_s
            if due <= now:
                name = world.called(part.provider)
                minutes = counted(world.settings.away_s / 60, "minute")
                leaving_out.lose(world, part, f"{name} has been away for {minutes}", now)
            else:
                world.order(Wake(at=due))
    for run in list(world.runs.values()):
        if run.state == "fusing":
            if run.job in world.retry_at and retrying.is_due(world, run.job, now):
                runs.order_fusing(world, run)
            continue
        ended = _first_ends(world, run)
        for part in list(world.open_parts(run.job)):
            # Losing one may have ended the others.
            limit = _limit(world, run, part, ended, now) if part.is_open else None
            if limit is not None and limit[0] <= now:
                name = world.called(part.provider)
                leaving_out.lose(world, part, f"{name} {limit[1]} in time", now)
            elif limit is not None:
                world.order(Wake(at=limit[0]))
        standstill.judge(world, run, now)


def _first_ends(world: World, run: Run) -> dict[int, float]:
    """Cluster → when the first of its stages ended."""
    found: dict[int, float] = {}
    for part in world.of_run.get(run.job, ()):
        if part.ended_at is not None:
            found[part.cluster] = min(part.ended_at, found.get(part.cluster, part.ended_at))
    return found


def _limit(
    world: World, run: Run, part: Part, ended: dict[int, float], now: float
) -> tuple[float, str] | None:
    """Until when a part may stay as it is, and what it has not done by then."""
    if run.state == "preparing":
        if part.state != "assigned":
            return None
        pulse = world.pulses.get(part.id)
        began_at = world.since(run.began_at, now)
        got_at = began_at if pulse is None else world.since(pulse.advanced_at, now)
        due = min(got_at + world.settings.prepare_s, began_at + world.settings.prepare_most_s)
        return due, "has not prepared its part"
    # Stages of a cluster are done together; clusters are not.
    since = ended.get(part.cluster) if run.stopped_at is None else run.stopped_at
    if since is None:
        return None
    due = world.since(since, now) + world.settings.stop_s
    return max(due, world.returns_by(part, now)), "has not ended with the others"
