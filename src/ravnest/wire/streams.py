"""The seam between links and networks: an ordered stream of chunks, and how to get one.

A network only has to move chunks in order until it breaks. Everything else (who is speaking,
exactly once, what to repeat, holding back) is the same over every network and lives in link.py.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from ravnest.errors import RunError
from ravnest.wire.framing import Buffer


class StreamError(Exception):
    """The stream is gone, or could not be had; another one may go through."""

    def __init__(self, reason: str, *, nobody_there: bool = False) -> None:
        super().__init__(reason)
        self.nobody_there = nobody_there
        """The machine answered that nothing listens at this address."""


class ListenError(RunError):
    """The address of this provider cannot be listened on."""


Room = Callable[[int], memoryview | None]


def no_room(length: int) -> memoryview | None:
    """Nobody has prepared a place."""
    return None


class ChunkStream(Protocol):
    """One connection. Raises `StreamError` from any method once it is broken."""

    async def read(self, room: Room = no_room) -> Buffer | None:
        """The next chunk; None if the other side has closed. May be gone with the next call.

        `room` may be asked where a chunk of some length had best be put.
        """
        ...

    async def write(self, parts: Sequence[Buffer]) -> None:
        """One chunk, given in parts; returns when the network has room for more."""
        ...

    async def close(self) -> None:
        """Let what was written go out, then end. Does not raise."""
        ...

    def abandon(self) -> None:
        """Nobody uses this stream any more, however it ended; may be called again."""
        ...

    @property
    def chunk_bytes(self) -> int:
        """What a frame is best divided into, in either direction: both sides are told."""
        ...

    def doubt(self, node: str) -> str | None:
        """Why the other side cannot be this node, as far as the network can tell; None if it may
        be. Networks that do not know who calls doubt nobody."""
        ...


StreamHandler = Callable[[ChunkStream], Awaitable[None]]


class Network(Protocol):
    """A way to reach other providers. All calls come from one event loop."""

    async def listen(self, address: str, handler: StreamHandler) -> None:
        """Serve every stream that is opened to `address` with `handler`; `ListenError` if taken."""
        ...

    async def dial(self, address: str) -> ChunkStream:
        """Open a stream, or raise `StreamError`."""
        ...

    async def close(self) -> None:
        """Stop listening and end all streams."""
        ...
