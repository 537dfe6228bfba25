"""One neighbour: a link that outlives the streams it runs over.

    send ──► outbox ──► session ──► stream ──► … ──► session ──► on_event(Arrived)

One side dials, the other accepts; both then behave alike. Each stream begins with a Hello in both
directions, which says what arrived over the last one. When a stream breaks the dialling side tries
again, and a link is given up (`Lost`) only when its patience has run out or the neighbour turns out
to be another process than before.

`send`, `send_last`, `consumed` and `set_needed` may be called from any thread; all else is for the
event loop.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ravnest.errors import PeerError, WireError
from ravnest.wire.deadline import Deadline
from ravnest.wire.encoding import Parcel, decode, encode
from ravnest.wire.framing import Assembler, Frame, Limits, ack_chunk, chunks
from ravnest.wire.greeting import read_greeting, refuse
from ravnest.wire.messages import PROTOCOL, Hello, Refused
from ravnest.wire.pace import Pace
from ravnest.wire.peers import Identity, Patience, Peer
from ravnest.wire.session import Session, Window
from ravnest.wire.streams import ChunkStream, Network, StreamError

logger = logging.getLogger("ravnest.wire")
_GOODBYE_S = 1.0


@dataclass(frozen=True, slots=True)
class Up:
    """First contact; not repeated when a broken stream is resumed."""

    link: "Link"


@dataclass(frozen=True, slots=True)
class Arrived:
    link: "Link"
    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Lost:
    """The link is dead and will not come back."""

    link: "Link"
    error: PeerError


LinkEvent = Up | Arrived | Lost


class _State(Enum):
    WAITING = "waiting"
    UP = "up"
    BROKEN = "broken"
    CLOSED = "closed"


@dataclass
class Traffic:
    """Counted since the link was made."""

    sent_bytes: int = 0
    received_bytes: int = 0
    breaks: int = 0


class Link:
    """The connection to one neighbour."""

    def __init__(
        self,
        me: Identity,
        peer: Peer,
        on_event: Callable[[LinkEvent], None],
        *,
        patience: Patience | None = None,
        window: Window | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.peer = peer
        self.traffic = Traffic()
        self.pace = Pace()
        self._me = me
        self._on_event = on_event
        self._patience = patience or Patience()
        self._limits = limits or Limits()
        self._window = window or Window()
        self._session = Session(self._window)
        self._state = _State.WAITING
        self._peer_session: str | None = None
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[Frame] = deque()
        self._outbox_noticed = False
        self._unused: deque[int] = deque()  # sizes of frames delivered and not used up
        self._unused_bytes = 0
        self._used = 0  # counted by the consumer's thread
        self._used_known = 0
        self._work = asyncio.Event()
        self._ack_now = False
        self._ack_timer: asyncio.TimerHandle | None = None
        self._all_arrived = asyncio.Event()
        self._all_arrived.set()
        self._stream: ChunkStream | None = None
        self._runner: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Future[None]] = []
        self._deadline = Deadline(
            peer,
            self._patience.report_s,
            lambda reason: self._give_up(PeerError(f"{peer} is gone: {reason}")),
        )
        self._needed = True
        self._closing = False
        self._flushed = False
        self._dropped = False

    # ---- from any thread ----

    def send(self, parcel: Parcel) -> None:
        """Hand a message over; it arrives exactly once, or the link is reported `Lost`.

        The tensors' memory belongs to the link until it has arrived.
        """
        self._outbox.append(encode(parcel, sequence=0))
        if not self._outbox_noticed:
            self._outbox_noticed = True
            self._loop.call_soon_threadsafe(self._post)

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

    def set_needed(self, needed: bool) -> None:
        """Whether a peer that goes away is to be waited for; one that says goodbye is not."""
        self._loop.call_soon_threadsafe(self._note_need, needed)

    # ---- on the event loop ----

    def _note_need(self, needed: bool) -> None:
        self._needed = needed
        if not needed and self._state is not _State.UP:
            self._give_up(self._left())

    def _left(self) -> PeerError:
        return PeerError(f"{self.peer} has left")

    def _post(self) -> None:
        self._outbox_noticed = False
        if self._state is _State.CLOSED:
            self._drop_everything()
            return
        while self._outbox:
            frame = self._outbox.popleft()
            self.pace.submitted(others_wait=self._session.has_unsent)
            number = self._session.next_sequence()
            self._session.submit(Frame(number, frame.header, frame.body, frame.ready))
        self._all_arrived.clear()
        self._work.set()

    def _post_last(self, frame: Frame) -> None:
        self._post()
        self._session.drop_unsent()
        self._outbox.append(frame)
        self._post()

    def _tell_soon(self) -> None:
        self._ack_now = True
        self._work.set()

    def dial(self, network: Network) -> None:
        """Be the side that opens streams."""
        self._deadline.set(self._patience.connect_s, "it was never reached")
        self._runner = asyncio.ensure_future(self._dial_again_and_again(network))

    def await_dial(self) -> None:
        """Be the side that is dialled; streams come through `adopt`."""
        self._deadline.set(self._patience.connect_s, "it never called")

    async def adopt(self, stream: ChunkStream, hello: Hello) -> None:
        """Serve a stream that the peer has opened, until it breaks."""
        if self._state is _State.CLOSED:
            return
        if (problem := self._unfit(hello)) and self._state is _State.UP:
            # Not the one we are talking to: that connection is none of its business.
            logger.warning("refused a caller: %s", problem)
            await refuse(stream, f"{self.peer.node} is connected already")
            return
        self._stop_tasks()  # if the peer has noticed a break that we have not noticed yet
        self._stream = stream
        try:
            await self._send_hello(stream)
            await self._serve(stream, hello)
        except StreamError as broken:
            if self._stream is stream:
                self._broke(str(broken))
        except WireError as error:
            self._give_up(PeerError(f"{self.peer} sent something unreadable: {error}"))
        except PeerError as error:
            self._give_up(error)
        except Exception as error:
            self._give_up(self._unexpected(error))
        except asyncio.CancelledError:  # how a server learns that a call is over
            if self._stream is stream:
                self._broke("the connection was cut")
            raise

    async def _dial_again_and_again(self, network: Network) -> None:
        pause = self._patience.retry_s
        while self._state is not _State.CLOSED:
            try:
                stream = await network.dial(self.peer.address)
            except StreamError as broken:
                if broken.nobody_there and self._state is _State.BROKEN:
                    self._deadline.sooner(self._patience.nobody_s, str(broken))
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
                continue
            except Exception as error:
                self._give_up(self._unexpected(error))
                return
            pause = self._patience.retry_s
            self._stream = stream
            try:
                await self._send_hello(stream)
                await self._serve(stream, await self._read_hello(stream))
            except StreamError as broken:
                self._broke(str(broken))
                await asyncio.sleep(pause)
            except WireError as error:
                self._give_up(PeerError(f"{self.peer} sent something unreadable: {error}"))
            except PeerError as error:
                self._give_up(error)
            except Exception as error:
                self._give_up(self._unexpected(error))
            finally:
                stream.abandon()

    def _unexpected(self, error: Exception) -> PeerError:
        logger.debug("the link to %s failed", self.peer, exc_info=error)
        return PeerError(f"the connection to {self.peer} failed: {type(error).__name__}: {error}")

    async def _send_hello(self, stream: ChunkStream) -> None:
        hello = Hello(
            protocol=PROTOCOL,
            run=self._me.run,
            node=self._me.node,
            session=self._me.session,
            received=self._session.received,
        )
        for parts in chunks(encode(Parcel(hello), 1), self._session.ack()):
            await stream.write(parts)

    async def _read_hello(self, stream: ChunkStream) -> Hello:
        message = await read_greeting(stream, self._patience.hello_s)
        if isinstance(message, Refused):
            raise PeerError(f"{self.peer} refuses the connection: {message.reason}")
        return message

    async def _serve(self, stream: ChunkStream, hello: Hello) -> None:
        """Both directions of one stream, until it breaks or the link is closed."""
        if self._state is _State.CLOSED:
            return  # a wait that ends at the very moment it is cancelled does not notice that
        if problem := self._unfit(hello):
            raise PeerError(problem)
        first = self._peer_session is None
        self._peer_session = hello.session
        self._session.resume(hello.received)
        self.pace.broke()
        self._check_all_arrived()
        self._state = _State.UP
        self._ack_now = not first  # nobody knows what of the last stream has arrived
        self._deadline.cancel()
        if first:
            self._on_event(Up(self))
        reader, writer = (asyncio.ensure_future(half(stream)) for half in (self._read, self._write))
        tasks = self._tasks = [reader, writer]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and self._closing:  # it has said goodbye; let the other side do so
                await asyncio.wait((reader,), timeout=_GOODBYE_S)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        if self._state is _State.CLOSED or self._tasks is not tasks:
            return
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        raise StreamError("the other side closed the connection")

    def _unfit(self, hello: Hello) -> str | None:
        if hello.node != self.peer.node:
            return f"{self.peer.address} is {hello.node}, not {self.peer.node}"
        if self._peer_session not in (None, hello.session):
            return f"{self.peer} was restarted in the middle of the run"
        return None

    async def _read(self, stream: ChunkStream) -> None:
        assembler = Assembler(self._limits)
        while (chunk := await stream.read(assembler.room)) is not None:
            self.traffic.received_bytes += len(chunk)
            ack, frame = assembler.feed(chunk)
            if ack is not None:
                self._session.acknowledged(ack)
                self.pace.arrived(ack.received, self._loop.time())
                self._check_all_arrived()
                self._work.set()
            if frame is not None and self._session.accept(frame.sequence):
                self._deliver(frame)
            chunk = frame = None  # not to be kept until the next one comes

    def _deliver(self, frame: Frame) -> None:
        parcel = decode(frame)
        if isinstance(parcel.message, Hello | Refused):
            raise WireError("a greeting in the middle of a stream")
        self._unused.append(frame.size)
        self._unused_bytes += frame.size
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_later(self._patience.ack_s, self._ack_is_late)
        self._on_event(Arrived(self, parcel))

    def _ack_is_late(self) -> None:
        self._ack_timer = None
        self._note_used()
        if self._session.ack_is_due:
            self._tell_soon()

    def _note_used(self) -> None:
        while self._used_known < self._used:
            self._used_known += 1
            self._session.consume()
            self._unused_bytes -= self._unused.popleft()

    async def _write(self, stream: ChunkStream) -> None:
        while True:
            self._note_used()
            frame = self._session.take()
            if frame is not None:
                if frame.ready is not None:
                    await self._ready(frame.ready)
                self.pace.departed(frame.sequence, frame.size, self._loop.time())
                for parts in chunks(frame, self._session.ack()):
                    self.traffic.sent_bytes += sum(map(len, parts))
                    await stream.write(parts)
                    parts = []
                frame = None  # not to be kept until the next one goes
                self._ack_now = False
            elif self._ack_now:
                self._ack_now = False
                if self._session.ack_is_due:
                    await stream.write((ack_chunk(self._session.ack()),))
            elif self._flushed:
                await stream.close()
                return
            else:
                self._work.clear()
                await self._work.wait()

    async def _ready(self, wait: Callable[[], None]) -> None:
        try:
            await self._loop.run_in_executor(None, wait)
        except RuntimeError:  # the interpreter is ending, and starts no threads any more
            wait()

    def _check_all_arrived(self) -> None:
        if self._session.everything_arrived and not self._outbox:
            self._all_arrived.set()

    # ---- breaks and the end ----

    def _broke(self, reason: str) -> None:
        if self._state is _State.CLOSED:
            return
        self._stream = None
        if self._closing:
            self._all_arrived.set()
        elif self._state is _State.UP:
            if not self._needed:
                self._give_up(self._left())
                return
            self._state = _State.BROKEN
            self.traffic.breaks += 1
            logger.info("the connection to %s broke (%s)", self.peer, reason)
            self._deadline.set(self._patience.resume_s, reason)

    def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def _give_up(self, error: PeerError) -> None:
        if self._state is _State.CLOSED:
            return
        self._end()
        self._on_event(Lost(self, error))

    def _drop_everything(self) -> None:
        """A link that is over keeps no messages, and no memory of others with them."""
        self._dropped = self._dropped or bool(self._outbox) or not self._session.everything_arrived
        self._outbox.clear()
        self._session.drop_everything()

    def _end(self) -> None:
        self._state = _State.CLOSED
        self._drop_everything()
        self._deadline.cancel()
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self._all_arrived.set()
        self._stop_tasks()
        if self._stream is not None:
            self._stream.abandon()
        if self._runner is not None and self._runner is not asyncio.current_task():
            self._runner.cancel()

    async def close(self, flush_s: float = 5.0) -> bool:
        """End the link once everything sent has arrived; False if something has not."""
        self._closing = True
        self._post()
        self._check_all_arrived()
        if self._state in (_State.UP, _State.BROKEN):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_arrived.wait(), flush_s)
        arrived = self._session.everything_arrived and not self._dropped
        if self._tasks:
            self._flushed = True
            self._tell_soon()
            await asyncio.wait(self._tasks, timeout=_GOODBYE_S)
        self._end()
        if self._runner is not None:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._runner
        return arrived
