"""Providers that cannot reach each other meet here: two WebSockets, piped into each other.

What they say is encrypted between them. A frame is taken from one side only when the one before has
gone out on the other, so a slow side slows the other down and memory stays bounded. Both must have
a part in the same run, and the call ends with the first of the two parts.
"""

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.websockets import WebSocket, WebSocketDisconnect

from ravnest.api.control import Incoming
from ravnest.server.service.calls import Desk
from ravnest.server.service.connections import Connections
from ravnest.server.service.problems import Refusal
from ravnest.server.state.effects import Effects
from ravnest.server.state.records import Part
from ravnest.server.state.world import World

FRAME_BYTES = 256 << 10
ANSWER_S = 30.0
MOST_CALLS = 4096
MOST_CALLS_EACH = 256
"""That one provider is in, as caller or called: as many neighbours as it has, and some more while
links are made anew."""
_WINDOW_S = 5.0


@dataclass
class _Call:
    caller: int
    callee: int
    parts: tuple[Part, Part]
    answered: "asyncio.Future[WebSocket]"
    over: asyncio.Event = field(default_factory=asyncio.Event)
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    """One of the two has no part in the run any more."""


class Relay:
    def __init__(
        self,
        world: World,
        desk: Desk,
        connections: Connections,
        *,
        count: Callable[[int], None] = lambda size: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._world = world
        self._desk = desk
        self._connections = connections
        self._count = count
        self._clock = clock
        self._calls: dict[str, _Call] = {}
        self._of_each: Counter[int] = Counter()
        self.bytes = 0
        self._marks: list[tuple[float, int]] = []

    @property
    def links(self) -> int:
        return len(self._calls)

    def bytes_per_s(self) -> float:
        """Over the last seconds, from one question to the next."""
        now = self._clock()
        self._marks.append((now, self.bytes))
        while len(self._marks) > 2 and self._marks[1][0] <= now - _WINDOW_S:
            self._marks.pop(0)
        (then, before), (_, after) = self._marks[0], self._marks[-1]
        return (after - before) / (now - then) if now > then else 0.0

    async def dial(self, socket: WebSocket) -> None:
        """One provider calls another one of its run."""
        route = "/relay/dial"
        try:
            caller = self._desk.admit(socket, "work", "relay").provider
            assert caller is not None
            callee = self._may_call(caller, socket.path_params)
        except Refusal as error:
            await socket.send_denial_response(self._desk.refuse(socket, route, error))
            return
        name = secrets.token_urlsafe(18).replace("_", "x").replace("-", "y")
        parts = self._world.at_work[caller], self._world.at_work[callee]
        call = _Call(caller, callee, parts, asyncio.get_running_loop().create_future())
        self._calls[name] = call
        self._of_each.update((caller, callee))
        assignment = parts[1].id
        try:
            self._connections.post(
                callee, Incoming(call=name, caller=caller, assignment=assignment)
            )
            async with asyncio.timeout(ANSWER_S):
                other = await call.answered
            await socket.accept()
            await self._pipe(socket, other, call.cut)
        except TimeoutError:
            refusal = Refusal("conflict", f"provider {callee} does not answer the call")
            await socket.send_denial_response(self._desk.refuse(socket, route, refusal))
        finally:
            call.over.set()
            del self._calls[name]
            self._of_each.subtract((caller, callee))
            self._of_each = +self._of_each  # without those that have none

    def _may_call(self, caller: int, where: dict[str, str]) -> int:
        """The one that is called; a `Refusal` if these two have nothing to do with each other."""
        part = self._world.at_work.get(caller)
        callee = int(where["provider"])
        other = self._world.at_work.get(callee)
        if part is None or part.id != where["assignment"]:
            raise Refusal("forbidden", "this is not an assignment that the caller is at work on")
        if other is None or (other.job, other.run) != (part.job, part.run) or other is part:
            raise Refusal("forbidden", f"provider {callee} is not in the same run")
        if self._connections.get(callee) is None:
            raise Refusal("conflict", f"provider {callee} is not connected to the server")
        if len(self._calls) >= MOST_CALLS:
            raise Refusal("limited", "the server relays as many links as it can")
        for one in (caller, callee):
            if self._of_each[one] >= MOST_CALLS_EACH:
                raise Refusal(
                    "limited",
                    f"provider {one} has {MOST_CALLS_EACH} relayed links, the most allowed",
                )
        return callee

    async def accept(self, socket: WebSocket) -> None:
        """The other one answers."""
        try:
            provider = self._desk.admit(socket, "work", "relay").provider
            call = self._calls.get(socket.path_params["call"])
            if call is None or call.callee != provider or call.answered.done():
                raise Refusal("not_found", "there is no such call for this provider")
        except Refusal as error:
            await socket.send_denial_response(self._desk.refuse(socket, "/relay/accept", error))
            return
        await socket.accept()
        if call.answered.done():  # the caller has gone, or somebody was faster
            await socket.close()
            return
        call.answered.set_result(socket)
        await call.over.wait()

    def touch(self, effects: Effects) -> None:
        """End the calls of those whose part in a run is over; whoever was removed has none."""
        if not effects.jobs:
            return
        for call in self._calls.values():
            if call.parts[0].job in effects.jobs and not all(part.is_open for part in call.parts):
                call.cut.set()

    async def _pipe(self, one: WebSocket, other: WebSocket, cut: asyncio.Event) -> None:
        tasks = [
            asyncio.create_task(self._carry(one, other)),
            asyncio.create_task(self._carry(other, one)),
            asyncio.create_task(_wait(cut)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for socket in (one, other):
                await _close(socket)

    async def _carry(self, source: WebSocket, target: WebSocket) -> None:
        while True:
            message = await source.receive()
            frame = message.get("bytes")
            if not isinstance(frame, bytes) or len(frame) > FRAME_BYTES:
                return
            await target.send_bytes(frame)
            self.bytes += len(frame)
            self._count(len(frame))


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _close(socket: WebSocket) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
        await socket.close()
