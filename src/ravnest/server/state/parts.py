"""What agents say about their part of a run."""

from ravnest.api.control import AgentState, Begin, Prepared, Refused, Settled, Steer
from ravnest.server.state import declining, leaving_out, pool, runs
from ravnest.server.state.effects import Hand, Wake
from ravnest.server.state.events import Fetched, NotHanded, PartEnded
from ravnest.server.state.records import Part
from ravnest.server.state.world import Presence, Pulse, World

_FETCHED_BYTES = 1 << 20


def own_part(world: World, provider: int, assignment: str) -> Part | None:
    part = world.parts.get(assignment)
    return part if part is not None and part.provider == provider else None


def not_handed(world: World, event: NotHanded, now: float) -> None:
    """Nothing may wait for ever for a provider that was never told."""
    part = world.parts.get(event.part)
    if part is not None and part.is_open:
        name = world.called(part.provider)
        runs.lose(world, part, f"{name} could not be told its part: {event.reason}", now)


def prepared(world: World, provider: int, message: Prepared, now: float) -> None:
    part = own_part(world, provider, message.assignment)
    if part is None or not part.is_open:
        drop_unknown(world, provider, message.assignment)
        return
    part.relayed = message.relayed
    if part.state == "training":  # it had begun already, and is where it was before
        world.save_part(part)
        catch_up(world, part, "ready", now)
        return
    part.state = "prepared"
    world.save_part(part)
    _train_if_all_prepared(world, part.job, now)


def _train_if_all_prepared(world: World, job: str, now: float) -> None:
    run = world.runs[job]
    if run.state == "preparing" and all(part.state == "prepared" for part in world.of_run[job]):
        runs.train(world, run, now)


def fetched(world: World, event: Fetched, now: float) -> None:
    """A provider gets files of its part, which may take hours: it has not been lost. Byte by byte
    it is not given its time anew."""
    part = own_part(world, event.provider, event.assignment)
    if part is None or part.state != "assigned":
        return
    pulse = world.pulses.setdefault(part.id, Pulse(advanced_at=world.runs[part.job].began_at))
    pulse.traffic += event.bytes
    if pulse.traffic >= _FETCHED_BYTES:
        pulse.traffic, pulse.advanced_at = 0, now


def refused(world: World, provider: int, message: Refused, now: float) -> None:
    part = own_part(world, provider, message.assignment)
    if part is None or not part.is_open:
        return
    job, run = world.jobs[part.job], world.runs[part.job]
    name = world.called(provider)
    if run.state != "preparing":
        leaving_out.lose(world, part, f"{name} does not go on: {message.reason}", now)
        return
    # Nothing is lost but time: the next plan is made without it.
    if message.lasting:
        job.refused[provider] = message.reason
    else:
        declining.declined(world, job, provider, now)
    part.state, part.reason = "failed", message.reason
    world.save_part(part)
    world.save_job(job)
    pool.review(world, provider, now)
    world.note(now, "warning", f"{name} refused its part: {message.reason}", job.id, provider)
    run.departing = run.departing or f"{name} refused"
    runs.stop(world, run, f"{name} refused its part: {message.reason}", now)


def ended(world: World, event: PartEnded, now: float) -> None:
    """The worker has ended, and what it saved has been brought back."""
    part = own_part(world, event.provider, event.assignment)
    world.send(event.provider, Settled(assignment=event.assignment))
    if part is None or not part.is_open:
        return
    end, name = event.end, world.called(event.provider)
    part.end, part.results, part.ended_at = end, event.results, now
    presence = world.heard_of(event.provider)
    if presence.assignment == part.id:  # it forgets it when it is told that all is settled
        presence.state, presence.assignment = "idle", None
    run = world.runs[part.job]
    if run.state == "preparing":  # a worker that nobody has started
        leaving_out.lose(world, part, f"{name} ended before training began: {end.reason}", now)
        return
    if end.outcome == "done" and not event.results:
        cause = f"{name} says that its work is done and has brought back nothing"
        leaving_out.lose(world, part, cause, now)
        return
    if end.outcome == "failed":
        # What it calls anything else is its own words, and blames nobody.
        others = (one for one in world.of_run[part.job] if one is not part)
        culprit = next((one.provider for one in others if one.node == end.culprit), None)
        blamed = "" if culprit is None else f" because of {world.called(culprit)}"
        cause = f"the worker of {name} failed{blamed}: {end.reason or 'no reason given'}"
        # One that lacked memory was held by its limit: the same graph may do with smaller batches.
        if end.signal is not None:
            killer = world.killer_of(world.jobs[part.job])
            killer.workers[part.provider] = f"{name}: {end.reason or f'signal {end.signal}'}"
            killer.last_at = now
            world.killers[killer.key] = killer
            world.out.save(killer)
        if culprit is None:
            leaving_out.lose(world, part, cause, now)
        else:
            leaving_out.accuses(world, part, culprit, cause)
            runs.lose(world, part, cause, now, secondhand=True)
        return
    part.state = "ended"
    world.save_part(part)
    pool.review(world, part.provider, now)
    if end.outcome == "stopped" and run.state in ("running", "paused"):
        cause = f"{name} stopped by itself"
        if not leaving_out.consider(world, part, cause):
            run.lost, run.cause = True, run.cause or cause
        run.departing = run.departing or f"{name} stopped"
        runs.stop(world, run, f"{name} stopped: {end.reason or 'by itself'}", now)
    world.order(Wake(at=now + world.settings.stop_s))
    runs.close_if_ended(world, run, now)


def catch_up(world: World, part: Part, state: AgentState, now: float) -> None:
    """An agent is at work on its part; tell it what it may have missed."""
    run = world.runs[part.job]
    if run.state == "preparing":
        if state == "ready" and part.state == "assigned":
            part.state = "prepared"
            world.save_part(part)
            _train_if_all_prepared(world, part.job, now)
        return
    if state == "ready":
        world.send(part.provider, Begin(assignment=part.id))
    if run.state == "paused":
        world.send(part.provider, Steer(assignment=part.id, action="pause"))
    elif run.state == "stopping":
        world.send(part.provider, Steer(assignment=part.id, action="stop"))


def missing(world: World, part: Part, now: float) -> None:
    """An agent has come back and knows nothing of its part."""
    if part.state == "training":
        name = world.called(part.provider)
        leaving_out.lose(world, part, f"{name} has started anew and lost its part of the run", now)
        return
    part.state = "assigned"
    world.save_part(part)
    world.order(Hand(provider=part.provider, part=part.id))


def drop_unknown(world: World, provider: int, assignment: str) -> None:
    """An agent is at work on something that is over for the server. It is told once."""
    presence: Presence = world.heard_of(provider)
    if presence.told_to_drop != assignment:
        presence.told_to_drop = assignment
        action = Steer(assignment=assignment, action="drop", reason="this run is over")
        world.send(provider, action)
