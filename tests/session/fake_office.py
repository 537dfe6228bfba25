"""A server that takes jobs and trains them in no time: what comes back is what was sent.

For tests of what requesters do. It keeps blobs, says what is missing, plans when asked, and is done
as soon as somebody watches a job that runs.
"""

import asyncio
import hashlib
import socket
import threading

import msgspec
import uvicorn
from msgspec.structs import replace
from safetensors.torch import load, save
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from web.simulation import Simulation

from ravnest.api.jobs import JobSpec
from ravnest.api.requests import JobAction, Problem
from ravnest.api.views import Changes, EventView, JobDetail, JobView, Me, Overview, Series
from ravnest.data.legend import as_metadata

PATIENCE_S = 20.0
PLAN = "Verdict: 2x as fast as one machine."


def answer(value, status=200):
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def refuse(status, code, text):
    return answer(Problem(error=text, code=code), status)


class Office:
    def __init__(self):
        self.blobs = {}
        self.specs = {}
        self.jobs = {}
        self.actions = []
        self.uploads = 0
        self.me = Me(role="requester", name="ada")
        """Who everybody is who calls."""
        self.reason = ""
        """Why jobs wait, for as long as it is set."""
        self.plan = None
        self.series = Series(points={})
        self.breaks_after = None
        """How many uploads go through before the lines break."""
        self._server_view = Simulation(machines=0).server()
        self._changed = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self._app(), log_level="error", lifespan="off", ws="none")
        config.timeout_graceful_shutdown = 1
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)

    def _serve(self):
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def _app(self):
        base = "/api/v1"
        job = f"{base}/jobs/{{job}}"
        return Starlette(
            routes=[
                Route(f"{base}/blobs/{{sha}}", self._has, methods=["HEAD"]),
                Route(f"{base}/blobs/{{sha}}", self._take, methods=["PUT"]),
                Route(f"{base}/jobs", self._submit, methods=["POST"]),
                Route(f"{base}/jobs", lambda _: answer(list(self.jobs.values()))),
                Route(job, lambda r: answer(JobDetail(job=self._job(r), plan=self.plan))),
                Route(f"{job}/plan", lambda _: Response(PLAN)),
                Route(f"{job}/events", lambda _: answer([])),
                Route(f"{job}/series", lambda _: answer(self.series)),
                Route(f"{job}/action", self._act, methods=["POST"]),
                Route(f"{job}/result", self._result),
                Route(f"{base}/whoami", lambda _: answer(self.me)),
                Route(f"{base}/stream", lambda _: StreamingResponse(self._stream())),
            ]
        )

    def wait_for(self, reason, number):
        self.jobs[number] = replace(self.jobs[number], state="waiting", reason=reason)

    def _job(self, request):
        return self.jobs[request.path_params["job"]]

    async def _has(self, request):
        return Response(status_code=200 if request.path_params["sha"] in self.blobs else 404)

    async def _take(self, request):
        body = await request.body()
        sha = request.path_params["sha"]
        if self.breaks_after is not None and self.uploads >= self.breaks_after:
            return refuse(503, "starting", "the server goes down")
        assert hashlib.sha256(body).hexdigest() == sha == request.headers["x-sha256"]
        self.blobs[sha] = body
        self.uploads += 1
        return Response(status_code=201)

    async def _submit(self, request):
        spec = msgspec.json.decode(await request.body(), type=JobSpec)
        if missing := set(spec.files()) - set(self.blobs):
            return refuse(409, "conflict", f"missing: {sorted(missing)}")
        number = f"j{len(self.jobs)}"
        state = "planned" if spec.start == "asked" else "running"
        self.specs[number] = spec
        self.jobs[number] = JobView(
            id=number,
            name=spec.name,
            owner=self.me.name,
            owner_role=self.me.role,
            state="waiting" if self.reason else state,
            reason=self.reason,
            submitted_at=1.0 + len(self.jobs),
            epochs=spec.training.epochs,
            batch_size=spec.training.batch_size,
            run=1,
        )
        return answer(self.jobs[number])

    async def _act(self, request):
        action = msgspec.json.decode(await request.body(), type=JobAction).action
        job = self._job(request)
        self.actions.append((job.id, action))
        if action == "start":
            self.jobs[job.id] = replace(job, state="running")
        return answer(self.jobs[job.id])

    def _result(self, request):
        spec = self.specs[request.path_params["job"]]
        (weights,) = [file for file in spec.model if file.path == "weights.safetensors"]
        content = save(load(self.blobs[weights.sha256]), as_metadata(spec.legend))
        return Response(content, headers={"X-Sha256": hashlib.sha256(content).hexdigest()})

    async def _stream(self):
        server = self._server_view
        jobs = tuple(self.jobs.values())
        now = Overview(server=server, providers=(), jobs=jobs, runs=(), events=())
        yield b"event: overview\ndata: " + msgspec.json.encode(now) + b"\n\n"
        planning = [
            replace(job, state="planning", reason="with 4 providers")
            for job in jobs
            if job.state == "waiting"
        ]
        changes = Changes(server=server, jobs=tuple(planning))
        yield b"event: update\ndata: " + msgspec.json.encode(changes) + b"\n\n"
        for number, job in self.jobs.items():
            if job.state == "waiting":
                self.jobs[number] = replace(job, state="planned", reason="")
            elif job.state == "running":
                scored = {"metrics": {"accuracy": 0.975}, "result_bytes": 100, "step": 5}
                epochs = self.specs[number].training.epochs
                self.jobs[number] = replace(job, state="done", epoch=float(epochs), **scored)
        done = EventView(number=1, at=5.0, level="info", text="Fused", job=next(iter(self.jobs)))
        changes = Changes(server=server, jobs=tuple(self.jobs.values()), events=(done,))
        yield b"event: update\ndata: " + msgspec.json.encode(changes) + b"\n\n"
