"""What requesters ask: to keep files, to run jobs, to steer them, to have the result."""

import hashlib
import re
from pathlib import Path

from starlette.responses import Response

from ravnest.api.jobs import JobSpec
from ravnest.api.requests import SUBMISSION_KEY, JobAction
from ravnest.api.views import JobView
from ravnest.errors import JobError
from ravnest.server.folders import FUSED, blob_key, owner_key
from ravnest.server.service.api.checking import check_job
from ravnest.server.service.api.providers import content_length
from ravnest.server.service.calls import Call, Endpoint, understood
from ravnest.server.service.downloads import Download
from ravnest.server.service.problems import Refusal
from ravnest.server.service.service import Service
from ravnest.server.service.specs import hashes_of, read_spec
from ravnest.server.state.events import JobSteered
from ravnest.server.state.records import Job

SPEC_BYTES = 64 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[A-Za-z0-9_-]{8,64}")


class _Requesters:
    def __init__(self, service: Service) -> None:
        self._service = service

    # ---- files

    def _sha256(self, call: Call) -> str:
        sha256 = call.path("sha256")
        if _SHA256.fullmatch(sha256) is None:
            raise Refusal("invalid", "a file is named by its SHA-256, 64 digits from 0 to f")
        return sha256

    async def has_blob(self, call: Call) -> Response:
        """Of the caller's own files: those of others are not spoken of."""
        files = self._service.files
        size = await files.off_loop(files.touch, blob_key(_owner(call), self._sha256(call)))
        headers = {} if size is None else {"X-Size": str(size)}
        return Response(status_code=404 if size is None else 200, headers=headers)

    async def put_blob(self, call: Call) -> None:
        sha256 = self._sha256(call)
        size = content_length(call.request)
        await self._service.files.receive_blob(
            _owner(call), sha256, size, call.stream(), has_share=call.caller.kind != "operator"
        )

    # ---- jobs

    async def submit(self, call: Call) -> JobView:
        service = self._service
        key = call.request.headers.get(SUBMISSION_KEY, "")
        if key and _KEY.fullmatch(key) is None:
            raise Refusal("invalid", f"{SUBMISSION_KEY} is 8 to 64 of: A to Z, a to z, 0 to 9, _ -")

        with service.intake.place(call.caller):
            with understood(JobSpec):
                # What has come is not held any longer than that: it may be large.
                spec, digest = await service.files.off_loop(_read, await call.content(SPEC_BYTES))
            await service.files.off_loop(check_job, spec)
            id = await service.intake.take(
                spec, call.caller, key, digest, before_it_is_kept=call.check_still_allowed
            )
        return _shown(service, id)

    async def steer(self, call: Call) -> JobView | None:
        service = self._service
        wanted = await call.body(JobAction)
        job = _own_job(service, call)
        id = job.id
        deletes = wanted.action == "delete"
        hashes = await service.core.read(lambda db: hashes_of(db, id)) if deletes else set()
        event = JobSteered(
            job=id,
            action=wanted.action,
            by=call.caller.name,
            by_operator=call.caller.kind == "operator",
        )
        job_of(service, call)  # somebody else may have deleted it meanwhile
        if wanted.action == "resume":
            service.intake.must_have_place(job.owner_role, job.owner_name)
        try:
            await service.core.happen(event)
        except JobError as error:
            raise Refusal("conflict", str(error)) from None
        if not deletes:
            return _shown(service, id)
        await service.keeping.forget(hashes, job.submitted_at)
        return None

    async def result(self, call: Call) -> Response:
        job = _own_job(self._service, call)
        kind = call.request.query_params.get("format", "safetensors")
        if kind not in FUSED:
            raise Refusal("invalid", f"format is {kind[:40]!r}; known are {', '.join(FUSED)}")
        path = self._service.folders.result(job.id) / FUSED[kind]
        if not job.fused_run or not path.is_file():
            raise Refusal("not_found", f"{job.id} has no fused weights yet; it is {job.state}")
        headers = _hash_header(path)
        return Download(path, headers=headers, filename=f"{job.id}-{FUSED[kind]}")


def _owner(call: Call) -> str:
    return owner_key(call.caller.kind, call.caller.name)


def _read(content: bytearray) -> tuple[JobSpec, str]:
    """A job, and the digest of how it was written."""
    return read_spec(content), hashlib.sha256(content).hexdigest()


def _hash_header(path: Path) -> dict[str, str]:
    """Fusion has written the hash beside the file."""
    try:
        return {"X-Sha256": path.with_name(f"{path.name}.sha256").read_text().strip()}
    except OSError:
        return {}


def job_of(service: Service, call: Call) -> Job:
    job = service.world.jobs.get(call.path("job"))
    if job is None:
        raise Refusal("not_found", f"there is no job {call.path('job')[:64]!r}")
    return job


def _own_job(service: Service, call: Call) -> Job:
    """The caller's, by their token or by a newer one of the same name; an operator has all."""
    job, caller = job_of(service, call), call.caller
    by_name = (caller.kind, caller.name) == (job.owner_role, job.owner_name)
    if caller.kind != "operator" and caller.token != job.owner and not by_name:
        raise Refusal(
            "forbidden",
            f"this job was submitted by {job.owner_name!r}; it takes their token, or an operator's",
        )
    return job


def _shown(service: Service, id: str) -> JobView:
    view = service.job_view(id)
    if view is None:
        raise Refusal("not_found", f"job {id} has been deleted meanwhile")
    return view


def endpoints(service: Service) -> list[Endpoint]:
    here = _Requesters(service)
    return [
        Endpoint(
            "HEAD",
            "/api/v1/blobs/{sha256}",
            "submit",
            here.has_blob,
            "Whether the caller has uploaded a file: 200 or 404",
            limit="upload",
        ),
        Endpoint(
            "PUT",
            "/api/v1/blobs/{sha256}",
            "submit",
            here.put_blob,
            "Hand in a file; its hash is checked",
            limit="upload",
        ),
        Endpoint(
            "POST",
            "/api/v1/jobs",
            "submit",
            here.submit,
            "Submit a job; its files are there already, else 409 with their hashes. Sent again "
            f"with the same {SUBMISSION_KEY} (header), it is still one job; with that of another "
            "job, 409",
            body=JobSpec,
            answer=JobView,
            limit="submit",
        ),
        Endpoint(
            "POST",
            "/api/v1/jobs/{job}/action",
            "steer",
            here.steer,
            "Steer a job: one's own, or everybody's for an operator",
            body=JobAction,
            answer=JobView | None,
        ),
        Endpoint(
            "GET",
            "/api/v1/jobs/{job}/result",
            "fetch",
            here.result,
            "The fused weights: of one's own job, or of any for an operator; Range is understood",
            media="application/octet-stream",
            query={"format": "safetensors or pt"},
        ),
    ]
