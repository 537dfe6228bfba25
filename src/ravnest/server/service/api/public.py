"""What strangers may ask: whether the server is well, its authority, the pages without data."""

from starlette.responses import Response

from ravnest.api.requests import Health
from ravnest.server.service.calls import Call, Endpoint
from ravnest.server.service.service import Service
from ravnest.server.service.static import Pages


def endpoints(service: Service, pages: Pages) -> list[Endpoint]:
    async def health(call: Call) -> Health:
        return Health(status="ok", version=service.version)

    async def authority(call: Call) -> Response:
        return Response(service.authority.pem, media_type="application/x-pem-file")

    async def page(call: Call) -> Response:
        return pages.serve(call.request, "index.html")

    async def static(call: Call) -> Response:
        return pages.serve(call.request, f"static/{call.path('path')}")

    return [
        Endpoint("GET", "/healthz", None, health, "Whether the server is well", answer=Health),
        Endpoint(
            "GET",
            "/api/v1/authority",
            None,
            authority,
            "The certificate of the server's authority; compare it with the token's fingerprint",
            media="application/x-pem-file",
        ),
        Endpoint("GET", "/", None, page, "The dashboard", media="text/html"),
        Endpoint(
            "GET",
            "/static/{path:path}",
            None,
            static,
            "Files of the dashboard",
            media="application/octet-stream",
        ),
    ]
