"""A real server in a thread of this process: HTTPS and WebSockets on a free port of loopback."""

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from ravnest.api.requests import NewToken, Role, TokenMade
from ravnest.server.running import Listening, Ready, serve
from ravnest.server.service.service import Options
from ravnest.server.service.work import WorkLimits
from ravnest.server.state.world import Settings

QUICK = Settings(heartbeat_s=0.5, report_s=0.2, settle_s=0.1, return_s=0.3, away_s=5.0)
TIMEOUT_S = 60.0


@dataclass
class TestServer:
    __test__ = False

    ready: Ready
    authority: str
    thread: threading.Thread
    failures: list[BaseException] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.ready.scheme}://127.0.0.1:{self.ready.port}"

    @property
    def operator(self) -> str:
        return self.ready.operator_token.read_text().strip()

    def client(self, bearer: str | None = None, **options: Any) -> httpx.Client:
        """Verifies the server as the product's own client does: by its fixed name."""
        import ssl

        context = ssl.create_default_context(cadata=self.authority)
        context.check_hostname = True
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        return httpx.Client(
            base_url=f"{self.url}/api/v1/", verify=context, headers=headers, timeout=30, **options
        )

    def token(self, role: Role, **more: Any) -> str:
        body = msgspec.json.encode(NewToken(role=role, **more))
        with self.client(self.operator) as client:
            answer = client.post("tokens", content=body)
            assert answer.status_code == 200, answer.text
            return msgspec.json.decode(answer.content, type=TokenMade).token

    def stop(self) -> None:
        if self.thread.is_alive():
            self.ready.stop()
            self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive(), "the server has not ended"


@contextlib.contextmanager
def running_server(
    folder: Path,
    *,
    settings: Settings = QUICK,
    store: str | None = None,
    tls: bool = True,
    port: int = 0,
    **options: Any,
) -> Iterator[TestServer]:
    """Ended with the block; the folder can be served again afterwards."""
    answers: queue.SimpleQueue[Ready | BaseException] = queue.SimpleQueue()
    options.setdefault("work", WorkLimits(seconds=120, threads=1))
    options.setdefault("names", ("localhost", "127.0.0.1"))
    options.setdefault("dashboard", "open")  # tests look at what happens, mostly
    chosen = Options(folder=folder, settings=settings, **options)
    failures: list[BaseException] = []

    def run() -> None:
        listening = Listening("127.0.0.1", port, tls)
        try:
            asyncio.run(serve(chosen, listening, answers.put, store=store))
        except BaseException as error:
            failures.append(error)
            answers.put(error)

    thread = threading.Thread(target=run, name="server", daemon=True)
    thread.start()
    ready = answers.get(timeout=TIMEOUT_S)
    if isinstance(ready, BaseException):
        thread.join(TIMEOUT_S)
        raise ready
    server = TestServer(ready, ready.service.authority.pem, thread, failures)
    try:
        yield server
    finally:
        server.stop()


def closed(connection: socket.socket) -> bool:
    """Waits for the other side's end of the connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
