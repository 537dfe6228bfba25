"""What the server's stream says, applied in order: always what a new overview would say. Pure."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

import msgspec

from ravnest.api.views import Changes, Overview

EVENTS_KEPT = 100
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def with_changes(overview: Overview, changes: Changes) -> Overview:
    """The overview after an `update` of the stream."""
    providers = {one.id: one for one in overview.providers}
    providers.update((one.id, one) for one in changes.providers)
    jobs = {one.id: one for one in overview.jobs}
    jobs.update((one.id, one) for one in changes.jobs)
    runs = {one.job: one for one in overview.runs}
    runs.update((one.job, one) for one in changes.runs)
    events = {one.number: one for one in (*overview.events, *changes.events)}
    return msgspec.structs.replace(
        overview,
        server=changes.server,
        providers=_without(providers, changes.gone_providers),
        jobs=_without(jobs, changes.gone_jobs),
        runs=_without(runs, changes.gone_runs),
        events=tuple(events[number] for number in sorted(events)[-EVENTS_KEPT:]),
    )


def _without(found: dict[K, V], gone: Iterable[K]) -> tuple[V, ...]:
    left = set(gone)
    return tuple(one for key, one in found.items() if key not in left)
