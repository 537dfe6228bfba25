"""The agents that are connected: one connection each, the newest."""

import asyncio
import logging

import msgspec

from ravnest.api.control import FromServer, Rejected

logger = logging.getLogger("ravnest.server")

_MOST_WAITING = 1000
_MOST_WAITING_BYTES = 64 << 20
"""Messages to an agent that does not read them."""

_encoder = msgspec.json.Encoder()


class Connection:
    """What goes to one agent; somebody else takes it from the queue and sends it."""

    def __init__(self, provider: int, address: str) -> None:
        self.provider = provider
        self.address = address
        self._outgoing: asyncio.Queue[tuple[str, str] | None] = asyncio.Queue()
        self._waiting_bytes = 0
        self._waiting: set[str] = set()
        """What the messages are about that must not wait here twice."""
        self.closed = False

    def post(self, message: FromServer) -> None:
        self.post_text(_encoder.encode(message).decode())

    def post_text(self, text: str, about: str = "") -> None:
        """A written message; not if another one about the same thing has not been sent yet."""
        if self.closed or about in self._waiting:
            return
        full = self._waiting_bytes + len(text) > _MOST_WAITING_BYTES and self._waiting_bytes > 0
        if full or self._outgoing.qsize() >= _MOST_WAITING:
            logger.warning("provider %d does not read what it is told", self.provider)
            self.close()
            return
        self._waiting_bytes += len(text)
        if about:
            self._waiting.add(about)
        self._outgoing.put_nowait((text, about))

    async def next(self) -> str | None:
        """What is to be sent next; None after the last words."""
        found = await self._outgoing.get()
        if found is None:
            return None
        text, about = found
        self._waiting_bytes -= len(text)
        self._waiting.discard(about)
        return text

    def close(self, reason: str = "", *, final: bool = False) -> None:
        """After everything posted before, and last words if there are any."""
        if self.closed:
            return
        if reason:
            self.post(Rejected(reason=reason, final=final))
        self.closed = True
        self._outgoing.put_nowait(None)


class Connections:
    def __init__(self) -> None:
        self._by_provider: dict[int, Connection] = {}

    def __len__(self) -> int:
        return len(self._by_provider)

    def take(self, connection: Connection) -> None:
        """From now on this is the provider's connection."""
        old = self._by_provider.get(connection.provider)
        if old is not None:
            old.close("this provider has connected anew")
        self._by_provider[connection.provider] = connection

    def drop(self, connection: Connection) -> bool:
        """Whether this was the provider's connection."""
        if self._by_provider.get(connection.provider) is not connection:
            return False
        del self._by_provider[connection.provider]
        return True

    def get(self, provider: int) -> Connection | None:
        return self._by_provider.get(provider)

    def post(self, provider: int, message: FromServer) -> None:
        if (connection := self._by_provider.get(provider)) is not None:
            connection.post(message)

    def post_text(self, provider: int, text: str, about: str) -> None:
        if (connection := self._by_provider.get(provider)) is not None:
            connection.post_text(text, about)

    def hang_up(self, provider: int, reason: str) -> None:
        """It may come back at once."""
        if (connection := self._by_provider.get(provider)) is not None:
            connection.close(reason)

    def close_all(self) -> None:
        for connection in list(self._by_provider.values()):
            connection.close("the server ends")
