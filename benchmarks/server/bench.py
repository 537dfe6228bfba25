"""What a server does with a thousand providers: how fast, how much memory, is it still there.

Rates are given beside those of a server that does nothing with the same requests over the same TLS
(`nothing.py`): what is left of them is what ours costs. The crowd runs in this process and needs
a core of its own.

    python3 dev.py bench server

A smaller crowd, to try it: PROVIDERS=20 in the environment.
"""

import asyncio
import contextlib
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import psutil
from crowd import Crowd, Member, all_say

HERE = Path(__file__).parent
PROVIDERS = int(os.environ.get("PROVIDERS", "1000"))
BEATS, REPORTS = 40, 10
LOAD_S = 30.0


@contextlib.contextmanager
def serving(command: list[str]) -> "Iterator[tuple[dict[str, str], psutil.Process]]":
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline()), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


async def timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def until(count: Callable[[], Awaitable[float]], wanted: float) -> None:
    """The server has dealt with so many; it is asked a few times a second."""
    while await count() < wanted:
        await asyncio.sleep(0.05)


class Counting:
    """How many messages the server has dealt with, by its own figures."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def __call__(self) -> float:
        text = (await self._client.get("metrics")).text
        lines = (line for line in text.splitlines() if line.startswith("ravnest_agent_messages_t"))
        return sum(float(line.rpartition(" ")[2]) for line in lines)


async def rates(
    crowd: Crowd, token: str, count: Callable[[], Awaitable[float]]
) -> dict[str, float]:
    """Enrolments, connections and heartbeats per second, one kind after the other."""
    bodies = Crowd.enrolments(PROVIDERS)
    found = {"registrations": PROVIDERS / await timed(crowd.enrol(token, bodies))}
    found["connections"] = PROVIDERS / await timed(crowd.connect())
    found["heartbeats"] = await flood(crowd.members, Member.beat, BEATS, count)
    return found


async def flood(
    members: list[Member],
    what: Callable[[Member], object],
    times: int,
    count: Callable[[], Awaitable[float]],
) -> float:
    before = await count()
    began = time.perf_counter()
    said = await all_say(members, what, times)
    await until(count, before + said)
    return said / (time.perf_counter() - began)


# ---- the server that does nothing


async def baseline() -> dict[str, float]:
    with serving([sys.executable, str(HERE / "nothing.py")]) as (ready, process):
        context = ssl.create_default_context(cafile=ready["authority"])
        crowd = Crowd(ready["url"], context)
        async with crowd.client("x") as client:
            found = await rates(crowd, "x", Counting(client))
            found["memory MB"] = process.memory_info().rss / 1e6
        await crowd.leave()
    return found


# ---- ours


async def ours(folder: Path) -> tuple[dict[str, float], list[str]]:
    command = [sys.executable, "-m", "ravnest", "server", "--host", "127.0.0.1", "--port", "0"]
    command += ["--data", str(folder), "--print-json"]
    with serving(command) as (ready, process):
        operator = Path(ready["operator_token_file"]).read_text().strip()
        context = ssl.create_default_context(cafile=str(folder / "authority" / "ca.pem"))
        crowd = Crowd(ready["url"], context)
        async with crowd.client(operator) as client:
            counting = Counting(client)
            found = await rates(crowd, ready["join_token"], counting)
            found["memory MB"] = process.memory_info().rss / 1e6
            at_work = await a_large_job(crowd, client, folder)
            found["status updates"] = await flood(
                at_work, lambda member: member.report(time.time()), REPORTS, counting
            )
            lines = await steady(crowd, at_work, client, process)
        await crowd.leave()
    return found, lines


async def a_large_job(crowd: Crowd, client: httpx.AsyncClient, folder: Path) -> list[Member]:
    """One job for as many of the crowd as can take part; returns those that train."""
    from a_large_job import make_large_job

    began = asyncio.Event()
    training: list[Member] = []

    def on_news(member: Member) -> None:
        training.append(member)
        began.set()

    crowd.listen(on_news)
    spec, files = make_large_job(folder.parent / "job", PROVIDERS)
    for sha256, path in files.items():
        (await client.put(f"blobs/{sha256}", content=path.read_bytes())).raise_for_status()
    answer = await client.post("jobs", content=spec)
    answer.raise_for_status()
    job = answer.json()["id"]
    await asyncio.wait_for(began.wait(), 600)
    parts = (await client.get(f"jobs/{job}")).json()["run"]["clusters"]
    wanted = sum(len(cluster["stages"]) for cluster in parts)
    while len(training) < wanted:
        await asyncio.sleep(0.1)
    return training


async def steady(
    crowd: Crowd, at_work: list[Member], client: httpx.AsyncClient, process: psutil.Process
) -> list[str]:
    """The load of an ordinary day: a beat each 5 s from all, a report each second from workers."""
    ends = time.monotonic() + LOAD_S
    said = 0

    async def live(member: Member, number: int) -> None:
        nonlocal said
        await asyncio.sleep(number / len(crowd.members))
        turn = 0
        while time.monotonic() < ends:
            due = time.monotonic() + 1.0
            if turn % 5 == number % 5:
                await member.say(member.beat())
                said += 1
            if member.trains:
                await member.say(member.report(time.time()))
                said += 1
            turn += 1
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    asked: dict[str, list[float]] = {"healthz": [], "overview": [], "stream": []}

    async def ask(path: str, every_s: float) -> None:
        while time.monotonic() < ends:
            began = time.perf_counter()
            (await client.get(path)).raise_for_status()
            asked[path.rpartition("/")[2]].append(time.perf_counter() - began)
            await asyncio.sleep(every_s)

    async def look() -> None:
        last = None
        async for _ in updates(client):
            now = time.perf_counter()
            if last is not None:
                asked["stream"].append(now - last)
            last = now
            if time.monotonic() > ends:
                return

    process.cpu_percent()
    began = time.monotonic()
    await asyncio.gather(
        *(live(member, number) for number, member in enumerate(crowd.members)),
        ask(f"{crowd.url}/healthz", 0.05),
        ask("overview", 1.0),
        look(),
    )
    seconds = time.monotonic() - began
    cpu, memory = process.cpu_percent(), process.memory_info().rss / 1e6

    def told(name: str, unit: float = 1e3) -> str:
        values = sorted(asked[name])
        ninety_nine = values[min(len(values) - 1, int(0.99 * len(values)))]
        return f"{statistics.median(values) * unit:.1f} / {ninety_nine * unit:.1f} ms"

    return [
        f"{len(crowd.members)} providers, {len(at_work)} at work: {said / seconds:.0f} messages/s",
        f"the server: {cpu:.0f} % of a core, {memory:.0f} MB",
        f"/healthz {told('healthz')} (median / 99th percentile)",
        f"/overview {told('overview')}",
        f"between two updates of a dashboard {told('stream')}",
    ]


async def updates(client: httpx.AsyncClient) -> AsyncIterator[str]:
    async with client.stream("GET", "stream") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("event: update"):
                yield line


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found, lines = asyncio.run(ours(Path(folder) / "server"))
    empty = asyncio.run(baseline())
    print(f"\n{PROVIDERS} providers over TLS, per second (beside: a server that does nothing)\n")
    for name, value in found.items():
        beside = f"  {empty[name]:9,.0f}   {value / empty[name]:.2f}" if name in empty else ""
        print(f"  {name:16} {value:9,.0f}{beside}")
    print("\nThe load of an ordinary day\n")
    for line in lines:
        print(f"  {line}")


if __name__ == "__main__":
    main()
