"""No more than so many bytes a second, over all streams of a network together, each in its turn.

    write ──► in line ──► its turn ──► the network
    the network ──► read ──► in line ──► its turn ──► the next read

Each direction has a limit of its own. What has come is handed out at once, and paid for before the
next chunk is taken: meanwhile the network is full, and the sender waits. How long, its link must
not take for silence, so whoever receives little asks for small chunks (see `Hello.chunk_bytes`).

Who goes next is decided by start-time fair queuing: a chunk's turn comes after those of streams
that have been given less. A stream that says little waits for one chunk of another at most, however
much the others have to say, and chunks are small where the line is slow.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence

from ravnest.wire.framing import CHUNK_BYTES, Buffer
from ravnest.wire.streams import ChunkStream, Network, Room, StreamHandler, no_room

_CHUNK_S = 0.05
"""What a chunk may take, unless it is a small one anyway."""
_LEAST_CHUNK = 16 << 10
_LATE_S = 0.05
"""A turn that comes late, because the machine was busy, does not make the line slower."""
_OVERHEAD, _PER_CHUNK = 1.04, 80
"""What TCP, encryption and the frames around it add, roughly."""


class Budget:
    """When the next bytes may go. Pure."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = float("-inf")

    @property
    def chunk_bytes(self) -> int:
        return min(CHUNK_BYTES, max(_LEAST_CHUNK, int(_CHUNK_S * self._bytes_per_s)))

    def wait_s(self, now: float) -> float:
        return max(0.0, self._free_at - now)

    def spend(self, size: int, now: float) -> None:
        cost = size * _OVERHEAD + _PER_CHUNK
        self._free_at = max(now - _LATE_S, self._free_at) + cost / self._bytes_per_s


class Turn:
    """One chunk's place in the line."""

    __slots__ = ("is_off", "order", "size", "start", "take")

    def __init__(self, size: int, start: float, order: int, take: Callable[[], None]) -> None:
        self.size, self.start, self.order, self.take = size, start, order, take
        self.is_off = False
        """Whoever has asked for it does not want it any more."""

    def __lt__(self, other: "Turn") -> bool:
        return (self.start, self.size, self.order) < (other.start, other.size, other.order)


class FairLine:
    """Whose turn it is. Pure."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._order = itertools.count()
        self._reached = 0.0
        """Where the last turn began, in bytes given to each stream that has always waited."""

    def __bool__(self) -> bool:
        while self._turns and self._turns[0].is_off:
            heapq.heappop(self._turns)
        return bool(self._turns)

    def enter(self, size: int, given: float, take: Callable[[], None]) -> Turn:
        """`given` is where the stream's last turn ended."""
        turn = Turn(size, max(self._reached, given), next(self._order), take)
        heapq.heappush(self._turns, turn)
        return turn

    def leave(self) -> Turn:
        """The next one, of a line that is not empty."""
        turn = heapq.heappop(self._turns)
        self._reached = turn.start
        return turn


class Throttle:
    """What all streams of a network pass. Belongs to one event loop."""

    def __init__(self, bytes_per_s: float) -> None:
        self._budget = Budget(bytes_per_s)
        self.chunk_bytes = self._budget.chunk_bytes
        self._line = FairLine()
        self._timer: asyncio.TimerHandle | None = None

    async def pass_through(self, size: int, given: float) -> float:
        """Wait for a turn of so many bytes; returns where it ends."""
        its_turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def take() -> None:
            if not its_turn.done():
                its_turn.set_result(None)

        turn = self._line.enter(size, given, take)
        self._serve()
        try:
            await its_turn
        finally:
            turn.is_off = True
        return turn.start + size

    def _serve(self) -> None:
        """Everybody whose turn has come; and come back when it is the next one's."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._line:
            if (wait_s := self._budget.wait_s(loop.time())) > 0:
                self._timer = loop.call_later(wait_s, self._serve)
                return
            turn = self._line.leave()
            self._budget.spend(turn.size, loop.time())
            turn.take()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ThrottledNetwork:
    """Another network, with a limit to what it sends, and the same to what it receives."""

    def __init__(self, network: Network, bytes_per_s: float) -> None:
        self._network = network
        self._out, self._in = Throttle(bytes_per_s), Throttle(bytes_per_s)

    async def listen(self, address: str, handler: StreamHandler) -> None:
        await self._network.listen(address, lambda stream: handler(self._throttled(stream)))

    async def dial(self, address: str) -> ChunkStream:
        return self._throttled(await self._network.dial(address))

    def _throttled(self, stream: ChunkStream) -> ChunkStream:
        return _ThrottledStream(stream, self._out, self._in)

    async def close(self) -> None:
        await self._network.close()
        self._out.close()
        self._in.close()


class _ThrottledStream:
    def __init__(self, stream: ChunkStream, out: Throttle, into: Throttle) -> None:
        self._stream = stream
        self._out, self._in = out, into
        self._given_out = self._given_in = 0.0
        self._unpaid = 0
        """Of what was read last."""
        self.chunk_bytes = min(stream.chunk_bytes, out.chunk_bytes)
        # What is not held up takes no way round by methods of this class.
        self.close, self.abandon, self.doubt = stream.close, stream.abandon, stream.doubt

    async def read(self, room: Room = no_room) -> Buffer | None:
        if unpaid := self._unpaid:
            self._unpaid = 0
            self._given_in = await self._in.pass_through(unpaid, self._given_in)
        chunk = await self._stream.read(room)
        self._unpaid = 0 if chunk is None else len(chunk)
        return chunk

    async def write(self, parts: Sequence[Buffer]) -> None:
        size = sum(map(len, parts))
        self._given_out = await self._out.pass_through(size, self._given_out)
        await self._stream.write(parts)
