"""Everything that can be seen, kept ready; and what changes, told to everybody who looks.

Views are made anew only for what has changed, at most once a second, and written as JSON once for
each audience. A client that does not read fast enough is let go; it can come back and get all of
it at once.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec

from ravnest.api.views import (
    Changes,
    EventView,
    JobView,
    NewPoint,
    Overview,
    ProviderView,
    RunView,
    ServerView,
)
from ravnest.server.service.audience import OVERVIEW, Audience
from ravnest.server.service.responses import pieces
from ravnest.server.service.views import event_view
from ravnest.server.state.effects import Effects

PERIOD_S = 1.0
ALIVE_S = 15.0
MOST_LOOKING = 500
MOST_LOOKING_EACH = 50
_FOR_OPERATORS = 50
"""Places that others leave free."""
_EVENTS = 100
_POINTS_AT_ONCE = 5000
_QUEUED = 30

_encoder = msgspec.json.Encoder()


class Sight:
    """Where views come from."""

    def __init__(
        self,
        server: Callable[[], ServerView],
        provider: Callable[[int], ProviderView | None],
        job: Callable[[str], JobView | None],
        run: Callable[[str], RunView | None],
    ) -> None:
        self.server = server
        self.provider = provider
        self.job = job
        self.run = run


class Stream:
    def __init__(self, sight: Sight) -> None:
        self._sight = sight
        self._providers: dict[int, ProviderView] = {}
        self._jobs: dict[str, JobView] = {}
        self._runs: dict[str, RunView] = {}
        self._events: deque[EventView] = deque(maxlen=_EVENTS)
        # Changed since it was last made; made since it was last told.
        self._stale_providers: set[int] = set()
        self._stale_jobs: set[str] = set()
        self._untold_providers: set[int] = set()
        self._untold_jobs: set[str] = set()
        self._untold_events: list[EventView] = []
        self._points: dict[str, list[NewPoint]] = {}
        self._looking: dict[asyncio.Queue[bytes | None], Audience] = {}
        self._places: Counter[str] = Counter()
        """Of whom so many look, or have been let go and have not gone."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def looking(self) -> int:
        return self._places.total()

    def has_place(self, whose: str, *, operator: bool) -> bool:
        most = MOST_LOOKING if operator else MOST_LOOKING - _FOR_OPERATORS
        return self._places[whose] < MOST_LOOKING_EACH and self.looking < most

    # ---- what changes

    def touch(self, effects: Effects) -> None:
        self._stale_providers |= effects.providers
        self._stale_jobs |= effects.jobs
        for note in effects.notes:
            self.happened(event_view(note))
        self._soon()

    def happened(self, event: EventView) -> None:
        self._events.append(event)
        if len(self._untold_events) < 10 * _EVENTS:
            self._untold_events.append(event)

    def job_changed(self, job: str, points: Iterable[NewPoint] = ()) -> None:
        self._stale_jobs.add(job)
        if self._looking:
            untold = self._points.setdefault(job, [])
            room = _POINTS_AT_ONCE - len(untold)
            untold.extend(list(points)[: max(0, room)])
        self._soon()

    def begin(
        self, providers: Iterable[int], jobs: Iterable[str], events: Iterable[EventView]
    ) -> None:
        """What is there when the server starts."""
        self._stale_providers |= set(providers)
        self._stale_jobs |= set(jobs)
        self._events.extend(events)

    # ---- what is seen

    def _refresh(self) -> None:
        for id in self._stale_providers:
            provider = self._sight.provider(id)
            _put(self._providers, id, provider)
        for job in self._stale_jobs:
            _put(self._jobs, job, self._sight.job(job))
            _put(self._runs, job, self._sight.run(job))
        self._untold_providers |= self._stale_providers
        self._untold_jobs |= self._stale_jobs
        self._stale_providers, self._stale_jobs = set(), set()

    def overview(self) -> Overview:
        self._refresh()
        return Overview(
            server=self._sight.server(),
            providers=tuple(self._providers.values()),
            jobs=tuple(self.jobs()),
            runs=tuple(self._runs.values()),
            events=tuple(self._events),
        )

    def providers(self) -> list[ProviderView]:
        self._refresh()
        return list(self._providers.values())

    def jobs(self) -> list[JobView]:
        """In the order in which they were submitted."""
        self._refresh()
        return sorted(self._jobs.values(), key=lambda job: (job.submitted_at, job.id))

    # ---- who looks

    def _soon(self) -> None:
        if self._timer is None and self._looking and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._tell()

    def _tell(self) -> None:
        """Everybody, what has changed since they were last told."""
        self._refresh()
        changes = self._changes()
        self._untold_providers, self._untold_jobs = set(), set()
        self._untold_events, self._points = [], {}
        if not self._looking:
            return
        jobs = self._jobs.values()
        frames = {
            audience: _frame("update", audience.changes(changes, jobs))
            for audience in set(self._looking.values())
        }
        for queue, audience in list(self._looking.items()):
            if queue.qsize() >= _QUEUED:
                self._let_go(queue)
            else:
                queue.put_nowait(frames[audience])

    def _changes(self) -> Changes:
        jobs, providers = self._untold_jobs, self._untold_providers
        return Changes(
            server=self._sight.server(),
            providers=tuple(self._providers[id] for id in providers if id in self._providers),
            gone_providers=tuple(id for id in providers if id not in self._providers),
            jobs=tuple(self._jobs[id] for id in jobs if id in self._jobs),
            gone_jobs=tuple(id for id in jobs if id not in self._jobs),
            runs=tuple(self._runs[id] for id in jobs if id in self._runs),
            gone_runs=tuple(id for id in jobs if id not in self._runs),
            events=tuple(self._untold_events),
            points={job: tuple(points) for job, points in self._points.items()},
        )

    async def look(
        self,
        may_still: Callable[[], bool] = lambda: True,
        whose: str = "",
        *,
        audience: Audience = OVERVIEW,
    ) -> AsyncIterator[bytes]:
        """Server-sent events: everything, and then what changes, as long as they may look."""
        if not self.has_place(whose, operator=audience.sees_all):
            return  # of several that were let in at the same moment, the others were sooner
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        # The others are told first, so that everybody has the same before the next change.
        self._tell()
        everything = pieces(_frame("overview", audience.overview(self.overview())))
        self._looking[queue] = audience
        self._places[whose] += 1
        try:
            for piece in everything:
                yield piece
            while True:
                try:
                    async with asyncio.timeout(ALIVE_S):
                        frame = await queue.get()
                except TimeoutError:
                    frame = b": still here\n\n"
                if frame is None or not may_still():
                    return
                yield frame
        finally:
            self._looking.pop(queue, None)
            self._leave(whose)

    def _leave(self, whose: str) -> None:
        self._places[whose] -= 1
        if not self._places[whose]:
            del self._places[whose]

    def _let_go(self, queue: asyncio.Queue[bytes | None]) -> None:
        self._looking.pop(queue, None)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for queue in list(self._looking):
            self._let_go(queue)


def _put(views: dict[Any, Any], key: Any, view: Any) -> None:
    if view is None:
        views.pop(key, None)
    else:
        views[key] = view


def _frame(kind: str, content: msgspec.Struct) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), _encoder.encode(content))
