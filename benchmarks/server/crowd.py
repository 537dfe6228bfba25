"""A thousand providers without machines: each enrols, connects and says what a real agent says."""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import ClientConnection, connect

from ravnest.api import VERSION
from ravnest.api.control import (
    Assign,
    Beat,
    Begin,
    FromAgent,
    Hello,
    Measured,
    Prepared,
    Reported,
    server_decoder,
)
from ravnest.api.machine import Caps, Figures, MachineFacts
from ravnest.api.requests import Enrol, Enrolled
from ravnest.api.work import LinkBytes, Point, Span, WorkReport

FACTS = MachineFacts(
    hostname="crowd",
    system="Linux",
    python="3.11",
    torch="2.13",
    ravnest="0.1",
    cores=8,
    memory_bytes=16 << 30,
)
FIGURES = Figures(
    memory_bytes=8 << 30, gflops=100.0, up_mbps=100.0, down_mbps=100.0, latency_ms=10.0
)


@dataclass
class Member:
    """One of the crowd."""

    provider: int
    credential: str
    socket: ClientConnection | None = None
    assignment: str | None = None
    trains: bool = False
    steps: int = 0
    listening: "asyncio.Task[None] | None" = None

    async def say(self, message: FromAgent) -> None:
        assert self.socket is not None
        await self.socket.send(msgspec.json.encode(message), text=True)

    async def listen(self, on_news: Callable[["Member"], None]) -> None:
        """Be assigned and begin, as a real agent would after it has fetched its files."""
        assert self.socket is not None
        async for text in self.socket:
            message = server_decoder.decode(text)
            if isinstance(message, Assign):
                self.assignment = message.assignment.id
                await self.say(Prepared(assignment=self.assignment))
            elif isinstance(message, Begin):
                self.trains = True
                on_news(self)

    def beat(self) -> Beat:
        return Beat(
            state="training" if self.trains else "idle",
            assignment=self.assignment if self.trains else None,
            memory_free_bytes=4 << 30,
            worker_memory_bytes=1 << 30,
            cpu=0.5,
        )

    def report(self, now: float) -> Reported:
        """What a worker says each second: 40 spans, two links, a point of the curve."""
        assert self.assignment is not None
        self.steps += 10
        spans = tuple(
            Span("forward" if n % 2 else "backward", self.steps + n // 4, n % 4, now, now + 0.02)
            for n in range(40)
        )
        links = tuple(LinkBytes(node=f"node_{n}", sent=self.steps, received=9) for n in (1, 2))
        loss = Point("train/loss", self.steps, self.steps / 100, now, 1 / self.steps)
        report = WorkReport(
            at=now, step=self.steps, busy=0.8, links=links, spans=spans, points=(loss,)
        )
        return Reported(assignment=self.assignment, report=report)


@dataclass
class Crowd:
    url: str
    context: ssl.SSLContext
    members: list[Member] = field(default_factory=list)

    @staticmethod
    def enrolments(count: int) -> list[bytes]:
        """Bodies made beforehand: keys are the machines' own work."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
        pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
        return [
            msgspec.json.encode(
                Enrol(name=f"machine {number}", facts=FACTS, caps=Caps(), key_request=pem)
            )
            for number in range(count)
        ]

    async def enrol(self, token: str, bodies: Sequence[bytes], at_once: int = 32) -> None:
        async def one(client: httpx.AsyncClient, todo: list[bytes]) -> None:
            while todo:
                answer = await client.post("enrol", content=todo.pop())
                answer.raise_for_status()
                known = msgspec.json.decode(answer.content, type=Enrolled)
                self.members.append(Member(known.provider, known.credential))

        todo = list(bodies)
        async with self.client(token) as client:
            await asyncio.gather(*(one(client, todo) for _ in range(at_once)))

    def client(self, bearer: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"{self.url}/api/v{VERSION}/",
            verify=self.context,
            headers={"Authorization": f"Bearer {bearer}"},
            timeout=120,
        )

    async def connect(self, at_once: int = 50) -> None:
        gate = asyncio.Semaphore(at_once)

        async def one(member: Member) -> None:
            async with gate:
                member.socket = await connect(
                    f"{self.url.replace('https', 'wss', 1)}/api/v{VERSION}/agent",
                    ssl=self.context,
                    additional_headers={"Authorization": f"Bearer {member.credential}"},
                    open_timeout=120,
                    ping_interval=None,
                )
                await member.say(Hello(protocol=VERSION, facts=FACTS, caps=Caps(), state="idle"))
                await member.socket.recv()
                await member.say(Measured(figures=FIGURES))

        await asyncio.gather(*map(one, self.members))

    def listen(self, on_news: Callable[[Member], None]) -> None:
        for member in self.members:
            member.listening = asyncio.create_task(member.listen(on_news))

    async def leave(self) -> None:
        for member in self.members:
            if member.socket is not None:
                await member.socket.close()
        await asyncio.gather(
            *(m.listening for m in self.members if m.listening), return_exceptions=True
        )


async def all_say(members: Iterable[Member], what: Callable[[Member], Any], times: int) -> int:
    """Everybody at once, as fast as it goes; how many messages that were."""

    async def one(member: Member) -> int:
        for _ in range(times):
            await member.say(what(member))
        return times

    return sum(await asyncio.gather(*map(one, members)))
