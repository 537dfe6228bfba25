"""Waiting for something to be seen: on the server's own stream of events, not on the clock."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec

from ravnest.api.views import Changes, JobView, Overview


async def frames(server: Any, bearer: str | None = None) -> AsyncIterator[Overview | Changes]:
    context = ssl.create_default_context(cadata=server.authority)
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    url = f"{server.url}/api/v1/stream"
    async with (
        httpx.AsyncClient(verify=context, timeout=60, headers=headers) as client,
        client.stream("GET", url) as answer,
    ):
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                shape = Overview if kind == "overview" else Changes
                yield msgspec.json.decode(line.removeprefix("data: "), type=shape)


async def until(
    server: Any, job: str, wanted: Callable[[JobView], bool], timeout_s: float = 90
) -> JobView:
    """The first view of a job, as an operator has it, that is as wanted."""
    last = None
    try:
        async with asyncio.timeout(timeout_s):
            async for frame in frames(server, server.operator):
                for view in frame.jobs:
                    if view.id == job:
                        last = view
                        if wanted(view):
                            return view
    except TimeoutError:
        raise AssertionError(f"not seen; the last was {last}") from None
    raise AssertionError("the stream ended")


def job_is(*states: str) -> Callable[[JobView], bool]:
    return lambda view: view.state in states
