"""A provider enrols, comes, is heard of, is steered, goes."""

import math

from ravnest.api.control import Admit, Beat, Leaving, Measured, SetPause, Welcome
from ravnest.server.state import introducing, leaving_out, parts, pool, runs
from ravnest.server.state.effects import Close, Wake
from ravnest.server.state.events import Connected, EnrolledNow, ProviderSteered
from ravnest.server.state.records import Provider
from ravnest.server.state.world import Presence, World

AWAITED_S = 3600.0
"""How long after it has enrolled a provider may connect for the first time."""
MOST_REMOVED = 1000
"""That are remembered, of those that nothing is about; twice as many for a while."""


def enrolled(world: World, event: EnrolledNow, now: float) -> None:
    provider = Provider(
        id=event.provider,
        name=event.name,
        digest=event.digest,
        facts=event.facts,
        caps=event.caps,
        token=event.token,
        awaited_since=now,
    )
    world.providers[provider.id] = provider
    world.namesakes[provider.name] += 1
    world.presence[provider.id] = Presence(since=now, seen_at=now)
    world.save_provider(provider)
    world.note(now, "info", f"{world.called(provider.id)} is a provider now", provider=provider.id)
    # Whoever enrols and leaves, again and again, leaves no more than that behind.
    if sum(known.removed for known in world.providers.values()) > 2 * MOST_REMOVED:
        forget_removed(world, -math.inf)


def connected(world: World, event: Connected, now: float) -> None:
    id, hello = event.provider, event.hello
    provider, presence = world.providers[id], world.heard_of(id)
    if provider.awaited_since is not None:
        provider.awaited_since = None
        world.save_provider(provider)
    if not presence.connected:
        presence.since = now
        world.note(now, "info", f"{world.called(id)} is connected", provider=id)
    if hello.name is not None and hello.name != provider.name:
        before = world.called(id)
        _give_up_name(world, provider.name)
        world.namesakes[hello.name] += 1
        provider.name = hello.name
        world.note(now, "info", f"{before} is called {world.called(id)} now", provider=id)
        world.save_provider(provider)
    presence.connected, presence.seen_at, presence.source = True, now, event.source
    presence.state, presence.assignment = hello.state, hello.assignment
    presence.leaving, presence.told_to_drop, presence.introduced = False, None, False
    if (provider.facts, provider.caps) != (hello.facts, hello.caps):
        provider.facts, provider.caps = hello.facts, hello.caps
        world.save_provider(provider)
        _may_be_willing_now(world, id)
    world.out.providers.add(id)
    settings = world.settings
    world.send(
        id,
        Welcome(
            provider=id,
            name=provider.name,
            now=now,
            heartbeat_s=settings.heartbeat_s,
            report_s=settings.report_s,
        ),
    )
    # Also if it was resumed while it was away, and has not heard of that.
    if provider.paused or hello.paused:
        world.send(id, SetPause(paused=provider.paused))
    part = world.at_work.get(id)
    if hello.assignment is not None and (part is None or part.id != hello.assignment):
        parts.drop_unknown(world, id, hello.assignment)
    if part is not None:
        if part.id == hello.assignment:
            parts.catch_up(world, part, hello.state, now)
        else:
            parts.missing(world, part, now)
    wish_to_leave(world, id, now)
    pool.review(world, id, now)


def _may_be_willing_now(world: World, id: int) -> None:
    """Its owner has changed what it offers: what it refused before, it may take now."""
    for job in world.jobs.values():
        if job.refused.pop(id, None) is not None:
            world.judged.pop(job.id, None)
            world.save_job(job)


def disconnected(world: World, id: int, reason: str, now: float) -> None:
    presence = world.heard_of(id)
    if not presence.connected:
        return
    presence.connected, presence.since, presence.beat = False, now, None
    world.out.providers.add(id)
    text = f"{world.called(id)} is away{f': {reason}' if reason else ''}"
    part = world.at_work.get(id)
    if part is None:
        world.note(now, "info", text, provider=id)
    else:
        world.note(now, "warning", text, part.job, id)
        world.order(Wake(at=now + world.settings.away_s))
    pool.review(world, id, now)


def beat(world: World, id: int, message: Beat, now: float) -> None:
    presence = world.heard_of(id)
    presence.seen_at, presence.beat = now, message
    world.out.providers.add(id)
    if (presence.state, presence.assignment) == (message.state, message.assignment):
        return
    presence.state, presence.assignment, presence.since = message.state, message.assignment, now
    part = world.at_work.get(id)
    if message.assignment is not None and (part is None or part.id != message.assignment):
        parts.drop_unknown(world, id, message.assignment)
    wish_to_leave(world, id, now)
    pool.review(world, id, now)


def wish_to_leave(world: World, id: int, now: float) -> None:
    """What the owner wants ends the run that the provider works for; without one it goes."""
    part, presence, provider = world.at_work.get(id), world.heard_of(id), world.providers[id]
    if part is None:
        if provider.leaves:
            remove(world, provider, "has left", now)
        return
    # A pause is not among the reasons: work that has begun goes on, for others wait for it.
    if presence.state == "resting":
        runs.depart(world, part, "is outside its hours", now)
    elif presence.leaving or provider.leaves:
        runs.depart(world, part, "leaves", now)


def measured(world: World, id: int, message: Measured, now: float) -> None:
    provider = world.providers[id]
    changed = provider.figures != message.figures
    world.set_figures(provider, message.figures)
    for peer in message.figures.peers:
        if peer.mbps > 0 and peer.provider in world.providers:
            world.reached.add(peer.provider)
            world.out.providers.add(peer.provider)
    world.heard_of(id).seen_at = now
    world.save_provider(provider)
    if changed and id in world.free:
        pool.pool_changed(world, now)
    pool.review(world, id, now)
    introducing.answered(world, provider)
    introducing.introduce(world, id, now)


def leaving(world: World, id: int, message: Leaving, now: float) -> None:
    presence, part, name = world.heard_of(id), world.at_work.get(id), world.called(id)
    presence.leaving = True
    why = f"leaves{f': {message.reason}' if message.reason else ''}"
    if part is not None and message.now:
        leaving_out.lose(world, part, f"{name} {why}", now)
    elif part is not None:
        runs.depart(world, part, why, now)
    pool.review(world, id, now)


def steered(world: World, event: ProviderSteered, now: float) -> None:
    provider = world.providers[event.provider]
    if event.action == "remove":
        remove(world, provider, f"was removed by {event.by}", now)
        return
    if event.action == "leave":
        provider.leaves = True
    else:
        before, provider.paused = provider.paused, event.action == "pause"
        world.send(provider.id, SetPause(paused=provider.paused))
        if provider.paused != before:
            how = f"was {'paused' if provider.paused else 'resumed'} by {event.by}"
            world.note(now, "info", f"{world.called(provider.id)} {how}", provider=provider.id)
    world.save_provider(provider)
    wish_to_leave(world, provider.id, now)
    pool.review(world, provider.id, now)


def remove(world: World, provider: Provider, how: str, now: float) -> None:
    if provider.removed:  # what it says until its connection is closed is still heard
        return
    part, name = world.at_work.get(provider.id), world.called(provider.id)
    _give_up_name(world, provider.name)
    provider.removed, provider.digest, provider.removed_at = True, "", now
    world.set_figures(provider, None)
    if part is not None:
        leaving_out.lose(world, part, f"{name} {how}", now)
    world.save_provider(provider)
    world.note(now, "info", f"{name} {how}", provider=provider.id)
    world.order(Close(provider=provider.id, reason=f"this provider {how}", final=True))
    world.heard_of(provider.id).connected = False
    # Its certificate is good for weeks to come: the others do not answer it from now on.
    for other in sorted(world.listening):
        world.send(other, Admit(provider=provider.id, seconds=0.0))
    pool.review(world, provider.id, now)


def _give_up_name(world: World, name: str) -> None:
    world.namesakes[name] -= 1
    if not world.namesakes[name]:
        del world.namesakes[name]


def remove_awaited(world: World, now: float) -> None:
    """Those that have enrolled, and then never come. While the server is not there nobody can."""
    for provider in list(world.providers.values()):
        since = provider.awaited_since
        if since is None or provider.removed:
            continue
        if world.since(since, now) + AWAITED_S <= now:
            remove(world, provider, "has never connected", now)


def forget_removed(world: World, before: float) -> None:
    """Those that were removed before that moment, or before many others, and that no run and no
    plan is about."""
    needed = {part.provider for part in world.parts.values()}
    for job in world.jobs.values():
        needed |= {part.provider for part in job.plan.parts} if job.plan is not None else set()
    # Numbers, and the certificates with them, are never given again: the highest one stays.
    needed.add(max(world.providers, default=0))
    removed = [p for p in world.providers.values() if p.removed and p.id not in needed]
    removed.sort(key=lambda provider: provider.removed_at)
    for place, provider in enumerate(removed):
        if provider.removed_at < before or place < len(removed) - MOST_REMOVED:
            del world.providers[provider.id]
            world.presence.pop(provider.id, None)
            world.probing.pop(provider.id, None)
            world.reached.discard(provider.id)
            world.out.remove(provider.kind, provider.key)
