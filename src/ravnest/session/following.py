"""One job, followed through the server's stream of changes: events in, updates out."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.api.views import ENDED_JOBS, Changes, EventView, JobView, Overview
from ravnest.client.answers import decode_plain
from ravnest.client.stream import ServerEvent
from ravnest.errors import JobError, ServerError

AT_WORK = frozenset({"preparing", "running", "paused", "stopping", "fusing"})


@dataclass(frozen=True)
class JobUpdate:
    """What is new about a job."""

    job: JobView
    events: tuple[EventView, ...] = ()
    points: tuple[tuple[Any, ...], ...] = ()
    """Of its curves: (series, cluster, step, epoch, at, value)."""


def job_updates(stream: Iterable[ServerEvent], job_id: str) -> Iterator[JobUpdate]:
    """Until the job has ended. After a break the stream begins anew; nothing is told twice."""
    seen = -1
    job: JobView | None = None
    for event in stream:
        news = decoded(event)
        if news is None:
            continue
        found = next((one for one in news.jobs if one.id == job_id), None)
        if isinstance(news, Overview) and found is None:
            raise JobError(f"there is no job {job_id} on this server (any more)")
        if isinstance(news, Changes) and job_id in news.gone_jobs:
            raise JobError(f"job {job_id} was deleted")
        events = tuple(one for one in news.events if one.job == job_id and one.number > seen)
        points = news.points.get(job_id, ()) if isinstance(news, Changes) else ()
        if found in (None, job) and not events and not points:
            continue
        job = found or job
        seen = max((seen, *(one.number for one in events)))
        if job is None:
            continue
        yield JobUpdate(job, events, points)
        if job.state in ENDED_JOBS:
            return


def within(
    seconds: float,
    what: Callable[[], str],
    stream: Iterable[ServerEvent],
    clock: Callable[[], float] = time.monotonic,
    *,
    remedy: str,
) -> Iterator[ServerEvent]:
    """The same stream, given up after so long; it ends by then if there is no news."""
    deadline = clock() + seconds
    for event in stream:
        yield event
        if clock() >= deadline:
            break
    if clock() >= deadline:
        raise JobError(f"waited {seconds:.0f} s for {what()}, and there is none yet; {remedy}")


def decoded(event: ServerEvent) -> Overview | Changes | None:
    kind: Any = {"overview": Overview, "update": Changes}.get(event.event)
    if kind is None:
        return None
    try:
        news: Overview | Changes = decode_plain(event.data, kind)
    except NOT_UNDERSTOOD as error:
        raise ServerError(
            f"the server's stream says something this release does not understand ({error}); do "
            "server and client have the same version?"
        ) from error
    return news
