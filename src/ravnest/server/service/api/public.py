"""What strangers may ask: whether the server is well, its authority, the pages without data."""

from starlette.requests import Request
from starlette.responses import Response

from ravnest.api.requests import Health
from ravnest.server.service.calls import Call, Endpoint
from ravnest.server.service.problems import Refusal
from ravnest.server.service.service import Service
from ravnest.web import HEADERS, read_pages


def endpoints(service: Service) -> list[Endpoint]:
    pages = read_pages()

    async def health(call: Call) -> Health:
        return Health(status="ok", version=service.version)

    async def authority(call: Call) -> Response:
        return Response(service.authority.pem, media_type="application/x-pem-file")

    async def page(call: Call) -> Response:
        return sent(call.request, "/")

    async def static(call: Call) -> Response:
        return sent(call.request, f"/static/{call.path('path')}")

    def sent(request: Request, path: str) -> Response:
        page = pages.get(path)
        if page is None:
            raise Refusal("not_found", "there is no such page")
        headers = {"ETag": page.tag, **HEADERS}
        if request.headers.get("if-none-match") == page.tag:
            return Response(status_code=304, headers=headers)
        return Response(page.content, headers=headers, media_type=page.kind)

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
