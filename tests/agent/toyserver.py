"""A server as agents see it, steered by the test: it says what the test says, and keeps what it
hears. No decisions of its own."""

import asyncio
import contextlib
import datetime
import hashlib
import uuid

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from ravnest.api.control import Hello, Welcome, agent_decoder
from ravnest.api.limits import FileRef, encode
from ravnest.api.requests import Enrol, Enrolled, Problem, Renew, Renewed
from ravnest.api.tokens import Credential, Token
from ravnest.api.views import Me
from ravnest.client.address import ServerAddress
from ravnest.server.authority import open_authority, server_certificate

WAIT_S = 60.0


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):
        """Signals belong to the test."""
        yield


class ToyServer:
    def __init__(self, folder):
        self.now = datetime.datetime.now(datetime.UTC)
        self.authority = open_authority(folder, self.now)
        server_certificate(self.authority, folder, ["127.0.0.1"], self.now)
        self.folder = folder
        self.credentials = {}
        self.sockets = {}
        self.said = asyncio.Queue()
        self.files, self.results, self.calls = {}, {}, {}
        self.refuses = None
        self.refuses_tokens = False
        self.passing = []
        """Statuses that the next results get for an answer."""
        self.asked = []
        """Hashes of files."""
        self.unfit = []
        """And those that ask for files."""
        self.renews = True
        """Certificates; else it cannot at the moment."""
        self.renewal = None
        """What it gives instead of a certificate, made of one that is signed and its number."""
        self.enrolment = None
        """What it gives instead of the first one, made of that."""
        self.welcomes = True
        self.heartbeat_s = 0.2
        self.host, self.port = "127.0.0.1", 0

    # ---- the test's side ----

    def token(self, role="provider"):
        return Token.make(role, self.authority.fingerprint)

    @property
    def address(self):
        return ServerAddress(self.host, self.port)

    def put(self, path, content):
        sha256 = hashlib.sha256(content).hexdigest()
        self.files[sha256] = content
        return FileRef(path=path, sha256=sha256, size=len(content))

    async def say(self, provider, message):
        await self.sockets[provider].send_text(encode(message).decode())

    async def hear(self, kind, provider=None):
        """The next message of that kind; others are passed over."""
        async with asyncio.timeout(WAIT_S):
            while True:
                who, message = await self.said.get()
                if isinstance(message, kind) and provider in (None, who):
                    return message

    async def start(self):
        config = uvicorn.Config(
            self._app(),
            host=self.host,
            port=self.port,
            ssl_certfile=self.folder / "server.pem",
            ssl_keyfile=self.folder / "server.key",
            log_level="critical",
            timeout_graceful_shutdown=1,
            lifespan="off",
        )
        self._server = _Uvicorn(config)
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup()
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    async def stop(self):
        """As if it were killed: nothing is said to anybody."""
        for socket in list(self.sockets.values()):
            with contextlib.suppress(RuntimeError):
                await socket.close()
        self._server.force_exit = True
        await self._server.shutdown()

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *_):
        await self.stop()

    # ---- the agents' side ----

    def _app(self):
        api = "/api/v1"
        return Starlette(
            routes=[
                Route(f"{api}/authority", self._authority),
                Route(f"{api}/whoami", self._whoami),
                Route(f"{api}/enrol", self._enrol, methods=["POST"]),
                Route(f"{api}/providers/me/certificate", self._renew, methods=["POST"]),
                Route(f"{api}/probe/down", self._down),
                Route(f"{api}/probe/up", self._up, methods=["POST"]),
                Route(f"{api}/assignments/{{id}}/files/{{sha256}}", self._file),
                Route(f"{api}/assignments/{{id}}/results/{{name}}", self._result, methods=["PUT"]),
                WebSocketRoute(f"{api}/agent", self._agent),
                WebSocketRoute(f"{api}/relay/dial/{{assignment}}/{{provider:int}}", self._dial),
                WebSocketRoute(f"{api}/relay/accept/{{call}}", self._accept),
            ]
        )

    async def _authority(self, request):
        return PlainTextResponse(self.authority.pem)

    async def _whoami(self, request):
        if self.refuses_tokens:
            return _json(Problem(error="this token has expired", code="unauthorized"), 401)
        return _json(Me(role="provider", name="toy"))

    async def _enrol(self, request):
        asked = msgspec.json.decode(await request.body(), type=Enrol)
        number = 7 + len(self.credentials)
        credential = str(Credential.make(number))
        self.credentials[credential] = number
        signed = self.authority.sign_provider(number, asked.key_request, self.now)
        if self.enrolment is not None:
            signed = self.enrolment(signed)
        return _json(
            Enrolled(
                provider=number,
                credential=credential,
                certificate=signed,
                authority=self.authority.pem,
            )
        )

    async def _renew(self, request):
        if not self.renews:
            return _json(Problem(error="the disk is full", code="failed"), 503)
        asked = msgspec.json.decode(await request.body(), type=Renew)
        number = self._provider(request)
        signed = self.authority.sign_provider(number, asked.key_request, self.now)
        if self.renewal is not None:
            signed = self.renewal(signed, number)
        return _json(Renewed(certificate=signed))

    async def _down(self, request):
        return Response(b"\0" * int(request.query_params["bytes"]))

    async def _up(self, request):
        async for _ in request.stream():
            pass
        return Response(b"")

    async def _file(self, request):
        self._provider(request)
        self.asked.append(request.path_params["sha256"])
        if self.unfit:
            return Response(b"try later", self.unfit.pop(0))
        content = self.files.get(request.path_params["sha256"])
        if content is None:
            return _json(Problem(error="no such file", code="not_found"), 404)
        return Response(content)

    async def _result(self, request):
        self._provider(request)
        body = await request.body()
        if self.passing:
            return Response(b"try later", self.passing.pop(0))
        if self.refuses is not None:
            return _json(Problem(error=self.refuses, code="too_large"), 413)
        assert hashlib.sha256(body).hexdigest() == request.headers["x-sha256"]
        self.results[request.path_params["name"]] = body
        return Response(b"")

    def _provider(self, request):
        return self.credentials[request.headers["authorization"].removeprefix("Bearer ")]

    async def _agent(self, socket):
        bearer = socket.headers.get("authorization", "").removeprefix("Bearer ")
        if bearer not in self.credentials:
            problem = Problem(error="this provider is not known", code="unauthorized")
            await socket.send_denial_response(_json(problem, 401))
            return
        provider = self.credentials[bearer]
        await socket.accept()
        self.sockets[provider] = socket
        try:
            while True:
                message = agent_decoder.decode(await socket.receive_text())
                if isinstance(message, Hello) and self.welcomes:
                    welcome = Welcome(
                        provider=provider,
                        name="toy",
                        now=datetime.datetime.now().timestamp(),
                        heartbeat_s=self.heartbeat_s,
                        report_s=1.0,
                    )
                    await self.say(provider, welcome)
                self.said.put_nowait((provider, message))
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            if self.sockets.get(provider) is socket:
                del self.sockets[provider]

    async def _dial(self, socket):
        from ravnest.api.control import Incoming

        called, call = socket.path_params["provider"], uuid.uuid4().hex
        accepted = self.calls[call] = asyncio.get_running_loop().create_future()
        await self.say(
            called,
            Incoming(
                call=call,
                caller=self._provider(socket),
                assignment=f"a{called}",
            ),
        )
        await socket.accept()
        other, over = await accepted
        await _both_ways(socket, other)
        over.set()

    async def _accept(self, socket):
        await socket.accept()
        over = asyncio.Event()
        self.calls[socket.path_params["call"]].set_result((socket, over))
        await over.wait()


async def _both_ways(one, other):
    async def copy(source, target):
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                await target.send_bytes(await source.receive_bytes())

    tasks = [asyncio.create_task(copy(one, other)), asyncio.create_task(copy(other, one))]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, socket in zip(tasks, (one, other), strict=True):
        task.cancel()
        with contextlib.suppress(RuntimeError):
            await socket.close()


def _json(value, status=200):
    return Response(encode(value), status, media_type="application/json")
