"""The pages of the dashboard: a few files, read once, the same for everybody."""

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from ravnest.server.service.problems import Refusal

PAGES = Path(__file__).parents[1] / "web"
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class _Page:
    content: bytes
    tag: str
    kind: str


class Pages:
    def __init__(self, folder: Path = PAGES) -> None:
        self._pages = {
            path.relative_to(folder).as_posix(): _read(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def serve(self, request: Request, name: str) -> Response:
        page = self._pages.get(name)
        if page is None:
            raise Refusal("not_found", "there is no such page")
        headers = {
            "ETag": page.tag,
            # Asked for again each time, sent again only if it is another one.
            "Cache-Control": "no-cache",
            "Content-Security-Policy": CONTENT_POLICY,
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        if request.headers.get("if-none-match") == page.tag:
            return Response(status_code=304, headers=headers)
        return Response(page.content, headers=headers, media_type=page.kind)


def _read(path: Path) -> _Page:
    content = path.read_bytes()
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    kind = kind or "application/octet-stream"
    if kind.startswith("text/") or path.suffix == ".json":
        kind += "; charset=utf-8"
    return _Page(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"', kind)
