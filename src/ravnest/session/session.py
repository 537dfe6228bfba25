"""`ravnest.Session`: a server, as people use it who have something to train, or who look."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from ravnest.api.requests import NewToken, Role, TokenMade, TokenShown
from ravnest.api.views import EventView, JobView, Me, Overview, ProviderView
from ravnest.client.http import HttpClient
from ravnest.client.known import Access, find_access, home, open_client, remember, who_is
from ravnest.client.stream import follow
from ravnest.errors import JobError, TokenError
from ravnest.session.following import decoded
from ravnest.session.job import Job
from ravnest.session.overview import with_changes
from ravnest.session.request import JobRequest


class Session:
    """A conversation with one server; it begins with the first question.

    Without arguments: the server and token in RAVNEST_SERVER and RAVNEST_TOKEN, else those that
    were used last on this machine, else the server that runs on it.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        insecure: bool = False,
        remember: bool = False,
    ) -> None:
        """`insecure` allows a server without TLS; `remember` lets later sessions find this one."""
        self._access = find_access(server, token, insecure=insecure)
        self._remember = remember
        self._client: HttpClient | None = None

    @property
    def client(self) -> HttpClient:
        """What requests go through; made, and the server recognised, when it is first needed."""
        if self._client is None:
            self._client = open_client(self._access)
            if self._remember:
                self._keep_in_mind(self._client)
        return self._client

    def _keep_in_mind(self, client: HttpClient) -> None:
        """Not what is refused, and not what is good for joining alone: it must not take the place
        of what works."""
        if who_is(client).role != "provider":
            remember(Access(self._access.address, self._access.token, client.authority), home())

    @property
    def url(self) -> str:
        return self._access.address.url

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Session({self.url!r})"

    # ---- looking ----

    def overview(self) -> Overview:
        """All there is to see at this moment."""
        return self.client.get("/overview", Overview)

    def watch(self, timeout_s: float | None = None) -> Iterator[Overview]:
        """All there is to see, again whenever something changes; for so long, or for ever."""
        now: Overview | None = None
        for_s = math.inf if timeout_s is None else timeout_s
        for event in follow(self.client, "/stream", for_s=for_s):
            news = decoded(event)
            if isinstance(news, Overview):
                now = news
            elif news is not None and now is not None:
                now = with_changes(now, news)
            else:
                continue
            yield now

    def providers(self) -> list[ProviderView]:
        return self.client.get("/providers", list[ProviderView])

    def events(self) -> list[EventView]:
        return self.client.get("/events", list[EventView])

    def whoami(self) -> Me:
        """Who the server takes this session's token for."""
        return who_is(self.client)

    def job_views(self) -> list[JobView]:
        """Of all jobs, the last submitted one at the end."""
        found = self.client.get("/jobs", list[JobView])
        return sorted(found, key=lambda one: one.submitted_at)

    def jobs(self) -> list[Job]:
        return [Job(self.client, view) for view in self.job_views()]

    def job(self, id: str | None = None) -> Job:
        """By id, by the beginning of one, or by name; if nothing is said, the last one that you
        have submitted (whoever can submit none, a viewer, means the last of all)."""
        views = self.job_views()
        if not views:
            raise JobError(f"there is no job on {self.url} yet")
        if id is None:
            return Job(self.client, self._last_own(views))
        exact = [view for view in views if view.id == id]
        found = exact or [view for view in views if view.id.startswith(id)]
        found = found or [view for view in views if view.name == id]
        if len(found) == 1:
            return Job(self.client, found[0])
        shown = ", ".join(f"{view.id} ({view.name})" for view in (found or views)[-10:])
        if found:
            raise JobError(f"{id!r} may be any of {shown}: give more of the id")
        raise JobError(f"there is no job {id!r}; the last ones are {shown}")

    def _last_own(self, views: Sequence[JobView]) -> JobView:
        me = self.whoami()
        own = [view for view in views if me.owns(view)] if me.may_submit else views
        if not own:
            last = ", ".join(f"{view.id} ({view.name}, by {view.owner})" for view in views[-10:])
            raise JobError(
                f"{me.name} has submitted no job to {self.url}; say which one is meant: {last}"
            )
        return own[-1]

    # ---- handing over ----

    def check_may_submit(self) -> None:
        """Before a model is captured and packed for minutes: is this server there, and ours?"""
        me = self.whoami()
        if not me.may_submit:
            shown = "no token was given" if me.role == "onlooker" else f"this is a {me.role} token"
            raise TokenError(
                f"{shown}; submitting takes a requester token, which the operator of {self.url} "
                "makes with `ravnest token make requester`"
            )

    def submit(
        self,
        model: Any,
        example_args: Any = (),
        data: Any = None,
        *,
        example_kwargs: Mapping[str, Any] | None = None,
        validation: Any = None,
        inputs: Any = None,
        target: Any = None,
        loss: Any = "cross_entropy",
        optimizer: Any = "adamw",
        optimizer_params: Mapping[str, Any] | None = None,
        schedule: Any = None,
        metrics: Sequence[Any] | None = None,
        epochs: int = 1,
        batch_size: int = 64,
        name: str | None = None,
        start: Literal["asked", "at once"] = "at once",
        progress: Callable[[str, int, int], None] | None = None,
        **settings: Any,
    ) -> Job:
        """Hand a model and its data over to be trained.

        The model is captured and checked here, and a batch is tried, before anything is sent; no
        code leaves this machine. `settings` are those of docs/server.md: `validate_every`,
        `max_clusters`, `precision` and so on. `progress` is told (what, bytes done, bytes in all)
        while files are uploaded.
        """
        given = {
            "model": model,
            "example_args": example_args,
            "data": data,
            "example_kwargs": example_kwargs,
            "validation": validation,
            "inputs": inputs,
            "target": target,
            "loss": loss,
            "optimizer": optimizer,
            "optimizer_params": optimizer_params or {},
            "schedule": schedule,
            "metrics": metrics,
            "epochs": epochs,
            "batch_size": batch_size,
            "name": name,
            "start": start,
            **settings,
        }
        return self.submit_request(JobRequest.of(given), progress=progress)

    def submit_script(
        self,
        script: str | Path,
        model: Any,
        example_args: Any = (),
        data: Any = None,
        *,
        arguments: Sequence[str] = (),
        **settings: Any,
    ) -> Job:
        """Hand over a provider script that trains the model in its own way (docs/server.md).

        It runs only on providers whose owners have consented to run foreign scripts.
        """
        given = {"model": model, "example_args": example_args, "data": data, **settings}
        progress = given.pop("progress", None)
        request = JobRequest.of(given, script=script, script_arguments=arguments)
        return self.submit_request(request, progress=progress)

    def submit_request(
        self, request: JobRequest, *, progress: Callable[[str, int, int], None] | None = None
    ) -> Job:
        from ravnest.session.submitting import submit

        self.check_may_submit()
        return Job(self.client, submit(self.client, request, progress))

    # ---- for operators ----

    def make_token(
        self,
        role: Role,
        name: str | None = None,
        *,
        hours: float = 24.0,
        uses: int | None = None,
        replace: bool = False,
    ) -> TokenMade:
        """A token to give away; its text is shown this once.

        Jobs belong to the name of a requester token. Without one it gets a name that nobody has
        had; `replace` makes a successor of the tokens of that name, which are revoked.
        """
        wanted = NewToken(role=role, name=name, hours=hours, uses=uses, replace=replace)
        return self.client.post("/tokens", wanted, TokenMade)

    def tokens(self) -> list[TokenShown]:
        return self.client.get("/tokens", list[TokenShown])

    def revoke_token(self, id: str, *, with_providers: bool = False) -> str:
        """By its id, or the beginning of one; returns the id. `with_providers` removes all machines
        that have enrolled with it."""
        known = [one.id for one in self.tokens()]
        found = [id] if id in known else [one for one in known if one.startswith(id)]
        if len(found) != 1:
            why = (
                f"may be any of {', '.join(found[:10])}" if found else "is no token of this server"
            )
            raise TokenError(f"{id!r} {why}; `ravnest token list` shows all of them")
        also = "?providers=remove" if with_providers else ""
        self.client.delete(f"/tokens/{found[0]}{also}")
        return found[0]
