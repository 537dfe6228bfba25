"""A small HTTPS server for tests: the test writes its answers, down to a broken connection."""

import contextlib
import ssl
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from certificates import Authority

from ravnest.api.tokens import Token
from ravnest.client.address import ServerAddress
from ravnest.client.http import HttpClient


class Scripted:
    """`answers[(method, path)]` is a function of the handler; `seen` are the requests' headers."""

    def __init__(self, authority=None, *, dns=("ravnest-server",), valid=True, tls=True):
        self.answers = {}
        self.seen = []
        self.authority = authority or Authority()
        self.keys = self.authority.keys("server", dns=dns, valid=valid)
        self.pem = self.keys.authority.pem
        self.answers["GET", "/api/v1/authority"] = lambda handler: say(handler, 200, self.pem)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _dispatch(self):
                outer.seen.append((self.command, self.path, dict(self.headers)))
                answer = outer.answers.get((self.command, self.path.partition("?")[0]))
                if answer is None:
                    say(self, 404, '{"error": "there is no such thing", "code": "not_found"}')
                else:
                    answer(self)

            do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _dispatch  # noqa: N815

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # A stranger's broken handshake is not worth a traceback on the screen.
        self._server.handle_error = lambda *_: None
        if tls:
            self._server.socket = self._context().wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        scheme = "https" if tls else "http"
        self.address = ServerAddress("127.0.0.1", self._server.server_port, scheme)

    def _context(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "both.pem"
            path.write_bytes(self.keys.certificate + self.keys.key)
            context.load_cert_chain(path)
        return context

    def token(self, role="requester"):
        return Token.make(role, self.keys.authority.fingerprint)

    def client(self, **options):
        return HttpClient(self.address, authority=self.keys.authority, bearer="secret", **options)

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def say(handler, status, body, **headers):
    content = body.encode() if isinstance(body, str) else body
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(content)


def body_of(handler):
    return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))


def break_off(handler):
    """Closes the connection in the middle of whatever was said."""
    handler.wfile.flush()
    handler.close_connection = True
    with contextlib.suppress(OSError):
        handler.connection.shutdown(2)
