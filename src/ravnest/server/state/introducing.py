"""Providers are asked to measure the lines between them, before they are planned with.

Everybody in a small pool measures everybody; in a large one each measures some. Both directions are
tried, for often only one of two machines can be reached.
"""

from collections.abc import Sequence

from ravnest.api.control import Admit, PeerAddress, Probe
from ravnest.api.dialling import between, chosen
from ravnest.server.state.effects import Wake
from ravnest.server.state.records import Provider
from ravnest.server.state.world import World

ADMITTED_S = 600.0
"""How long a provider that is asked to measure a line is answered at its other end. Its call waits
for its turn there, and it has other lines to measure first."""


def introduce(world: World, id: int, now: float) -> None:
    """A provider has told its figures: it and others that are free measure what is between them."""
    presence, newcomer = world.heard_of(id), world.providers[id]
    if presence.introduced or id not in world.free:
        return
    presence.introduced = True
    # One of two must have an address.
    useful = world.free if id in world.listening else world.free & world.listening
    others = _some(sorted(useful - {id}), world.settings.most_peers, id)
    _ask(world, newcomer, [world.providers[other] for other in others], now)
    for other in others:
        _ask(world, world.providers[other], [newcomer], now)


def _some(others: Sequence[int], most: int, start: int) -> list[int]:
    """At most so many, spread over all of them, and not the same for everybody."""
    if len(others) <= most:
        return list(others)
    places = {(start + place * len(others) // most) % len(others) for place in range(most)}
    return [others[place] for place in sorted(places)]


def _ask(world: World, provider: Provider, others: Sequence[Provider], now: float) -> None:
    # Who was not reached may have been busy, or behind a wall that is open now.
    found = provider.figures.peers if provider.figures else ()
    known = {peer.provider for peer in found if peer.mbps > 0}
    peers = tuple(
        PeerAddress(provider=other.id, addresses=addresses)
        for other in others
        if other.id not in known and (addresses := addresses_for(world, provider.id, other.id))
    )
    if not peers or not world.heard_of(provider.id).connected:
        return
    for peer in peers:
        world.send(peer.provider, Admit(provider=provider.id, seconds=ADMITTED_S))
    world.send(provider.id, Probe(peers=peers))
    before, _ = world.probing.get(provider.id, (frozenset(), 0.0))
    asked = before | {peer.provider for peer in peers}
    until = now + world.settings.probe_s + world.settings.probe_each_s * len(asked)
    world.probing[provider.id] = (asked, until)
    world.order(Wake(at=until))


def addresses_for(world: World, dialler: int, target: int) -> tuple[str, ...]:
    """Where that provider may try to reach the other one: of what the other one has named, all
    that is not a way to dial the services of third parties."""
    here, there = world.providers.get(dialler), world.providers.get(target)
    if here is None or there is None or there.figures is None:
        return ()
    sources = world.heard_of(target).source, world.heard_of(dialler).source
    reach = between(*sources, lan=here.caps.lan)
    return tuple(map(str, chosen(there.figures.addresses, reach)))


def answered(world: World, provider: Provider) -> None:
    """What it was asked for and has told by now is not waited for any more."""
    if provider.id in world.probing:
        asked, until = world.probing[provider.id]
        told = {peer.provider for peer in provider.figures.peers} if provider.figures else set()
        if asked - told:
            world.probing[provider.id] = (asked - told, until)
        else:
            del world.probing[provider.id]


def measured_by(world: World, now: float) -> float:
    """Until when the lines between free providers are being measured."""
    for id, (_, until) in list(world.probing.items()):
        if until <= now or id not in world.free:
            del world.probing[id]
    return max((until for _, until in world.probing.values()), default=now)
