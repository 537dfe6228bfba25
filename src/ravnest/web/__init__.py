"""The dashboard: HTML, style sheets and JavaScript without data, and how they are sent.

The server sends them at its own address, `ravnest dashboard` at 127.0.0.1 from the package that is
installed there: a server's script does not run among the services of its user's machine. All that
the pages show they ask of the JSON API.
"""

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

HEADERS = {
    # Asked for again each time, sent again only if it is another one.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_FOLDER = Path(__file__).parent
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Page:
    content: bytes
    tag: str
    kind: str


def read_pages() -> dict[str, Page]:
    """By the path of their address."""
    files = sorted(path for path in (_FOLDER / "static").rglob("*") if path.is_file())
    pages = {f"/{path.relative_to(_FOLDER).as_posix()}": _read(path) for path in files}
    return {"/": _read(_FOLDER / "index.html"), **pages}


def _read(path: Path) -> Page:
    content = path.read_bytes()
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    kind = kind or "application/octet-stream"
    if kind.startswith("text/") or path.suffix == ".json":
        kind += "; charset=utf-8"
    return Page(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"', kind)
