"""One provider's place on the network: it listens, and holds a link to each neighbour.

Belongs to one event loop; `NetworkThread` is that loop, in a thread of its own.
"""

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from ravnest.errors import RunError, WireError
from ravnest.wire.flow import Traffic
from ravnest.wire.framing import Limits
from ravnest.wire.greeting import read_greeting, refuse
from ravnest.wire.link import Link, LinkEvent
from ravnest.wire.messages import Hello, Refused
from ravnest.wire.peers import Identity, Patience, Peer
from ravnest.wire.session import Window
from ravnest.wire.streams import ChunkStream, Network, StreamError

logger = logging.getLogger("ravnest.wire")
T = TypeVar("T")


class Endpoint:
    """Listens at one address and keeps links to neighbours of the same run."""

    def __init__(
        self,
        network: Network,
        *,
        run: str,
        node: str,
        on_event: Callable[[LinkEvent], None],
        patience: Patience | None = None,
        window: Window | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._network = network
        self._me = Identity(run, node, uuid.uuid4().hex)
        self._on_event = on_event
        self._patience = patience or Patience()
        self._window = window
        self._limits = limits
        self._links: dict[str, Link] = {}
        self._expected: set[str] = set()
        self._welcome: dict[str, Peer] = {}
        self._welcome_patience = self._patience
        self._all_up_by = 0.0

    async def listen(self, address: str) -> None:
        await self._network.listen(address, self._greet)

    async def dial(self, peer: Peer) -> Link:
        """A link that this side opens, and opens again when it breaks."""
        link = self._link(peer)
        link.dial(self._network)
        return link

    async def expect(self, peer: Peer) -> Link:
        """A link that the peer opens."""
        link = self._link(peer)
        self._expected.add(peer.node)
        link.await_dial()
        return link

    def welcome(self, peers: Iterable[Peer], patience: Patience) -> None:
        """Who may call at any time; a link is there from the first need of either side."""
        self._welcome.update((peer.node, peer) for peer in peers)
        self._welcome_patience = patience
        self._all_up_by = time.monotonic() + patience.connect_s

    async def reach(self, node: str, *, has_been_there: bool = False) -> Link:
        """The link to one who is welcome. Of two, the one whose name comes first dials. Who has
        been there is not waited for as at the start."""
        link = self._links.get(node)
        if link is None:
            # Who is needed late in the run should be there, or is not coming any more.
            patience = self._welcome_patience
            left_s = max(patience.resume_s, self._all_up_by - time.monotonic())
            left_s = patience.resume_s if has_been_there else left_s
            patience = replace(patience, connect_s=min(left_s, patience.connect_s))
            link = self._link(self._welcome[node], patience)
            if self._me.node < node:
                link.dial(self._network, has_been_there=has_been_there)
            else:
                link.await_dial()
        return link

    def traffic(self) -> dict[str, Traffic]:
        """Of every link there ever was, by the node at its other end; from any thread."""
        return {node: link.traffic for node, link in self._links.copy().items()}

    def _link(self, peer: Peer, patience: Patience | None = None) -> Link:
        if peer.node in self._links:
            raise ValueError(f"there is a link to {peer.node} already")
        link = self._links[peer.node] = Link(
            self._me,
            peer,
            self._on_event,
            patience=patience or self._patience,
            window=self._window,
            limits=self._limits,
        )
        return link

    async def _greet(self, stream: ChunkStream) -> None:
        """Find out who is calling and hand the stream to the link with that neighbour."""
        try:
            hello = await read_greeting(stream, self._patience.hello_s)
        except StreamError:
            return
        except WireError as error:
            logger.warning("refused a caller: %s", error)
            await refuse(stream, str(error))
            return
        problem = self._problem_with(hello, stream)
        if problem is not None:
            logger.warning("refused a caller: %s", problem)
            await refuse(stream, problem)
            return
        assert isinstance(hello, Hello)
        link = self._links.get(hello.node) or await self.reach(hello.node)
        await link.adopt(stream, hello)

    def _problem_with(self, hello: Hello | Refused, stream: ChunkStream) -> str | None:
        if isinstance(hello, Refused):
            return "a stream begins with a refusal"
        if (doubt := stream.doubt(hello.node)) is not None:
            return doubt
        if hello.run != self._me.run:
            # Not which: whoever knows the run could pretend to be part of it.
            return (
                f"{hello.node} belongs to run {hello.run!r}, {self._me.node} to another one; "
                "start every provider from the same plan"
            )
        awaited = hello.node in self._welcome and hello.node < self._me.node
        if hello.node not in self._expected and not awaited:
            return f"{self._me.node} does not expect a call from {hello.node}"
        return None

    async def close(self, flush_s: float = 5.0) -> bool:
        """Let everything sent arrive, then leave; False if something did not arrive in time."""
        arrived = await asyncio.gather(*(link.close(flush_s) for link in self._links.values()))
        await self._network.close()
        return all(arrived)


class NetworkThread:
    """The one thread that owns the network."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="ravnest-network", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def call(self, work: Coroutine[Any, Any, T], within_s: float = 30.0) -> T:
        """Run `work` on the loop and wait for its result."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(within_s)
        except TimeoutError:
            future.cancel()
            raise RunError(f"the network did not answer within {within_s:g} s") from None

    def stop(self, within_s: float = 10.0) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(within_s)
