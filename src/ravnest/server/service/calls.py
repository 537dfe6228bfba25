"""One request: who asks, what for, with which limits; and how its answer is written.

A handler is given a `Call` and returns data. Whatever it refuses becomes a `Problem`, is logged
with its reason and counted; whatever breaks becomes a `Problem` that tells strangers nothing.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.api.requests import Code
from ravnest.errors import RavnestError, ServerError
from ravnest.server.access import ONLOOKER, Caller, Right
from ravnest.server.connection_limits import address_group
from ravnest.server.service.gate import Gate
from ravnest.server.service.problems import Refusal
from ravnest.server.service.ratelimit import Lease, MemoryBudget, UploadSpeed
from ravnest.server.service.responses import PIECE_BYTES, LargeResponse, written
from ravnest.server.service.saying import Saying

logger = logging.getLogger("ravnest.server")

BODY_BYTES = 1 << 20
_Body = TypeVar("_Body")
Method = Literal["GET", "PUT", "POST", "DELETE", "HEAD"]
ALWAYS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


@dataclass(frozen=True)
class Call:
    request: Request
    caller: Caller
    right: Right | None
    """What its route takes."""
    gate: Gate
    upload_speed: UploadSpeed
    lease: Lease

    def check_still_allowed(self) -> None:
        """A `Refusal` if the caller would not be let in again: a token ends or is revoked, and a
        provider is removed, while a body is on its way or a model is checked."""
        if self.right is not None:
            address = address_of(self.request)
            who = self.gate.caller(self.request.headers, address)
            self.gate.allow(who, self.right, address)

    def is_still_allowed(self) -> bool:
        try:
            self.check_still_allowed()
        except Refusal:
            return False
        return True

    @property
    def whose(self) -> str:
        return whose(self.caller, self.request)

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """A number in the query."""
        text = self.request.query_params.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise Refusal("invalid", f"{name} is {text[:40]!r}; expected {least:g} to {most:g}")
        return value

    async def stream(self) -> AsyncIterator[bytes]:
        """The body as it comes, as long as it gets on. The caller decides how long that takes, so
        whoever has read all of it knows that the caller still has the right to what it asks for."""
        async for piece in self.upload_speed.enforce(self.request.stream()):
            yield piece
        self.check_still_allowed()

    async def content(self, most: int) -> bytearray:
        content = bytearray()
        async for piece in self.stream():
            content += piece
            if len(content) > most:
                raise Refusal("too_large", f"the body is larger than the {most} bytes allowed")
            self.lease.resize(len(content))
        return content

    async def body(self, kind: type[_Body], most: int = BODY_BYTES) -> _Body:
        content = await self.content(most)
        with understood(kind):
            return msgspec.json.decode(content, type=kind)


@contextlib.contextmanager
def understood(kind: type) -> Iterator[None]:
    """What cannot be decoded is refused."""
    try:
        yield
    except NOT_UNDERSTOOD as error:
        raise Refusal("invalid", f"the body is no valid {kind.__name__}: {error}") from None


Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True)
class Endpoint:
    """A line of the table of routes; documentation is made of it as well."""

    method: Method
    path: str
    right: Right | None
    """None: also for strangers."""
    handler: Handler
    summary: str
    body: Any = None
    answer: Any = None
    media: str = "application/json"
    limit: str = "call"
    query: Mapping[str, str] = field(default_factory=dict)
    """Name of each query parameter, and what it is for."""


def address_of(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else "unknown"


def whose(caller: Caller, connection: HTTPConnection) -> str:
    """What this is counted under: those without a token by their address."""
    return address_group(address_of(connection)) if caller is ONLOOKER else caller.key


def _not_counted(caller: str | None) -> None:
    """Without `ConnectionLimits` in front."""


class Desk:
    """Takes requests to their handlers."""

    def __init__(
        self, gate: Gate, count: Callable[[str, str], None], upload_speed: UploadSpeed | None = None
    ) -> None:
        self.gate = gate
        self._upload_speed = upload_speed or UploadSpeed()
        self.memory = MemoryBudget()
        self._saying = Saying(logger.warning)
        self._count = count
        """Route and outcome, for the metrics."""

    def admit(self, connection: HTTPConnection, right: Right | None, limit: str) -> Caller:
        """Whoever this is, if they may; a `Refusal` otherwise."""
        address = address_of(connection)
        caller = self.gate.caller(connection.headers, address)
        known = None if caller is None or caller is ONLOOKER else caller.key
        connection.scope.get("count_for", _not_counted)(known)
        if right is None:
            self.gate.limit_stranger(address)
            return caller or ONLOOKER
        caller = self.gate.allow(caller, right, address)
        self.gate.limit(limit, whose(caller, connection))
        return caller

    def endpoint(self, route: Endpoint) -> Callable[[Request], Awaitable[ASGIApp]]:
        async def serve(request: Request) -> ASGIApp:
            goes: ASGIApp | None = None
            try:
                caller = self.admit(request, route.right, route.limit)
                with Lease(self.memory, whose(caller, request)) as lease:
                    call = Call(request, caller, route.right, self.gate, self._upload_speed, lease)
                    response = written(await route.handler(call))
                if len(getattr(response, "body", b"")) > PIECE_BYTES:
                    lease.resize(len(response.body))
                    goes = LargeResponse(response, lease)
            except Exception as error:
                response = self.refuse(request, route.path, error)
            else:
                self._count(route.path, str(response.status_code))
            for name, value in ALWAYS.items():
                response.headers.setdefault(name, value)
            response.headers.setdefault("Cache-Control", "no-store")
            return goes or response

        return serve

    def refuse(self, connection: HTTPConnection, route: str, error: Exception) -> Response:
        """The answer to something that is not done; the reason is logged, secrets are not in it."""
        if isinstance(error, Refusal):
            refusal = error
        elif isinstance(error, ClientDisconnect):
            refusal = Refusal("invalid", "the sender went away in the middle")
        elif isinstance(error, ServerError):  # of the store, which is nobody else's business
            logger.error("%s failed: %s", route, error)
            refusal = Refusal("failed", "the server cannot keep anything now; its log says why")
        elif isinstance(error, RavnestError):
            refusal = Refusal(_code_of(error), str(error))
        else:
            logger.error("%s failed", route, exc_info=error)
            refusal = Refusal("failed", "the server failed at this; its log says why")
        method = connection.scope.get("method", "WS")
        address = address_of(connection)
        self._saying.say(
            address,
            f"refused {method} {route} from {address}: {refusal.error} ({refusal.code})",
        )
        self._count(route, refusal.code)
        return refusal.response()


def _code_of(error: RavnestError) -> Code:
    return "invalid" if isinstance(error, ValueError) else "failed"


class _Number(Convertor[int]):
    """An id in a path; of a length that can be read."""

    regex = "[0-9]{1,9}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())
