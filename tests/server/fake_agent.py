"""A provider's agent without a machine: enrols, connects, and answers by script.

agent = await FakeAgent.enrol(server.url, token, authority=server.authority, name="a")
async with agent.connected():            # hello, and welcome has come
    await agent.measure(gflops=100)
    assign = await agent.expect(Assign)  # whatever else comes is kept in agent.heard
    await agent.prepared(assign.assignment)
"""

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import httpx
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import ClientConnection, connect

from ravnest.api.control import (
    AgentState,
    Beat,
    Ended,
    FromAgent,
    FromServer,
    Hello,
    Measured,
    Prepared,
    Refused,
    Reported,
    Settled,
    Welcome,
    server_decoder,
)
from ravnest.api.limits import FileRef
from ravnest.api.machine import Caps, Figures, MachineFacts
from ravnest.api.requests import Enrol, Enrolled
from ravnest.api.work import Assignment, WorkEnd, WorkReport

EXPECT_S = 30.0
_Message = TypeVar("_Message")

FACTS = MachineFacts(
    hostname="box",
    system="Linux",
    python="3.11",
    torch="2.6",
    ravnest="0.1",
    cores=4,
    memory_bytes=8 << 30,
)


def key_request(name: str = "anything") -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = (
        x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.PEM).decode()


def figures(**more: Any) -> Figures:
    values: dict[str, Any] = {
        "memory_bytes": 4 << 30,
        "gflops": 50.0,
        "up_mbps": 100.0,
        "down_mbps": 100.0,
        "latency_ms": 1.0,
    }
    return Figures(**values | more)


def secure(authority: str | None) -> ssl.SSLContext | None:
    return ssl.create_default_context(cadata=authority) if authority else None


class FakeAgent:
    """One provider. Everything it hears is in `heard`, in order."""

    def __init__(self, url: str, enrolled: Enrolled, *, authority: str | None, name: str) -> None:
        self.url = url
        self.provider = enrolled.provider
        self.credential = enrolled.credential
        self.enrolled = enrolled
        self.authority = authority
        self.name = name
        self.caps = Caps()
        self.headers: dict[str, str] = {}
        """Beside those of every agent, as a proxy adds them."""
        self.state: AgentState = "idle"
        self.assignment: str | None = None
        self.heard: list[FromServer] = []
        self._unread: asyncio.Queue[FromServer | None] = asyncio.Queue()
        self._socket: ClientConnection | None = None

    @classmethod
    async def enrol(
        cls,
        url: str,
        token: str,
        *,
        authority: str | None,
        name: str = "fake",
        caps: Caps | None = None,
    ) -> "FakeAgent":
        caps = caps or Caps()
        body = Enrol(name=name, facts=FACTS, caps=caps, key_request=key_request())
        async with cls._http(url, token, authority) as client:
            answer = await client.post("enrol", content=msgspec.json.encode(body))
        assert answer.status_code == 200, answer.text
        enrolled = msgspec.json.decode(answer.content, type=Enrolled)
        agent = cls(url, enrolled, authority=authority, name=name)
        agent.caps = caps
        return agent

    @staticmethod
    def _http(url: str, bearer: str, authority: str | None) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"{url}/api/v1/",
            verify=secure(authority) or True,
            headers={"Authorization": f"Bearer {bearer}"},
            timeout=30,
        )

    def http(self) -> httpx.AsyncClient:
        return self._http(self.url, self.credential, self.authority)

    # ---- the control channel

    @contextlib.asynccontextmanager
    async def socket(self, path: str) -> AsyncIterator[ClientConnection]:
        """Any WebSocket of the server, with this provider's credential."""
        async with connect(
            f"{self.url.replace('http', 'ws', 1)}/api/v1/{path}",
            ssl=secure(self.authority),
            additional_headers={"Authorization": f"Bearer {self.credential}", **self.headers},
            proxy=None,
            compression=None,
            max_size=64 << 20,
        ) as socket:
            yield socket

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator["FakeAgent"]:
        self._unread = asyncio.Queue()
        async with self.socket("agent") as self._socket:
            reading = asyncio.create_task(self._read(self._socket))
            try:
                await self.say(
                    Hello(
                        protocol=1,
                        facts=FACTS,
                        caps=self.caps,
                        state=self.state,
                        assignment=self.assignment,
                    )
                )
                await self.expect(Welcome)
                yield self
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                self._socket = None

    async def _read(self, socket: ClientConnection) -> None:
        try:
            async for frame in socket:
                message = server_decoder.decode(frame)
                self.heard.append(message)
                self._unread.put_nowait(message)
        finally:
            self._unread.put_nowait(None)

    async def say(self, message: FromAgent) -> None:
        assert self._socket is not None, "not connected"
        await self._socket.send(msgspec.json.encode(message), text=True)

    async def say_text(self, text: str | bytes) -> None:
        assert self._socket is not None, "not connected"
        await self._socket.send(text)

    async def expect(self, kind: type[_Message], timeout_s: float = EXPECT_S) -> _Message:
        """The next message of this kind; others in between are passed over."""
        async with asyncio.timeout(timeout_s):
            while (message := await self._unread.get()) is not None:
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"the connection ended while waiting for {kind.__name__}")

    async def closed(self, timeout_s: float = EXPECT_S) -> None:
        async with asyncio.timeout(timeout_s):
            while await self._unread.get() is not None:
                pass

    # ---- what agents say

    async def measure(self, **more: Any) -> None:
        await self.say(Measured(figures=figures(**more)))

    async def beat(self, state: AgentState | None = None, **more: Any) -> None:
        self.state = state or self.state
        await self.say(Beat(state=self.state, assignment=self.assignment, **more))

    async def prepared(self, assignment: Assignment, relayed: tuple[int, ...] = ()) -> None:
        self.state, self.assignment = "ready", assignment.id
        await self.say(Prepared(assignment=assignment.id, relayed=relayed))

    async def refuse(self, assignment: Assignment, reason: str) -> None:
        await self.say(Refused(assignment=assignment.id, reason=reason))

    async def report(self, assignment: Assignment, report: WorkReport) -> None:
        await self.say(Reported(assignment=assignment.id, report=report))

    async def bring_back(self, assignment: Assignment, content: dict[str, bytes]) -> list[FileRef]:
        """Upload results."""
        refs = []
        async with self.http() as client:
            for path, body in content.items():
                sha256 = hashlib.sha256(body).hexdigest()
                answer = await client.put(
                    f"assignments/{assignment.id}/results/{path}",
                    content=body,
                    headers={"X-Sha256": sha256},
                )
                assert answer.status_code == 204, answer.text
                refs.append(FileRef(path=path, sha256=sha256, size=len(body)))
        return refs

    async def end(
        self,
        assignment: Assignment,
        end: WorkEnd,
        results: list[FileRef] | None = None,
    ) -> None:
        """Say how it ended, and wait until the server has taken note."""
        await self.say(Ended(assignment=assignment.id, end=end, results=tuple(results or ())))
        await self.expect(Settled)
        self.state, self.assignment = "idle", None
        await self.beat()
