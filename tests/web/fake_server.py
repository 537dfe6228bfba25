"""Serves a `Simulation` under the paths of the real server, with the dashboard's own files.

Tests move its clock (`Site.advance`); `python fake_server.py` lets it run with the wall clock, to
look at the pages while working on them.
"""

import argparse
import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from web.simulation import Simulation

from ravnest.api.requests import (
    Health,
    JobAction,
    NewToken,
    Problem,
    ProviderAction,
    Role,
    TokenMade,
)
from ravnest.api.tokens import Token
from ravnest.api.views import Me

WEB = Path(__file__).parents[2] / "src" / "ravnest" / "web"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PATIENCE_S = 20.0
T = TypeVar("T")


def token(role: Role) -> str:
    return str(Token(role, b"\1" * 16, "00" * 8, "11" * 20))


def answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def problem(status: int, code: str, text: str) -> Response:
    return answer(Problem(error=text, code=code), status)


@dataclass
class Hub:
    """What the handlers share; touched only inside the server's event loop."""

    simulation: Simulation
    open: bool = True
    """Whether people may look without a token."""
    broken: bool = False
    """Answers nothing but static files, as if the server were restarting."""
    streams: set[asyncio.Queue[bytes | None]] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Actions that nobody may do."""

    def advance(self, seconds: float) -> None:
        changes = self.simulation.advance(seconds)
        self._tell(b"event: update\ndata: " + msgspec.json.encode(changes) + b"\n\n")

    def push_changes(self) -> None:
        changes = self.simulation.changes()
        self._tell(b"event: update\ndata: " + msgspec.json.encode(changes) + b"\n\n")

    def break_down(self) -> None:
        self.broken = True
        for queue in self.streams:
            queue.put_nowait(None)

    def come_back(self) -> None:
        self.broken = False

    def _tell(self, frame: bytes) -> None:
        for queue in self.streams:
            queue.put_nowait(frame)

    async def stream(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.streams.add(queue)
        try:
            # In three pieces: a reader must not rely on getting whole events.
            frame = b"event: overview\ndata: " + msgspec.json.encode(self.simulation.overview())
            yield b": hello\n\n" + frame[:40]
            yield frame[40:]
            yield b"\n\n"
            while (piece := await queue.get()) is not None:
                yield piece
        finally:
            self.streams.discard(queue)


def role_of(request: Request) -> Role | None:
    text = request.headers.get("authorization", "").removeprefix("Bearer ")
    for role in ("provider", "viewer", "requester", "operator"):
        if text == token(role):
            return role
    return None


def make_app(hub: Hub) -> Starlette:
    simulation = hub.simulation

    def viewing(handler: Callable[[Request], Response]) -> Callable[[Request], Any]:
        async def guarded(request: Request) -> Response:
            if hub.broken:
                return problem(503, "starting", "the server is starting")
            known = "authorization" in request.headers
            if role_of(request) is None and (known or not hub.open):
                return problem(401, "unauthorized", "this token is not known here, or has expired")
            job = request.path_params.get("job")
            if job is not None and job not in simulation.jobs:
                return problem(404, "not_found", f"there is no job {job}")
            return handler(request)

        return guarded

    def steering(
        handler: Callable[[Request, bytes], Response], roles: set[Role]
    ) -> Callable[[Request], Any]:
        async def guarded(request: Request) -> Response:
            if role_of(request) not in roles:
                return problem(403, "forbidden", "this needs an operator token")
            return handler(request, await request.body())

        return guarded

    def whoami(request: Request) -> Response:
        return answer(Me(role=role_of(request) or "onlooker", name="mira"))

    def stream(request: Request) -> Response:
        return StreamingResponse(hub.stream(), media_type="text/event-stream")

    def job_action(request: Request, body: bytes) -> Response:
        action = msgspec.json.decode(body, type=JobAction).action
        if action in hub.refused:
            return problem(403, "forbidden", "this needs an operator token")
        view = simulation.act_on_job(request.path_params["job"], action)
        hub.push_changes()
        return answer(view)

    def provider_action(request: Request, body: bytes) -> Response:
        action = msgspec.json.decode(body, type=ProviderAction).action
        number = int(request.path_params["provider"])
        view = simulation.act_on_provider(number, action)
        hub.push_changes()
        return answer(view)

    def make_token(request: Request, body: bytes) -> Response:
        wanted = msgspec.json.decode(body, type=NewToken)
        expires = simulation.now + wanted.hours * 3600
        return answer(TokenMade(id="t1", token=token(wanted.role), expires_at=expires))

    def timeline(request: Request) -> Response:
        seconds = float(request.query_params.get("seconds", "20"))
        return answer(simulation.timeline(request.path_params["job"], seconds))

    def job_events(request: Request) -> Response:
        return answer([e for e in simulation.events if e.job == request.path_params["job"]])

    def result(request: Request) -> Response:
        return Response(b"weights" * 100, media_type="application/octet-stream")

    job = "/api/v1/jobs/{job}"
    routes = [
        Route("/", lambda request: FileResponse(WEB / "index.html")),
        Route("/healthz", lambda request: answer(Health(status="ok", version="0.1.0"))),
        Mount("/static", StaticFiles(directory=WEB / "static")),
        Route("/api/v1/overview", viewing(lambda request: answer(simulation.overview()))),
        Route("/api/v1/whoami", viewing(whoami)),
        Route("/api/v1/stream", viewing(stream)),
        Route("/api/v1/events", viewing(lambda request: answer(simulation.events))),
        Route(
            "/api/v1/providers",
            viewing(lambda request: answer(list(simulation.providers.values()))),
        ),
        Route("/api/v1/jobs", viewing(lambda request: answer(tuple(simulation.jobs.values())))),
        Route(job, viewing(lambda r: answer(simulation.detail(r.path_params["job"])))),
        Route(f"{job}/series", viewing(lambda r: answer(simulation.series(r.path_params["job"])))),
        Route(f"{job}/timeline", viewing(timeline)),
        Route(f"{job}/events", viewing(job_events)),
        Route(f"{job}/result", viewing(result)),
        Route(f"{job}/action", steering(job_action, {"operator", "requester"}), methods=["POST"]),
        Route(
            "/api/v1/providers/{provider}/action",
            steering(provider_action, {"operator"}),
            methods=["POST"],
        ),
        Route("/api/v1/tokens", steering(make_token, {"operator"}), methods=["POST"]),
    ]
    return Starlette(routes=routes)


class WithPolicy:
    """Adds the headers that the real server sends with everything."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"content-security-policy", CSP.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    (b"cache-control", b"no-store"),
                ]
            await send(message)

        await self.app(scope, receive, send_with_policy)


class Site:
    """A fake server in a thread of its own, and a hand on its simulation."""

    def __init__(self, simulation: Simulation, *, open: bool = True) -> None:
        self.hub = Hub(simulation, open=open)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            WithPolicy(make_app(self.hub)), log_level="warning", lifespan="off", ws="none"
        )
        config.timeout_graceful_shutdown = 1
        self._server = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "Site":
        self._thread.start()
        if not self._ready.wait(PATIENCE_S):
            raise TimeoutError("the fake server has not started")
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.hub.break_down)
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._server.serve(sockets=[self._socket])

    def do(self, action: Callable[[], T]) -> T:
        """Run it inside the server's loop, where all of the state is at home."""
        assert self._loop is not None

        async def run() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    def advance(self, seconds: float = 1.0) -> None:
        self.do(lambda: self.hub.advance(seconds))

    def change(self, action: Callable[[Simulation], object]) -> None:
        """Change something by hand, and tell everybody who looks."""

        def run() -> None:
            action(self.hub.simulation)
            self.hub.push_changes()

        self.do(run)


async def tick(hub: Hub) -> None:
    """For looking at it: the simulation follows the wall clock until the process is ended."""
    while True:
        await asyncio.sleep(1.0)
        hub.advance(1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--machines", type=int, default=7)
    parser.add_argument("--empty", action="store_true", help="no machines, no jobs")
    options = parser.parse_args()
    simulation = Simulation(machines=0 if options.empty else options.machines)
    for _ in range(25):
        simulation.advance(1.0)
    hub = Hub(simulation)
    config = uvicorn.Config(WithPolicy(make_app(hub)), port=options.port, lifespan="off")

    async def serve() -> None:
        ticking = asyncio.create_task(tick(hub))
        await uvicorn.Server(config).serve()
        ticking.cancel()

    print(f"operator token: {token('operator')}")
    asyncio.run(serve())


if __name__ == "__main__":
    main()
