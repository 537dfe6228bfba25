"""`ravnest dashboard`: a link that works once, to a page that looks, of a real server."""

import contextlib
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import httpx
import pytest
from playwright.sync_api import Browser, expect
from servers import running_server
from web.browser import Visit

from ravnest.api.views import Me
from ravnest.client.address import ServerAddress
from ravnest.client.dashboard_proxy import DashboardProxy, OneTimeCode
from ravnest.client.http import HttpClient
from ravnest.client.known import find_access, open_client, who_is

WAIT_S = 30


@pytest.fixture
def server(home):
    with running_server(home / "server", dashboard="local") as running:
        yield running


@contextlib.contextmanager
def proxy_of(server, role="operator", **options):
    """The proxy in a thread, with a token of this role."""
    token = server.operator if role == "operator" else server.token(role)
    with (
        open_client(find_access(server.url, token)) as client,
        DashboardProxy(client, who_is(client), **options) as proxy,
    ):
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join(WAIT_S)


def at(proxy, path):
    return f"http://127.0.0.1:{proxy.server_port}{path}"


def signed_in(proxy):
    answer = httpx.post(at(proxy, "/login"), json={"code": proxy.code.code})
    assert answer.status_code == 200
    return {"Authorization": f"Bearer {answer.json()['token']}"}


def test_the_proxy_gives_nothing_without_its_link(server):
    with proxy_of(server) as proxy:
        assert httpx.get(at(proxy, "/")).status_code == 200
        for headers in ({}, {"Authorization": "Bearer x"}):
            assert httpx.get(at(proxy, "/api/v1/overview"), headers=headers).status_code == 401
        for body in (b"", b"{}", b'{"code":"x"}', b'{"code":1}', "{“".encode()):
            assert httpx.post(at(proxy, "/login"), content=body).status_code == 401
        assert httpx.get(at(proxy, "/api/v1/overview"), headers=signed_in(proxy)).is_success


def test_a_link_works_once(server):
    with proxy_of(server) as proxy:
        signed_in(proxy)
        again = httpx.post(at(proxy, "/login"), json={"code": proxy.code.code})
        assert (again.status_code, "again" in again.text) == (401, True)


def test_a_link_is_good_for_some_minutes():
    now = [0.0]
    old, new = (OneTimeCode(lambda: now[0]) for _ in range(2))
    now[0] = 299.0
    assert not new.redeem("x")
    assert new.redeem(new.code)
    now[0] = 300.0
    assert not old.redeem(old.code)


@pytest.mark.parametrize("host", ["attacker.example", "attacker.example:80", "", "127.0.0.1.x"])
def test_a_page_that_points_its_own_name_here_is_refused(server, host):
    with proxy_of(server) as proxy:
        headers = signed_in(proxy) | {"Host": host}
        for path in ("/", "/api/v1/overview"):
            assert httpx.get(at(proxy, path), headers=headers).status_code == 403
        assert httpx.get(at(proxy, "/"), headers={"Host": "localhost:1"}).status_code == 200


@pytest.mark.parametrize("path", ["@127.0.0.1:9/x", "http://127.0.0.1:9/x", "x"])
def test_the_token_goes_to_the_server_alone(server, path):
    with proxy_of(server) as proxy:
        bearer = signed_in(proxy)["Authorization"]
        head = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: {bearer}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", proxy.server_port), WAIT_S) as line:
            line.sendall(head.encode())
            assert b" 400 " in line.makefile("rb").readline()


def test_the_page_steers_only_if_it_was_said(server):
    wanted = {"role": "viewer", "name": "seen"}
    with proxy_of(server) as proxy:
        headers = signed_in(proxy)
        refused = httpx.post(at(proxy, "/api/v1/tokens"), json=wanted, headers=headers)
        assert (refused.status_code, "--steer" in refused.text) == (403, True)
        own = {"Authorization": f"Bearer {server.operator}"}  # typed into the page
        assert httpx.post(at(proxy, "/api/v1/tokens"), json=wanted, headers=own).is_success
    with proxy_of(server, steer=True) as proxy:
        answer = httpx.post(at(proxy, "/api/v1/tokens"), json=wanted, headers=signed_in(proxy))
        assert answer.is_success


def test_a_server_that_is_gone_is_said(server):
    with proxy_of(server) as proxy:
        headers = signed_in(proxy)
        server.stop()
        answer = httpx.get(at(proxy, "/api/v1/overview"), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (502, "failed")


def test_what_is_signed_in_is_a_viewer_unless_it_steers(server):
    with proxy_of(server) as proxy, proxy_of(server, steer=True) as steering:
        assert [one.sign_in(one.code.code).role for one in (proxy, steering)] == [
            "viewer",
            "operator",
        ]
        assert isinstance(proxy.me, Me)


@contextlib.contextmanager
def hostile_server(status, headers, content):
    """Answers everything in the same way; what it was asked is in the list."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.command, self.path, self.headers))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join(WAIT_S)


@contextlib.contextmanager
def proxy_of_hostile(url, **options):
    address = ServerAddress.parse(url, insecure=True)
    with (
        contextlib.closing(HttpClient(address, authority=None, bearer="secret")) as client,
        DashboardProxy(client, Me(role="viewer", name="me"), **options) as proxy,
    ):
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join(WAIT_S)


BAD_HEADERS = {
    "Set-Cookie": "a=b",
    "Access-Control-Allow-Origin": "*",
    "Service-Worker-Allowed": "/",
    "Content-Security-Policy": "script-src *",
    "Clear-Site-Data": "*",
    "Location": "http://127.0.0.1:1/",
    "Refresh": "0; url=http://127.0.0.1:1/",
    "WWW-Authenticate": "Basic",
    "Link": "</api/v1/x>; rel=stylesheet",
    "Content-Encoding": "br",
}
GOOD_HEADERS = {
    *("server", "date", "content-type", "content-length", "cache-control", "etag"),
    *("content-security-policy", "x-content-type-options", "referrer-policy"),
    *("cross-origin-opener-policy", "cross-origin-resource-policy"),
}


@pytest.mark.parametrize("status", [200, 302, 401])
def test_a_hostile_server_says_nothing_to_the_browser_but_its_answer(status):
    kind = {"Content-Type": "text/html"}
    with (
        hostile_server(status, BAD_HEADERS | kind, b"<script>evil()</script>") as (url, asked),
        proxy_of_hostile(url) as proxy,
    ):
        answer = httpx.get(at(proxy, "/api/v1/overview"), headers=signed_in(proxy))
        assert answer.status_code == status
        assert {name.lower() for name in answer.headers} <= GOOD_HEADERS
        assert "sandbox" in answer.headers["Content-Security-Policy"]
        assert "script-src" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert [path for _, path, _ in asked] == ["/api/v1/overview"]


def test_the_pages_are_those_of_the_installed_package():
    with (
        hostile_server(200, BAD_HEADERS, b"evil()") as (url, asked),
        proxy_of_hostile(url) as proxy,
    ):
        headers = signed_in(proxy)
        page = httpx.get(at(proxy, "/"), headers=headers)
        script = httpx.get(at(proxy, "/static/js/main.js"), headers=headers)
        assert (page.status_code, "<html" in page.text) == (200, True)
        assert page.headers["Content-Type"].startswith("text/html")
        assert script.headers["Content-Type"].startswith("text/javascript")
        for answer in (page, script):
            assert "evil" not in answer.text
            assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
            assert {name.lower() for name in answer.headers} <= GOOD_HEADERS
        for path in (
            "/evil.js",
            "/static/evil.js",
            "/static/../evil",
            "/sw.js",
            "/api/v2/x",
            "/api",
        ):
            assert httpx.get(at(proxy, path), headers=headers).status_code == 404
        for path in ("/", "/evil"):
            assert httpx.post(at(proxy, path), headers=headers).status_code == 404
        assert httpx.head(at(proxy, "/")).status_code == 200
        assert not asked


def link_of(process):
    for line in process.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+/#login=\S+", line):
            return found.group()
    raise AssertionError(process.stderr.read())


@pytest.mark.needs("chromium")
def test_the_command_opens_the_dashboard_of_the_server_on_this_machine(server, browser, tmp_path):
    words = [sys.executable, "-m", "ravnest", "dashboard", "--no-browser"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            link = link_of(process)

            def look(chromium: Browser) -> None:
                base = link.partition("/#")[0]
                for number in range(2):  # the second tab has a link that was used
                    reader = chromium.new_context()
                    seen = Visit(reader.new_page(), SimpleNamespace(url=base))
                    page = seen.open(link.removeprefix(f"{base}/"))
                    if number == 0:
                        expect(page.locator(".connection-text")).to_have_text("live")
                        expect(page.locator(".role")).to_have_text("viewer")
                        assert "login" not in page.url
                        expect(page.locator("main")).to_contain_text(f"join {server.url} --token")
                        page.reload()
                        expect(page.locator(".connection-text")).to_have_text("live")
                        assert not seen.errors, seen.errors
                    else:
                        expect(page.locator(".toast")).to_contain_text("used already")
                        expect(page.locator("main")).to_contain_text("Sign in to see this pool")
                    assert not seen.foreign
                    page.screenshot(path=tmp_path / f"dashboard{number}.png")
                    reader.close()

            browser.call(look)
        finally:
            process.terminate()


def test_a_token_that_only_joins_is_refused(server, capsys):
    from ravnest.cli import main

    given = ["--server", server.url, "--token", server.token("provider")]
    assert main(["dashboard", *given, "--no-browser"]) == 1
    assert "looking takes a viewer token" in capsys.readouterr().err
