"""The control channel: what an agent says, taken as events; what it is told, sent in order."""

import asyncio
from collections.abc import Callable

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from ravnest.api import VERSION
from ravnest.api.control import (
    Ended,
    FromAgent,
    Hello,
    Rejected,
    Reported,
    agent_decoder,
)
from ravnest.api.dialling import Ip, bare_ip
from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.api.machine import provider_name
from ravnest.server.service.calls import Desk, address_of
from ravnest.server.service.connections import Connection, Connections
from ravnest.server.service.core import Core
from ravnest.server.service.problems import Refusal
from ravnest.server.state.events import Connected, Disconnected, Heard

FIRST_WORD_S = 20.0
MESSAGE_BYTES = 2 << 20
_GOODBYE_S = 5.0
_OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-real-ip")


class ControlChannel:
    def __init__(
        self,
        core: Core,
        desk: Desk,
        connections: Connections,
        *,
        reported: Callable[[int, Reported], None],
        ended: Callable[[int, Ended], None],
        gone: Callable[[int], None],
        count: Callable[[str], None],
    ) -> None:
        self._core = core
        self._desk = desk
        self._connections = connections
        self._reported = reported
        self._ended = ended
        self._gone = gone
        self._count = count

    async def serve(self, socket: WebSocket) -> None:
        try:
            caller = self._desk.admit(socket, "work", "connect")
        except Refusal as error:
            await socket.send_denial_response(self._desk.refuse(socket, "/agent", error))
            return
        assert caller.provider is not None
        await socket.accept()
        try:
            hello = await self._first_word(socket)
            # It may have been removed while it was silent.
            self._desk.gate.caller(socket.headers, address_of(socket))
        except (Refusal, TimeoutError) as error:
            reason = str(error) or f"nothing was said for {FIRST_WORD_S:.0f} seconds"
            self._desk.refuse(socket, "/agent", Refusal("invalid", reason))
            await _say_and_close(socket, reason)
            return
        except WebSocketDisconnect:
            return
        await self._talk(socket, caller.provider, hello)

    async def _first_word(self, socket: WebSocket) -> Hello:
        async with asyncio.timeout(FIRST_WORD_S):
            message = decoded(await _receive(socket))
        if not isinstance(message, Hello):
            raise Refusal("invalid", "the first message must be hello")
        if message.protocol != VERSION:
            raise Refusal(
                "invalid",
                f"this server speaks version {VERSION} of the protocol, the agent version "
                f"{message.protocol}; install the same release on both",
            )
        return message

    def _source(self, socket: WebSocket) -> Ip | None:
        """Nothing behind a proxy: what comes from its address comes from anywhere. Whether there is
        one its operator says (`--behind-proxy`), or the proxy itself by its headers."""
        headers = socket.headers
        proxied = not self._desk.gate.per_address or any(name in headers for name in _OF_PROXIES)
        return None if proxied else bare_ip(address_of(socket))

    async def _talk(self, socket: WebSocket, provider: int, hello: Hello) -> None:
        connection = Connection(provider, address_of(socket))
        self._connections.take(connection)
        self._core.happen(Connected(provider=provider, hello=hello, source=self._source(socket)))
        sending = asyncio.create_task(_send_all(socket, connection))
        hearing = asyncio.create_task(self._hear_all(socket, connection))
        try:
            await asyncio.wait({sending, hearing}, return_when=asyncio.FIRST_COMPLETED)
            why = hearing.result() if hearing.done() else ""
            if hearing.done():
                # What was decided because of its last words is still told, if it listens.
                connection.close(why)
                async with asyncio.timeout(_GOODBYE_S):
                    await sending
        except TimeoutError:
            why = "it does not read what it is told"
        finally:
            for task in (sending, hearing):
                task.cancel()
            await asyncio.gather(sending, hearing, return_exceptions=True)
            connection.closed = True
            if self._connections.drop(connection) and not self._core.is_closed:
                self._gone(provider)
                self._core.happen(Disconnected(provider=provider, reason=why))

    async def _hear_all(self, socket: WebSocket, connection: Connection) -> str:
        """Why it ended; empty if the agent just went."""
        provider = connection.provider
        key = provider_name(provider)
        while True:
            try:
                text = await _receive(socket)
                self._desk.gate.limit("message", key)
                message = decoded(text)
                if isinstance(message, Hello):
                    raise Refusal("invalid", "hello is said once, at the beginning of a connection")
            except WebSocketDisconnect:
                return ""
            except Refusal as error:
                self._desk.refuse(socket, "/agent", error)
                return error.error
            if connection.closed:
                return ""
            self._take(provider, message)
            self._count(str(type(message).__struct_config__.tag))

    def _take(self, provider: int, message: FromAgent) -> None:
        if isinstance(message, Reported):
            self._reported(provider, message)
        elif isinstance(message, Ended):
            self._ended(provider, message)
        else:
            self._core.happen(Heard(provider=provider, message=message))


def decoded(text: str) -> FromAgent:
    try:
        return agent_decoder.decode(text)
    except NOT_UNDERSTOOD as error:
        raise Refusal("invalid", f"this message is not understood: {error}") from None


async def _receive(socket: WebSocket) -> str:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    text = message.get("text")
    if not isinstance(text, str):
        raise Refusal("invalid", "messages of an agent are text")
    return text


async def _send_all(socket: WebSocket, connection: Connection) -> None:
    try:
        while (text := await connection.next()) is not None:
            await socket.send_text(text)
        await socket.close()
    except (WebSocketDisconnect, RuntimeError, OSError):
        # Gone; the other half hears of it.
        connection.closed = True


async def _say_and_close(socket: WebSocket, reason: str) -> None:
    try:
        last = Rejected(reason=reason, final=False)
        await socket.send_text(msgspec.json.encode(last).decode())
        await socket.close()
    except (WebSocketDisconnect, RuntimeError, OSError):
        pass
