"""What machines ask: to be enrolled, for the files of their work, to bring results back."""

import datetime
import os
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ravnest.api.limits import encode
from ravnest.api.requests import Enrol, Enrolled, ProviderAction, Renew, Renewed
from ravnest.api.tokens import Credential, digest_of
from ravnest.api.views import ProviderView
from ravnest.errors import TokenError
from ravnest.server.changes import Change, Put
from ravnest.server.service.calls import Call, Endpoint
from ravnest.server.service.downloads import Download
from ravnest.server.service.problems import Refusal
from ravnest.server.service.service import Service
from ravnest.server.state.events import EnrolledNow, Fetched, ProviderSteered
from ravnest.server.state.parts import own_part
from ravnest.server.state.records import Part

PROBE_BYTES = 32 << 20
_PIECE = os.urandom(1 << 16)
"""Not compressible, in case somebody on the way tries."""


def content_length(request: Request) -> int | None:
    text = request.headers.get("content-length")
    return int(text) if text is not None and text.isdigit() else None


class _Providers:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def enrol(self, call: Call) -> Enrolled:
        service, world = self._service, self._service.world
        wanted = await call.body(Enrol)
        present = sum(not provider.removed for provider in world.providers.values())
        if present >= service.options.most_providers:
            raise Refusal("conflict", f"the server has {present} providers, and takes no more")
        # From here to `happen` nothing waits: the number is nobody else's.
        provider = world.next_provider()
        now = datetime.datetime.fromtimestamp(service.clock(), datetime.UTC)
        certificate = service.authority.sign_provider(provider, wanted.key_request, now)
        credential = Credential.make(provider)
        assert call.caller.token is not None
        try:
            spent = service.access.spend(call.caller.token, service.clock())
        except TokenError as error:
            raise Refusal("unauthorized", str(error)) from None
        extra: list[Change] = []
        if spent is None:
            self._must_be_few(call.caller.token)
        else:
            extra.append(Put("token", spent.id, encode(spent)))
        await service.core.happen(
            EnrolledNow(
                provider=provider,
                name=wanted.name,
                digest=digest_of(credential.secret),
                facts=wanted.facts,
                caps=wanted.caps,
                token=call.caller.token,
            ),
            extra,
        )
        return Enrolled(
            provider=provider,
            credential=str(credential),
            certificate=certificate,
            authority=service.authority.pem,
        )

    def _must_be_few(self, token: str) -> None:
        """One token that went astray does not fill the pool."""
        known = self._service.world.providers.values()
        present = sum(not provider.removed for provider in known if provider.token == token)
        if present >= self._service.options.most_providers_each:
            raise Refusal(
                "conflict",
                f"{present} providers have enrolled with this token, and it takes no more; one "
                "that is made for a number of them does (ravnest token make provider --uses N)",
            )

    async def renew(self, call: Call) -> Renewed:
        wanted = await call.body(Renew)
        assert call.caller.provider is not None
        now = datetime.datetime.fromtimestamp(self._service.clock(), datetime.UTC)
        sign = self._service.authority.sign_provider
        return Renewed(certificate=sign(call.caller.provider, wanted.key_request, now))

    def _part(self, call: Call) -> Part:
        provider = call.caller.provider
        assert provider is not None
        part = own_part(self._service.world, provider, call.path("assignment"))
        if part is None:
            raise Refusal("not_found", "this is not an assignment of this provider")
        return part

    async def file(self, call: Call) -> Response:
        part, core = self._part(call), self._service.core
        path = await self._service.run_files.file(part, call.path("sha256"))
        if not path.is_file():
            raise Refusal("not_found", "this file is gone; the run is probably over")

        def told(size: int) -> None:
            core.happen(Fetched(provider=part.provider, assignment=part.id, bytes=size))

        return Download(path, headers={"X-Sha256": call.path("sha256")}, told=told)

    async def result(self, call: Call) -> None:
        service, part, name = self._service, self._part(call), call.path("path")
        if not part.is_open:
            raise Refusal("conflict", "this assignment is over; nothing is expected of it")
        sha256 = call.request.headers.get("x-sha256", "")
        if len(sha256) != 64:
            raise Refusal("invalid", "the header X-Sha256 must hold the hash of the file")
        size = content_length(call.request)
        await service.run_files.receive(part, name, sha256, size, call.stream())

    async def down(self, call: Call) -> Response:
        size = int(call.number("bytes", 1 << 20, 0, PROBE_BYTES))

        async def pieces() -> AsyncIterator[bytes]:
            left = size
            while left > 0:
                yield _PIECE[: min(left, len(_PIECE))]
                left -= len(_PIECE)

        headers = {"Content-Length": str(size)}
        return StreamingResponse(pieces(), headers=headers, media_type="application/octet-stream")

    async def up(self, call: Call) -> None:
        size = 0
        async for piece in call.stream():
            size += len(piece)
            if size > PROBE_BYTES:
                raise Refusal("too_large", f"a probe has at most {PROBE_BYTES} bytes")

    async def steer_me(self, call: Call) -> None:
        wanted = await call.body(ProviderAction)
        assert call.caller.provider is not None
        event = ProviderSteered(
            provider=call.caller.provider,
            action="leave" if wanted.action == "remove" else wanted.action,
            by="its owner",
        )
        await self._service.core.happen(event)

    async def me(self, call: Call) -> ProviderView:
        seen = {view.id: view for view in self._service.stream.providers()}
        assert call.caller.provider is not None
        return seen[call.caller.provider]

    async def leave(self, call: Call) -> None:
        assert call.caller.provider is not None
        event = ProviderSteered(provider=call.caller.provider, action="leave", by="its owner")
        await self._service.core.happen(event)


def endpoints(service: Service) -> list[Endpoint]:
    here = _Providers(service)
    binary = "application/octet-stream"
    return [
        Endpoint(
            "POST",
            "/api/v1/enrol",
            "enrol",
            here.enrol,
            "Become a provider",
            body=Enrol,
            answer=Enrolled,
            limit="enrol",
        ),
        Endpoint(
            "GET",
            "/api/v1/assignments/{assignment}/files/{sha256}",
            "work",
            here.file,
            "A file of an assignment; Range is understood",
            media=binary,
            limit="upload",
        ),
        Endpoint(
            "PUT",
            "/api/v1/assignments/{assignment}/results/{path}",
            "work",
            here.result,
            "Bring back a trained file, with its hash in X-Sha256",
            limit="upload",
        ),
        Endpoint(
            "GET",
            "/api/v1/probe/down",
            "work",
            here.down,
            "Bytes, to measure a download",
            media=binary,
            limit="probe",
            query={"bytes": "how many, at most 33554432"},
        ),
        Endpoint(
            "POST",
            "/api/v1/probe/up",
            "work",
            here.up,
            "Take bytes, to measure an upload",
            limit="probe",
        ),
        Endpoint(
            "GET",
            "/api/v1/providers/me",
            "work",
            here.me,
            "What others see of this provider",
            answer=ProviderView,
        ),
        Endpoint(
            "POST",
            "/api/v1/providers/me/action",
            "work",
            here.steer_me,
            "Pause or resume this provider from elsewhere",
            body=ProviderAction,
        ),
        Endpoint(
            "POST",
            "/api/v1/providers/me/certificate",
            "work",
            here.renew,
            "A certificate for links between providers that takes the place of one that ends",
            body=Renew,
            answer=Renewed,
            limit="connect",
        ),
        Endpoint(
            "POST",
            "/api/v1/leave",
            "work",
            here.leave,
            "Leave for good, once present work has ended in good order",
        ),
    ]
