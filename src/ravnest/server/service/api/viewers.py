"""Everything that can be seen: at once, as a stream, and in detail."""

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from ravnest.api.views import (
    EventView,
    JobDetail,
    JobView,
    Me,
    Overview,
    ProviderView,
    Series,
    Timeline,
)
from ravnest.server.service.api.requesters import job_of
from ravnest.server.service.audience import Audience
from ravnest.server.service.calls import Call, Endpoint
from ravnest.server.service.live import TIMELINE_S
from ravnest.server.service.problems import Refusal
from ravnest.server.service.service import Service
from ravnest.server.service.stream import MOST_LOOKING, MOST_LOOKING_EACH
from ravnest.server.service.views import event_view

_MOST_EVENTS = 1000


class _Viewers:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def overview(self, call: Call) -> Overview:
        return Audience.of(call.caller).overview(self._service.stream.overview())

    async def whoami(self, call: Call) -> Me:
        # Whoever may ask is one of the roles that `Me` knows.
        return msgspec.convert({"role": call.caller.kind, "name": call.caller.name}, Me)

    async def stream(self, call: Call) -> Response:
        stream, whose = self._service.stream, call.whose
        audience = Audience.of(call.caller)
        if not stream.has_place(whose, operator=audience.sees_all):
            raise Refusal(
                "limited",
                f"too many are looking already ({MOST_LOOKING_EACH} streams of one caller, "
                f"{MOST_LOOKING} in all); close some, or try again later",
            )
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        content = stream.look(call.is_still_allowed, whose, audience=audience)
        return StreamingResponse(content, headers=headers, media_type="text/event-stream")

    async def jobs(self, call: Call) -> list[JobView]:
        jobs, audience = self._service.stream.jobs(), Audience.of(call.caller)
        own = audience.own(jobs)
        return [audience.job(view, own) for view in jobs]

    async def job(self, call: Call) -> JobDetail:
        service, job = self._service, job_of(self._service, call)
        view = service.job_view(job.id)
        assert view is not None
        audience = Audience.of(call.caller)
        return JobDetail(
            job=audience.job(view, audience.own([view])),
            plan=service.plan_view(job.id),
            run=service.run_view(job.id, over=True),
            files=job.files,
            bytes=job.bytes,
        )

    async def plan(self, call: Call) -> str:
        plan = self._service.plan_view(job_of(self._service, call).id)
        if plan is None:
            raise Refusal("not_found", "there is no plan for this job yet")
        return plan.report

    async def series(self, call: Call) -> Response:
        content = await self._service.curves.of(job_of(self._service, call).id)
        return Response(content, media_type="application/json")

    async def timeline(self, call: Call) -> Timeline:
        service, job = self._service, job_of(self._service, call).id
        seconds = call.number("seconds", 20.0, 0.1, TIMELINE_S)
        live, now = service.reports.live_run(job), service.clock()
        if live is None:
            return Timeline(began=now - seconds, ended=now, rows=())
        return live.timeline(service.world.of_run[job], seconds, now)

    async def events(self, call: Call) -> list[EventView]:
        job = job_of(self._service, call).id if "job" in call.request.path_params else None
        limit = int(call.number("limit", 100, 1, _MOST_EVENTS))
        before = int(call.number("before", 0, 0, 1 << 62)) or None
        found = await self._service.core.read(lambda db: db.events(limit, job, before))
        audience = Audience.of(call.caller)
        own = audience.own(self._service.stream.jobs())
        return [audience.event(event_view(event), own) for event in found]

    async def providers(self, call: Call) -> list[ProviderView]:
        stream, audience = self._service.stream, Audience.of(call.caller)
        own = audience.own(stream.jobs())
        return [audience.provider(view, own) for view in stream.providers()]

    async def metrics(self, call: Call) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(self._service.metrics.text(), media_type=kind)


def endpoints(service: Service, document: Callable[[], bytes]) -> list[Endpoint]:
    here = _Viewers(service)

    async def openapi(call: Call) -> Response:
        return Response(document(), media_type="application/json")

    def look(path: str, handler: object, summary: str, **more: object) -> Endpoint:
        return Endpoint("GET", path, "look", handler, summary, **more)  # type: ignore[arg-type]

    api, text = "/api/v1", "text/plain"
    page = {"limit": "how many, at most 1000", "before": "number of an event: only older ones"}
    return [
        look(f"{api}/overview", here.overview, "Everything at once", answer=Overview),
        look(
            f"{api}/stream",
            here.stream,
            "Server-sent events: `overview` (Overview), then `update` (Changes)",
            media="text/event-stream",
            limit="stream",
        ),
        Endpoint("GET", f"{api}/whoami", "ask", here.whoami, "Who the caller is", answer=Me),
        look(f"{api}/jobs", here.jobs, "All jobs", answer=list[JobView]),
        look(f"{api}/jobs/{{job}}", here.job, "A job in detail", answer=JobDetail),
        look(f"{api}/jobs/{{job}}/plan", here.plan, "Its plan, for people", media=text),
        look(f"{api}/jobs/{{job}}/series", here.series, "Its curves", answer=Series),
        look(
            f"{api}/jobs/{{job}}/timeline",
            here.timeline,
            "Who computed what when",
            answer=Timeline,
            query={"seconds": "how far back, at most 60"},
        ),
        look(
            f"{api}/jobs/{{job}}/events",
            here.events,
            "What happened to it",
            answer=list[EventView],
            query=page,
        ),
        look(f"{api}/providers", here.providers, "All providers", answer=list[ProviderView]),
        look(f"{api}/events", here.events, "What happened", answer=list[EventView], query=page),
        look("/metrics", here.metrics, "Figures for Prometheus", media=text),
        look(f"{api}/metrics", here.metrics, "Figures for Prometheus", media=text),
        look("/openapi.json", openapi, "This document", answer=dict[str, Any]),
        look(f"{api}/openapi.json", openapi, "This document", answer=dict[str, Any]),
    ]
