"""One neighbour: a link that outlives the streams it runs over.

    dial, adopt ──► Hello both ways ──► Flow over this stream ──► it breaks ──► dial, adopt …

One side dials, the other accepts; both then behave alike. Each stream begins with a Hello in both
directions, which says what arrived over the last one. When a stream breaks the dialling side tries
again, and a link is given up (`Lost`) only when its patience has run out or the neighbour turns out
to be another process than before.

What goes over a stream that works is the business of flow.py. `send`, `send_last`, `consumed`,
`set_needed` and `hurry` may be called from any thread; all else is for the event loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from ravnest.errors import PeerError, WireError
from ravnest.wire.deadline import Deadline
from ravnest.wire.encoding import Parcel, encode
from ravnest.wire.flow import Flow
from ravnest.wire.framing import Limits, chunks
from ravnest.wire.greeting import read_greeting, refuse
from ravnest.wire.messages import PROTOCOL, Hello, Refused
from ravnest.wire.peers import Identity, Patience, Peer
from ravnest.wire.session import Window
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
        self._me = me
        self._on_event = on_event
        self._patience = patience or Patience()
        self._flow = flow = Flow(
            lambda parcel: on_event(Arrived(self, parcel)),
            ack_s=self._patience.ack_s,
            window=window,
            limits=limits,
        )
        self.traffic, self.pace = flow.traffic, flow.pace
        # What happens with every message takes no way round by methods of this class.
        self.send, self.send_last, self.consumed = flow.send, flow.send_last, flow.consumed
        self._state = _State.WAITING
        self._peer_session: str | None = None
        self._loop = asyncio.get_running_loop()
        self._stream: ChunkStream | None = None
        self._runner: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Future[None]] = []
        self._deadline = Deadline(
            peer,
            self._patience.report_s,
            lambda reason: self._give_up(self._blame(f"{peer} is gone: {reason}")),
        )
        self._needed = True
        self._closing = False
        self._has_been_there = False

    # ---- from any thread ----

    def set_needed(self, needed: bool) -> None:
        """Whether a peer that goes away is to be waited for; one that says goodbye is not."""
        self._loop.call_soon_threadsafe(self._note_need, needed)

    def hurry(self, within_s: float) -> None:
        """From now on a peer that is not there is waited for no longer than this."""
        self._loop.call_soon_threadsafe(self._note_hurry, within_s)

    # ---- on the event loop ----

    def _note_need(self, needed: bool) -> None:
        self._needed = needed
        if not needed and self._state is not _State.UP:
            self._give_up(self._left())

    def _note_hurry(self, within_s: float) -> None:
        patience = self._patience
        self._patience = replace(patience, resume_s=min(within_s, patience.resume_s))
        if self._state in (_State.WAITING, _State.BROKEN):
            self._deadline.sooner(within_s, "the run is to end, and it is not there")

    def _left(self) -> PeerError:
        return self._blame(f"{self.peer} has left")

    def _blame(self, text: str) -> PeerError:
        return PeerError(text, node=self.peer.node)

    def dial(self, network: Network, *, has_been_there: bool = False) -> None:
        """Be the side that opens streams. Where one has been there before, it tells something that
        nobody listens there now."""
        self._has_been_there = has_been_there
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
            self._give_up(self._blame(f"{self.peer} sent something unreadable: {error}"))
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
                was_there = self._has_been_there or self._state is _State.BROKEN
                if broken.nobody_there and was_there:
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
                self._give_up(self._blame(f"{self.peer} sent something unreadable: {error}"))
            except PeerError as error:
                self._give_up(error)
            except Exception as error:
                self._give_up(self._unexpected(error))
            finally:
                stream.abandon()

    def _unexpected(self, error: Exception) -> PeerError:
        logger.debug("the link to %s failed", self.peer, exc_info=error)
        return self._blame(f"the connection to {self.peer} failed: {type(error).__name__}: {error}")

    async def _send_hello(self, stream: ChunkStream) -> None:
        hello = Hello(
            protocol=PROTOCOL,
            run=self._me.run,
            node=self._me.node,
            session=self._me.session,
            received=self._flow.session.received,
            chunk_bytes=stream.chunk_bytes,
        )
        for parts in chunks(encode(Parcel(hello), 1), self._flow.session.ack()):
            await stream.write(parts)

    async def _read_hello(self, stream: ChunkStream) -> Hello:
        message = await read_greeting(stream, self._patience.hello_s)
        if isinstance(message, Refused):
            raise self._blame(f"{self.peer} refuses the connection: {message.reason}")
        return message

    async def _serve(self, stream: ChunkStream, hello: Hello) -> None:
        """Both directions of one stream, until it breaks or the link is closed."""
        if self._state is _State.CLOSED:
            return  # a wait that ends at the very moment it is cancelled does not notice that
        if problem := self._unfit(hello):
            raise self._blame(problem)
        first = self._peer_session is None
        self._peer_session = hello.session
        self._flow.resume(hello.received, hello.chunk_bytes, is_first=first)
        self._state = _State.UP
        self._deadline.cancel()
        if first:
            self._on_event(Up(self))
        reader = asyncio.ensure_future(self._flow.read(stream))
        writer = asyncio.ensure_future(self._flow.write(stream))
        watch = self._flow.watch(self._patience.life_s, self._patience.silence_s)
        tasks = self._tasks = [reader, writer, asyncio.ensure_future(watch)]
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

    # ---- breaks and the end ----

    def _broke(self, reason: str) -> None:
        if self._state is _State.CLOSED:
            return
        self._stream = None
        if self._closing:
            self._flow.all_arrived.set()
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

    def _end(self) -> None:
        self._state = _State.CLOSED
        self._flow.end()
        self._deadline.cancel()
        self._stop_tasks()
        if self._stream is not None:
            self._stream.abandon()
        if self._runner is not None and self._runner is not asyncio.current_task():
            self._runner.cancel()

    async def close(self, flush_s: float = 5.0) -> bool:
        """End the link once everything sent has arrived; False if something has not."""
        self._closing = True
        self._flow.post()
        self._flow.check_all_arrived()
        if self._state in (_State.UP, _State.BROKEN):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._flow.all_arrived.wait(), flush_s)
        arrived = self._flow.nothing_lost
        if self._tasks:
            self._flow.flush()
            await asyncio.wait(self._tasks, timeout=_GOODBYE_S)
        self._end()
        if self._runner is not None:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._runner
        return arrived
