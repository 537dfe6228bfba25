"""The ASGI application: every route of the table, the WebSockets, and an answer to the rest."""

import contextlib
from collections.abc import AsyncIterator
from functools import cache

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from ravnest.server.openapi import describe
from ravnest.server.service.api import operators, providers, public, requesters, viewers
from ravnest.server.service.calls import Endpoint
from ravnest.server.service.problems import Refusal
from ravnest.server.service.service import Service


def table(service: Service) -> list[Endpoint]:
    """Everything that can be asked of the server by HTTP."""

    @cache
    def document() -> bytes:
        return describe(endpoints, service.version)

    endpoints = [
        *public.endpoints(service),
        *providers.endpoints(service),
        *requesters.endpoints(service),
        *viewers.endpoints(service, document),
        *operators.endpoints(service),
    ]
    return endpoints


def make_app(service: Service) -> Starlette:
    desk = service.desk
    routes: list[BaseRoute] = [
        Route(one.path, desk.endpoint(one), methods=[one.method]) for one in table(service)
    ]
    routes += [
        WebSocketRoute("/api/v1/agent", service.control.serve),
        WebSocketRoute("/api/v1/relay/dial/{assignment}/{provider:number}", service.relay.dial),
        WebSocketRoute("/api/v1/relay/accept/{call}", service.relay.accept),
    ]

    async def elsewhere(request: Request, error: Exception) -> Response:
        """Strangers are not told what there is and what not."""
        try:
            desk.admit(request, "look", "call")
            raise Refusal("not_found", "there is nothing at this address")
        except Refusal as refusal:
            return desk.refuse(request, "elsewhere", refusal)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    app = Starlette(
        routes=routes, exception_handlers={404: elsewhere, 405: elsewhere}, lifespan=lifespan
    )
    # Or strangers would be told, without being asked who they are, what there is.
    app.router.redirect_slashes = False
    return app
