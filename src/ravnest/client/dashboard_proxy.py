"""The dashboard of a server on this machine's loopback: the pages, and a proxy that has a token.

A browser does not know the server's certificate authority, and a token is long to type. The proxy
knows both: it talks to the server as every other command does, and to the browser at
http://127.0.0.1. The browser gets in by a link that works once. What it is given for it is kept by
one tab of one origin (`sessionStorage`) and sent as a header, so that neither another user of this
machine nor a page of another site, or of another port, has it. There is no cookie.

The pages are those of the installed package. Of the server come the answers of its JSON API alone,
without its headers: a browser takes all ports of 127.0.0.1 for one site, whose cookies and other
services a hostile server must not reach.
"""

import contextlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import msgspec

from ravnest.api import VERSION
from ravnest.api.limits import NOT_UNDERSTOOD, encode
from ravnest.api.requests import Code, Problem
from ravnest.api.views import Me
from ravnest.client.answers import failure_in_words
from ravnest.client.http import HttpClient
from ravnest.client.stranger import UNPACKED
from ravnest.web import HEADERS, Page, read_pages

HOST = "127.0.0.1"
LINK_S = 300.0
"""How long the link may be used, once."""
_OUR_NAMES = frozenset({HOST, "localhost"})
_MOST_BODY_BYTES = 1 << 20
_SILENCE_S = 60.0
_PASSED_ON = ("accept", "authorization", "content-type")
_PASSED_BACK = ("content-type", "content-length")
_WITH_ANSWERS = HEADERS | {
    "Cache-Control": "no-store",
    # Whatever the server calls it: opened as a page, it runs nothing and is of no origin.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}
_JSON = _WITH_ANSWERS | {"Content-Type": "application/json"}
_API = f"/api/v{VERSION}/"
_LOOKING = ("GET", "HEAD")


class Login(msgspec.Struct):
    code: str


class SignedIn(msgspec.Struct):
    """What the page keeps for its tab."""

    token: str
    role: str
    name: str
    server: str
    """Its address, which commands that the page shows are about."""


class OneTimeCode:
    """Good once, and not for long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.code = secrets.token_urlsafe(24)
        self._clock = clock
        self._good_until = clock() + LINK_S

    def redeem(self, code: str) -> bool:
        good = hmac.compare_digest(code.encode(), self.code.encode())
        in_time = self._clock() < self._good_until
        if good:
            self._good_until = 0.0
        return good and in_time


class DashboardProxy(ThreadingHTTPServer):
    """`serve_forever` until `shutdown`. Looking alone is allowed, unless `steer` is said."""

    daemon_threads = True

    def __init__(self, client: HttpClient, me: Me, *, port: int = 0, steer: bool = False) -> None:
        super().__init__((HOST, port), _Handler)
        self.address = client.address
        self.bearer = client.bearer
        self.steer = steer
        self.me = me
        self.code = OneTimeCode()
        self.session = secrets.token_urlsafe(24)
        self.pages = read_pages()
        self.http = httpx.Client(
            verify=client.context or True,
            headers=UNPACKED,
            timeout=httpx.Timeout(_SILENCE_S, connect=15.0),
            trust_env=not client.address.is_local,
        )

    @property
    def link(self) -> str:
        return f"http://{HOST}:{self.server_port}/#login={self.code.code}"

    def sign_in(self, code: str) -> SignedIn | None:
        if not self.code.redeem(code):
            return None
        role = self.me.role if self.steer else "viewer"
        return SignedIn(token=self.session, role=role, name=self.me.name, server=self.address.url)

    def server_close(self) -> None:
        super().server_close()
        self.http.close()


class _Handler(BaseHTTPRequestHandler):
    server: DashboardProxy
    timeout = _SILENCE_S

    def do_GET(self) -> None:
        # A page of another site can make its own name point to this machine.
        if self.headers.get("Host", "").partition(":")[0].lower() not in _OUR_NAMES:
            return self._refuse(403, "forbidden", f"this is reached as http://{HOST} alone")
        if not self.path.startswith("/"):
            return self._refuse(400, "invalid", "a path begins with a slash")
        size = self.headers.get("Content-Length", "0")
        if not size.isdecimal() or int(size) > _MOST_BODY_BYTES:
            return self._refuse(413, "too_large", f"a body has at most {_MOST_BODY_BYTES} bytes")
        body = self.rfile.read(int(size))
        with contextlib.suppress(ConnectionError, TimeoutError):  # the browser has gone
            page = self.server.pages.get(self.path.partition("?")[0])
            if (self.command, self.path) == ("POST", "/login"):
                self._sign_in(body)
            elif self.path.startswith(_API):
                self._pass_on(body)
            elif page is not None and self.command in _LOOKING:
                self._show(page)
            else:
                self._refuse(404, "not_found", "there is no such page")

    do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815  as the library calls them

    def _sign_in(self, body: bytes) -> None:
        try:
            reader = self.server.sign_in(msgspec.json.decode(body, type=Login).code)
        except NOT_UNDERSTOOD:
            reader = None
        if reader is None:
            text = "this link was used already, or is too old; run `ravnest dashboard` again"
            return self._refuse(401, "unauthorized", text)
        self._answer(200, encode(reader))

    def _show(self, page: Page) -> None:
        if self.headers.get("If-None-Match") == page.tag:
            return self._answer(304, b"", HEADERS | {"ETag": page.tag})
        self._answer(200, page.content, HEADERS | {"ETag": page.tag, "Content-Type": page.kind})

    def _pass_on(self, body: bytes) -> None:
        server = self.server
        headers = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
        shown = headers.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(shown.encode(), server.session.encode()):
            if self.command not in _LOOKING and not server.steer:
                text = "this page may only look: sign in with a token, or use --steer"
                return self._refuse(403, "forbidden", text)
            headers["authorization"] = f"Bearer {server.bearer}"
        url = httpx.URL(server.address.url, raw_path=self.path.encode())
        try:
            with server.http.stream(self.command, url, headers=headers, content=body) as answer:
                self.send_response(answer.status_code)
                passed = {name: answer.headers.get(name) for name in _PASSED_BACK}
                for name, value in (_WITH_ANSWERS | passed).items():
                    if value is not None:
                        self.send_header(name, value)
                self.end_headers()
                for piece in answer.iter_raw():
                    self.wfile.write(piece)
        except httpx.TransportError as error:
            # In the middle of an answer nothing can be said any more; the connection ends.
            if not self._headers_sent:
                self._refuse(502, "failed", failure_in_words(error, server.address))

    _headers_sent = False

    def end_headers(self) -> None:
        super().end_headers()
        self._headers_sent = True

    def _refuse(self, status: int, code: Code, text: str) -> None:
        self._answer(status, encode(Problem(error=text, code=code)))

    def _answer(self, status: int, content: bytes, headers: Mapping[str, str] = _JSON) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """The server has a log of its own."""
