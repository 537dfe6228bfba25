"""Who is free, who may work on what, and what planning is told about them."""

from collections import Counter
from collections.abc import Iterable

from ravnest.api.machine import Figures, Precision, provider_name
from ravnest.plan import ProviderSpec
from ravnest.server.state.records import Job, Provider
from ravnest.server.state.world import World

LEAST_FIGURE, MOST_FIGURE = 1e-3, 1e9
"""Mbit/s, GFLOP/s and ms. Planning divides by what agents say, and one of them must not end the
planning of others: a figure outside of this range counts as its nearer end."""


def why_not_free(world: World, provider: Provider) -> str | None:
    """Why nothing can be given to this provider now; None if it can."""
    presence = world.heard_of(provider.id)
    if provider.id in world.at_work:
        return "at work"
    if not presence.connected:
        return "away"
    if presence.leaving or provider.leaves:
        return "leaving"
    if provider.figures is None:
        return "not measured yet"
    if provider.paused or presence.state == "paused":
        return "paused by the owner"
    if presence.state == "resting":
        return "outside their hours"
    if presence.state != "idle" or presence.assignment is not None:
        return "at work"
    return None


def why_not_for(world: World, job: Job, provider: Provider) -> str | None:
    """Why a provider that is free does not work on this job."""
    if provider.id in job.refused:
        return "not willing"
    declined = world.declined.get(job.id, {}).get(provider.id)
    if declined is not None and declined.until is not None:
        return "not able to for now"
    if provider.id in job.left_out:
        return "left out after failing at it"
    if job.has_script and provider.caps.scripts == "never":
        return "not running scripts of others"
    return None


def review(world: World, provider_id: int, now: float) -> None:
    """Whether a provider is free, after something has changed about it."""
    provider = world.providers[provider_id]
    free = not provider.removed and why_not_free(world, provider) is None
    if free != (provider_id in world.free):
        (world.free.add if free else world.free.discard)(provider_id)
        pool_changed(world, now)


def pool_changed(world: World, now: float) -> None:
    world.pool_version += 1
    world.pool_changed_at = max(world.pool_changed_at, now)


def willing(world: World, job: Job) -> list[Provider]:
    """The free providers that may work on this job, at most as many as it wants: the best."""
    found = [
        provider
        for provider in map(world.providers.__getitem__, sorted(world.free))
        if why_not_for(world, job, provider) is None
    ]
    if job.max_providers is not None and len(found) > job.max_providers:
        found = sorted(found, key=lambda one: _worth(one, job), reverse=True)[: job.max_providers]
    return sorted(found, key=lambda provider: provider.id)


def _worth(provider: Provider, job: Job) -> float:
    figures = provider.figures
    return figures.memory_bytes * rate_of(figures, job.precision) if figures else 0.0


def why_nobody(world: World, job: Job) -> str:
    """For people, when there is nobody to plan with."""
    counted: Counter[str] = Counter()
    for provider in world.providers.values():
        if not provider.removed:
            why = why_not_free(world, provider) or why_not_for(world, job, provider)
            counted[why or "free"] += 1
    if not counted:
        return "there is no provider yet; `ravnest join` makes a machine one"
    listed = ", ".join(f"{number} {why}" for why, number in sorted(counted.items()))
    return f"no provider is free for this job ({listed})"


def as_pool(
    providers: Iterable[Provider], precision: Precision | None = None
) -> tuple[ProviderSpec, ...]:
    """The providers as planning knows them, for a job in that precision: addresses are names,
    resolved by their agents."""
    known = {provider.id: provider.figures for provider in providers if provider.figures}
    return tuple(
        _spec(id, figures, _links(id, figures, known), len(known) - 1, precision)
        for id, figures in sorted(known.items())
    )


def _spec(
    id: int,
    figures: Figures,
    links: tuple[tuple[int, float], ...],
    others: int,
    precision: Precision | None,
) -> ProviderSpec:
    bandwidth = figures.up_mbps
    if others and len(links) == others:
        # On one machine, or in one house, nothing takes the way to the server.
        bandwidth = max(bandwidth, min(mbps for _, mbps in links))
    return ProviderSpec(
        id=id,
        address=f"{provider_name(id)}:1",
        memory_bytes=figures.memory_bytes,
        host_memory_bytes=figures.host_memory_bytes,
        bandwidth_mbps=_in_range(bandwidth),
        gflops=_in_range(rate_of(figures, precision)),
        latency_ms=min(figures.latency_ms, MOST_FIGURE),
        links=links,
    )


def _in_range(figure: float) -> float:
    return min(max(figure, LEAST_FIGURE), MOST_FIGURE)


def rate_of(figures: Figures, precision: Precision | None) -> float:
    """GFLOP/s of a job in that precision; where it was not measured, as in single precision."""
    return figures.gflops if precision is None else figures.rates.get(precision, figures.gflops)


def _links(id: int, figures: Figures, known: dict[int, Figures]) -> tuple[tuple[int, float], ...]:
    """What was measured between this provider and others of the pool; through the server where
    they do not reach each other."""
    found = {}
    for peer in figures.peers:
        other = known.get(peer.provider)
        if other is None or peer.provider == id:
            continue
        back = next((theirs.mbps for theirs in other.peers if theirs.provider == id), 0.0)
        direct = max(peer.mbps, back)
        found[peer.provider] = _in_range(direct) if direct > 0 else relayed_mbps(figures, other)
    return tuple(sorted(found.items()))


def relayed_mbps(one: Figures, other: Figures) -> float:
    """Of a pair that meets at the server only."""
    both = (one.up_mbps, one.down_mbps, other.up_mbps, other.down_mbps)
    return _in_range(min(both))
