"""What one link carries: frames and acknowledgements, over whichever stream works at the moment.

    send ──► outbox ──► session ──► write ──► … ──► read ──► session ──► on_arrived

Knows nothing of who the neighbour is, nor how streams come about: a link gives it one after another
(see link.py), and says when it is over.

`send`, `send_last` and `consumed` may be called from any thread; all else is for the event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ravnest.errors import WireError
from ravnest.wire.encoding import Parcel, decode, encode
from ravnest.wire.framing import CHUNK_BYTES, Assembler, Frame, Limits, ack_chunk, chunks
from ravnest.wire.messages import Hello, Refused
from ravnest.wire.pace import Pace
from ravnest.wire.session import Session, Window
from ravnest.wire.streams import ChunkStream, StreamError

_LEAST_CHUNK = 64 << 10
_SMALLEST_ASKED = 16 << 10
"""Whatever the peer asks for: many small chunks cost us more than it."""
_MOST_WORDS = 10_000
"""That wait for a peer which goes on talking: much of it is answered, and answers are kept."""


@dataclass
class Traffic:
    """Counted since the link was made."""

    sent_bytes: int = 0
    received_bytes: int = 0
    breaks: int = 0


class Flow:
    """Both directions of one link, across any number of streams."""

    def __init__(
        self,
        on_arrived: Callable[[Parcel], None],
        *,
        ack_s: float,
        window: Window | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.traffic = Traffic()
        self.pace = Pace()
        self.all_arrived = asyncio.Event()
        self.all_arrived.set()
        self._on_arrived = on_arrived
        self._ack_s = ack_s
        self._limits = limits or Limits()
        self._window = window or Window()
        self.session = Session(self._window)
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[Frame] = deque()
        self._outbox_noticed = False
        self._unused: deque[int] = deque()  # sizes of frames delivered and not used up
        self._unused_bytes = 0
        self._used = 0  # counted by the consumer's thread
        self._used_known = 0
        self._asked_bytes = CHUNK_BYTES
        self._work = asyncio.Event()
        self._heard = self._said = self._loop.time()
        self._ack_now = self._sign_now = False
        self._ack_timer: asyncio.TimerHandle | None = None
        self._flushed = False
        self._dropped = False
        self._over = False

    # ---- from any thread ----

    def send(self, parcel: Parcel) -> None:
        """Hand a message over; it arrives exactly once, or the link is reported `Lost`.

        The tensors' memory belongs to the link until it has arrived.
        """
        self._outbox.append(encode(parcel, sequence=0))
        if not self._outbox_noticed:
            self._outbox_noticed = True
            self._loop.call_soon_threadsafe(self.post)

    def send_last(self, parcel: Parcel) -> None:
        """Say this instead of whatever is still waiting to be sent."""
        frame = encode(parcel, sequence=0)
        self._loop.call_soon_threadsafe(self._post_last, frame)

    def consumed(self) -> None:
        """The oldest message delivered has been used up; makes room for another one."""
        self._used += 1
        if self._unused_bytes * 2 > self._window.bytes or len(self._unused) * 2 > (
            self._window.frames
        ):
            self._loop.call_soon_threadsafe(self._tell_soon)

    # ---- on the event loop ----

    def post(self) -> None:
        """Take over what was handed in."""
        self._outbox_noticed = False
        if self._over:
            self._drop_everything()
            return
        while self._outbox:
            frame = self._outbox.popleft()
            self.pace.submitted(others_wait=self.session.has_unsent)
            number = self.session.next_sequence()
            self.session.submit(Frame(number, frame.header, frame.body, frame.ready))
        self.all_arrived.clear()
        self._work.set()

    def _post_last(self, frame: Frame) -> None:
        self.post()
        self.session.drop_unsent()
        self._outbox.append(frame)
        self.post()

    def resume(self, received_by_peer: int, chunk_bytes: int, *, is_first: bool) -> None:
        """There is a new stream, whose `read` and `write` are about to begin. The peer wants chunks
        of that size."""
        self._asked_bytes = max(_SMALLEST_ASKED, chunk_bytes)
        self.session.resume(received_by_peer)
        self.pace.broke()
        self.check_all_arrived()
        self._ack_now = not is_first  # nobody knows what of the last stream has arrived

    async def read(self, stream: ChunkStream) -> None:
        assembler = Assembler(self._limits)
        while (chunk := await stream.read(assembler.room)) is not None:
            self.traffic.received_bytes += len(chunk)
            self._heard = self._loop.time()
            ack, frame = assembler.feed(chunk)
            if ack is not None:
                self.session.acknowledged(ack)
                self.pace.arrived(ack.received, self._loop.time())
                self.check_all_arrived()
                self._work.set()
            if frame is not None and self.session.accept(frame.sequence):
                self._deliver(frame)
            chunk = frame = None  # not to be kept until the next one comes

    def _deliver(self, frame: Frame) -> None:
        parcel = decode(frame)
        if isinstance(parcel.message, Hello | Refused):
            raise WireError("a greeting in the middle of a stream")
        self._note_used()
        if self.session.words > _MOST_WORDS:
            raise WireError(f"it asks on, and {self.session.words} words for it have not arrived")
        if not self._window.allows(frame.size, len(self._unused), self._unused_bytes):
            # All of it would wait in our memory: whoever does not keep to the window fills it.
            raise WireError(
                f"{len(self._unused)} messages of {self._unused_bytes} bytes wait to be used, and "
                f"another one of {frame.size} comes"
            )
        self._unused.append(frame.size)
        self._unused_bytes += frame.size
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_later(self._ack_s, self._ack_is_late)
        self._on_arrived(parcel)

    def _ack_is_late(self) -> None:
        self._ack_timer = None
        self._note_used()
        if self.session.ack_is_due:
            self._tell_soon()

    def _note_used(self) -> None:
        while self._used_known < self._used:
            self._used_known += 1
            self.session.consume()
            self._unused_bytes -= self._unused.popleft()

    def _tell_soon(self) -> None:
        self._ack_now = True
        self._work.set()

    async def write(self, stream: ChunkStream) -> None:
        while True:
            self._note_used()
            frame = self.session.take()
            if frame is not None:
                if frame.ready is not None:
                    await self._ready(frame.ready)
                self.pace.departed(frame.sequence, frame.size, self._loop.time())
                for parts in chunks(frame, self.session.ack(), self._chunk_bytes(stream)):
                    self.traffic.sent_bytes += sum(map(len, parts))
                    await stream.write(parts)
                    self._said = self._loop.time()
                    parts = []
                frame = None  # not to be kept until the next one goes
                self._ack_now = False
            elif self._ack_now:
                self._ack_now = False
                if self.session.ack_is_due or self._sign_now:
                    chunk = ack_chunk(self.session.ack())
                    self.traffic.sent_bytes += len(chunk)
                    await stream.write((chunk,))
                    self._said = self._loop.time()
                self._sign_now = False
            elif self._flushed:
                await stream.close()
                return
            else:
                self._work.clear()
                await self._work.wait()

    def _chunk_bytes(self, stream: ChunkStream) -> int:
        """About what goes through in a second: the peer hears whole chunks, and must hear of us."""
        pace = self.pace.bytes_per_s or 0.0  # unknown: it may be slow
        return min(stream.chunk_bytes, self._asked_bytes, max(_LEAST_CHUNK, int(pace)))

    async def watch(self, life_s: float, silence_s: float) -> None:
        """Give signs of life while there is nothing else to say; until none comes from the peer.

        Each direction speaks for itself, so no sign waits for an answer behind what fills a thin
        line, as that to a ping would.
        """
        self._heard = self._said = self._loop.time()
        in_doubt = False
        while True:
            await asyncio.sleep(life_s)
            now = self._loop.time()
            silent = now - self._heard > silence_s
            if silent and in_doubt:
                raise StreamError(f"nothing was heard for {now - self._heard:.0f} s")
            # After a pause of our own something may lie there unread: look once more, later.
            in_doubt = silent
            if now - self._said >= life_s:
                self._sign_now = True
                self._tell_soon()

    async def _ready(self, wait: Callable[[], None]) -> None:
        try:
            await self._loop.run_in_executor(None, wait)
        except RuntimeError:  # the interpreter is ending, and starts no threads any more
            wait()

    # ---- the end ----

    def check_all_arrived(self) -> None:
        if self.session.everything_arrived and not self._outbox:
            self.all_arrived.set()

    @property
    def nothing_lost(self) -> bool:
        """All that was taken over has arrived."""
        return self.session.everything_arrived and not self._dropped

    def flush(self) -> None:
        """Have `write` close the stream as soon as there is nothing more to say."""
        self._flushed = True
        self._tell_soon()

    def end(self) -> None:
        """No stream will come any more."""
        self._over = True
        self._drop_everything()
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self.all_arrived.set()

    def _drop_everything(self) -> None:
        """A link that is over keeps no messages, and no memory of others with them."""
        self._dropped = self._dropped or bool(self._outbox) or not self.session.everything_arrived
        self._outbox.clear()
        self.session.drop_everything()
