"""The entrance: an event goes in with the time, its effects come out."""

from ravnest.api.control import Beat, Leaving, Measured, Prepared, Refused
from ravnest.server.state import clock, deadlines, fusing, jobs, parts, providers, runs, standstill
from ravnest.server.state.effects import Effects, Wake
from ravnest.server.state.events import (
    ClockMoved,
    Connected,
    Disconnected,
    EnrolledNow,
    Event,
    Fetched,
    Fused,
    FusingFailed,
    Heard,
    JobSteered,
    LongAgo,
    Noted,
    NotHanded,
    PartEnded,
    PlanFailed,
    PlanMade,
    ProviderSteered,
    Started,
    Submitted,
    Tick,
    WorkReported,
)
from ravnest.server.state.world import World


def handle(world: World, event: Event, now: float) -> Effects:
    """What follows from this. A `JobError` means that nothing has changed."""
    world.out = Effects()
    version = world.pool_version
    match event:
        case Heard():
            _heard(world, event, now)
        case WorkReported():
            standstill.reported(world, event.provider, event.assignment, event.report, now)
        case Fetched():
            parts.fetched(world, event, now)
        case Started():
            _started(world, now)
        case ClockMoved():
            clock.moved(world, event.by_s, now)
        case EnrolledNow():
            providers.enrolled(world, event, now)
        case Connected():
            providers.connected(world, event, now)
        case Disconnected():
            providers.disconnected(world, event.provider, event.reason, now)
        case NotHanded():
            parts.not_handed(world, event, now)
        case Noted():
            world.note(now, event.level, event.text, event.job, event.provider)
        case PartEnded():
            parts.ended(world, event, now)
            providers.wish_to_leave(world, event.provider, now)
        case ProviderSteered():
            providers.steered(world, event, now)
        case Submitted():
            jobs.submitted(world, event.job, now)
        case JobSteered():
            jobs.steered(world, event, now)
        case PlanMade():
            jobs.planned(world, event, now)
        case PlanFailed():
            jobs.not_planned(world, event, now)
        case Fused() | FusingFailed():
            fusing.ended(world, event, now)
        case LongAgo():
            providers.remove_awaited(world, now)
            providers.forget_removed(world, event.before)
            for killer in [k for k in world.killers.values() if k.last_at < event.before]:
                world.forget_killer(killer)
        case Tick():
            deadlines.pass_time(world, now)
    # Thousands of heartbeats and reports: they change a few fields, and mostly nothing follows.
    if (
        not isinstance(event, Heard | WorkReported | Fetched | Noted)
        or world.out.orders
        or world.pool_version != version
    ):
        jobs.consider(world, now)
    world.out.seal()
    return world.out


def _heard(world: World, event: Heard, now: float) -> None:
    provider, message = event.provider, event.message
    world.heard_of(provider).seen_at = now
    match message:
        case Beat():
            providers.beat(world, provider, message, now)
        case Measured():
            providers.measured(world, provider, message, now)
        case Prepared():
            parts.prepared(world, provider, message, now)
        case Refused():
            parts.refused(world, provider, message, now)
            providers.wish_to_leave(world, provider, now)
        case Leaving():
            providers.leaving(world, provider, message, now)
        case _:  # hellos, reports and ends come as events of their own
            raise AssertionError(f"{type(message).__name__} is not for the state")


def _started(world: World, now: float) -> None:
    """Take up what the server before this one was about to do."""
    for job in world.jobs.values():
        if job.state == "planning":
            world.move(job, "waiting", "the server was restarted while it was planned")
    for run in world.runs.values():
        if run.state == "fusing":
            runs.order_fusing(world, run)
        elif run.state in ("preparing", "running"):
            runs.keep_watch(world, run, now)
    deadlines.pass_time(world, now)
    world.order(Wake(at=now + world.settings.return_s))
