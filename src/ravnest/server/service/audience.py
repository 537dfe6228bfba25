"""Who sees what: the one place where views are cut to those who look at them.

Everybody who may look has the overview: machines by the names that their owners gave them, what
they offer, their speeds and states; jobs, curves, plans, and what happened in the server's own
words. Facts about a host, and what workers, models and processes have said, are for those who need
them:

operators           everything
owner of a job      what was said about it; the facts of machines while they work on it
a machine           its own facts (`/providers/me`)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from ravnest.api.views import Changes, EventView, JobView, Overview, ProviderView, ServerView
from ravnest.server.access import Caller
from ravnest.server.state.words import own_words

_Seen = TypeVar("_Seen", Overview, Changes)


@dataclass(frozen=True)
class Audience:
    sees_all: bool = False
    owner: tuple[str, str] | None = None
    """Role and name: whose jobs are theirs."""

    @classmethod
    def of(cls, caller: Caller) -> "Audience":
        if caller.kind == "operator":
            return EVERYTHING
        return cls(owner=(caller.kind, caller.name)) if caller.may("submit") else OVERVIEW

    def own(self, jobs: Iterable[JobView]) -> set[str]:
        """Ids of the jobs of which this audience sees all."""
        return {one.id for one in jobs if (one.owner_role, one.owner) == self.owner}

    def provider(self, view: ProviderView, own: set[str]) -> ProviderView:
        if self.sees_all or view.job in own:
            return view
        return replace(
            view,
            hostname="",
            system="",
            ravnest="",
            torch="",
            device_name="",
            cores=0,
            memory_free_bytes=0,
            cpu=0.0,
            hours=None,
            no_sandbox=_without_reason(view.no_sandbox),
        )

    def server(self, view: ServerView) -> ServerView:
        return view if self.sees_all else replace(view, no_sandbox=_without_reason(view.no_sandbox))

    def job(self, view: JobView, own: set[str]) -> JobView:
        if self.sees_all or view.id in own:
            return view
        return replace(view, reason=own_words(view.reason))

    def event(self, view: EventView, own: set[str]) -> EventView:
        if self.sees_all or view.job in own:
            return view
        return replace(view, text=own_words(view.text))

    def overview(self, seen: Overview) -> Overview:
        return self._cut(seen, self.own(seen.jobs))

    def changes(self, seen: Changes, jobs: Iterable[JobView]) -> Changes:
        """`jobs` are all of them, also those that have not changed."""
        return self._cut(seen, self.own(jobs))

    def _cut(self, seen: _Seen, own: set[str]) -> _Seen:
        return replace(
            seen,
            server=self.server(seen.server),
            providers=tuple(self.provider(view, own) for view in seen.providers),
            jobs=tuple(self.job(view, own) for view in seen.jobs),
            events=tuple(self.event(view, own) for view in seen.events),
        )


def _without_reason(no_sandbox: str) -> str:
    """That there is none concerns all; why, in words of the system, is a fact about the host."""
    return "operators see why" if no_sandbox else ""


EVERYTHING = Audience(sees_all=True)
OVERVIEW = Audience()
