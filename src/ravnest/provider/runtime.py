"""One provider at work: its threads, its links, and what becomes of it when something fails.

    user's thread      posts micro-batches and commands, waits for what comes of them (waiters.py)
    compute thread     owns the weights; takes from the inbox, does what the schedule says
    network thread     owns the sockets

The first thing that goes wrong anywhere ends the run for everybody: the neighbours are told, and
whoever waits here gets the error.
"""

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ravnest.errors import PeerError, RavnestError, RunError
from ravnest.provider.averaging.averager import Averager, RingInbox
from ravnest.provider.inbox import Asked, Inbox, Item, Ordered, Stop, Submitted
from ravnest.provider.place import Place, Rings
from ravnest.provider.runner import StageRunner
from ravnest.provider.stall import StallWatch
from ravnest.provider.telemetry import Standing, Telemetry
from ravnest.provider.waiters import UserSide
from ravnest.wire import messages
from ravnest.wire.encoding import Parcel
from ravnest.wire.endpoint import Endpoint, NetworkThread
from ravnest.wire.link import Arrived, Link, LinkEvent, Lost, Up
from ravnest.wire.peers import Patience, Peer
from ravnest.wire.streams import Network

logger = logging.getLogger("ravnest")
_STALL_REPORT_S = 60.0
_LAST_WORDS_S = 2.0
"""How long a provider that has failed tries to say so."""
_LAST_STEP_S = 10.0
"""How long the compute thread may take to end: what it is computing is not interrupted."""


def _text_of(error: BaseException) -> str:
    """What it says, in a form that can be sent whatever it is."""
    try:
        text = str(error)
    except Exception:
        text = f"{type(error).__name__}, which cannot be put into words"
    return text.encode("utf-8", "backslashreplace").decode()[:4000]


def _set_out(runner: StageRunner, item: Item) -> Item:
    """With whatever it brings for the device on its way there."""
    match item:
        case Submitted(message, values):
            return Submitted(message, {n: runner.copies.set_out(v) for n, v in values.items()})
        case Arrived(link, parcel):
            return Arrived(link, runner.set_out(parcel))
    return item


class ProviderRuntime:
    """Starts, serves and ends one provider."""

    def __init__(
        self,
        place: Place,
        network: Callable[[], Network],
        make_runner: Callable[["ProviderRuntime"], StageRunner],
        *,
        patience: Patience | None = None,
        queue_limit: int = 8,
        on_batch: Callable[[messages.MicroBatch, float | None], None] | None = None,
        rings: Rings | None = None,
        network_thread: NetworkThread | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.place = place
        self._telemetry = telemetry
        self._make_network = network
        self._make_runner = make_runner
        self._patience = patience or Patience()
        self._rings = rings
        self._ring_peers = {} if rings is None else rings.peers(place.node)
        self._ring_inbox: RingInbox = queue.SimpleQueue()  # members may call before it is read
        self._averager: Averager | None = None
        self._inbox = Inbox()
        self.user = UserSide(
            self._inbox, is_first=place.is_first, queue_limit=queue_limit, on_batch=on_batch
        )
        self._shared_thread = network_thread
        self._network_thread = network_thread or NetworkThread()
        self._compute = threading.Thread(target=self._serve, name="ravnest-compute", daemon=True)
        self._endpoint: Endpoint | None = None
        self._links: dict[str, Link] = {}
        self._ended = threading.Event()
        self.runner: StageRunner | None = None
        self.unheard_s = _LAST_STEP_S
        """How long the compute thread may take to hear that the run has failed."""
        self.watch_for_stalls(_STALL_REPORT_S, self._patience.stall_s)

    def watch_for_stalls(self, report_s: float, give_up_s: float) -> None:
        whom = None if self.place.next is None else self.place.next.node
        self._stall = StallWatch(report_s, give_up_s, time.monotonic(), whom)

    # ---- start and end ----

    def start(self) -> None:
        """Listen, call the neighbours, and begin to serve; returns at once."""
        if self._shared_thread is None:
            self._network_thread.start()
        try:
            self._network_thread.call(self._connect())
            self.runner = self._make_runner(self)
            self._averager = self._make_averager(self.runner)
        except BaseException as error:
            self._tell(self._last_words(error))
            self.close(flush_s=1.0)
            raise
        self.runner.next = self._outlet(self.place.next)
        self.runner.previous = self._outlet(self.place.previous)
        if self._telemetry is not None:
            self._telemetry.watch(self.standing)
        if self.runner.copies.runs_ahead:
            self._inbox.look_ahead(functools.partial(_set_out, self.runner))
        self._compute.start()
        if self._averager is not None:
            self._averager.start()

    def _make_averager(self, runner: StageRunner) -> Averager | None:
        rings, endpoint = self._rings, self._endpoint
        if rings is None or not rings.documents or runner.share is None:
            return None
        assert endpoint is not None
        return Averager(
            rings.documents,
            runner.share,
            rings.settings,
            self._ring_inbox,
            reach=lambda node, met: self._network_thread.call(
                endpoint.reach(node, has_been_there=met)
            ),
            on_compute_thread=lambda work: self._inbox.put(Asked(work)),
            averaged=runner.averaged,
            fail=self._fail,
            tell_cluster=lambda cluster: self._tell_along(messages.ClusterLeft(cluster=cluster)),
            tell_round=lambda ring: self._tell_along(messages.RingWentOn(ring=ring)),
            compression=rings.compression,
            telemetry=self._telemetry,
        )

    def _tell_along(
        self, words: messages.ClusterLeft | messages.RingWentOn, source: Link | None = None
    ) -> None:
        """To the neighbours in the pipeline, but for the one that has said so."""
        for link in self._links.values():
            if link is not source:
                link.send(Parcel(words))

    async def _connect(self) -> None:
        place = self.place
        self._endpoint = Endpoint(
            self._make_network(),
            run=place.run,
            node=place.node,
            on_event=self._happened,
            patience=self._patience,
        )
        await self._endpoint.listen(place.listen)
        if self._rings is not None:
            patience = replace(
                self._patience,
                connect_s=self._rings.settings.connect_s,
                resume_s=self._rings.settings.resume_s,
            )
            self._endpoint.welcome(self._ring_peers.values(), patience)
        if place.next is not None:
            self._links[place.next.node] = await self._endpoint.dial(place.next)
        if place.previous is not None:
            self._links[place.previous.node] = await self._endpoint.expect(place.previous)

    def standing(self) -> Standing:
        """How this provider stands at the moment; from any thread."""
        runner, endpoint = self.runner, self._endpoint
        if runner is None or endpoint is None:
            return Standing()
        return Standing(
            in_flight=runner.schedule.in_flight,
            queued=runner.schedule.queued,
            links={
                node: (traffic.sent_bytes, traffic.received_bytes)
                for node, traffic in endpoint.traffic().items()
            },
            totals=runner.meter.totals(),
        )

    def _outlet(self, peer: Peer | None) -> Link | None:
        return None if peer is None else self._links[peer.node]

    def close(self, flush_s: float = 5.0) -> None:
        """End both threads; whatever was sent still arrives, if it can."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._averager is not None:
            self._averager.stop()
        self._inbox.put(Stop())
        if self._compute.is_alive() and threading.current_thread() is not self._compute:
            self._compute.join(self.unheard_s)
        try:
            if self._endpoint is not None:
                flush = min(flush_s, _LAST_WORDS_S) if self.user.failure else flush_s
                self._network_thread.call(self._endpoint.close(flush), within_s=flush + 10)
        finally:
            if self._shared_thread is None:
                self._network_thread.stop()
            if self.runner is not None:
                self.runner.close()

    # ---- the compute thread ----

    def _serve(self) -> None:
        runner = self.runner
        assert runner is not None
        try:
            runner.copies.claim_thread()
            while True:
                # What has arrived may be more urgent than what there is to do: look first.
                while (item := self._inbox.take()) is not None:
                    if isinstance(item, Stop) or self.user.failure is not None:
                        return
                    self._handle(item, runner)
                if self.user.failure is not None:
                    return
                if runner.work():
                    # The neighbours have had that time, and perhaps got work only at its end.
                    self._stall.heard(time.monotonic())
                    continue
                item = self._inbox.take(self._stall.look_again_s(time.monotonic()))
                if isinstance(item, Stop):
                    return
                if item is not None:
                    self._handle(item, runner)
                elif news := self._stall.look(time.monotonic(), self._awaited(runner)):
                    logger.warning("%s: %s", self.place.node, news)
        except RavnestError as error:
            self._fail(error)
        except BaseException as error:
            logger.debug("the stage failed", exc_info=True)
            wrapped = RunError(f"{type(error).__name__}: {_text_of(error)}")
            wrapped.__cause__ = error
            self._fail(wrapped)

    def _awaited(self, runner: StageRunner) -> str | None:
        """What this provider cannot go on without."""
        if runner.share is not None and runner.share.waits_for_others:
            return None  # rounds have a time limit of their own
        if count := runner.schedule.in_flight:
            batches = "1 micro-batch" if count == 1 else f"{count} micro-batches"
            return f"the gradients of {batches} from {self.place.next}"
        orders, results = self.user.unanswered()
        orders = [order for order in orders if order != "average"]
        if orders and self.place.next is not None:
            return f"{self.place.next} to carry out {orders[0]!r}"
        if results and self.place.next is not None:
            return f"the outputs of {results} batches from {self.place.next}"
        return None

    def _handle(self, item: Any, runner: StageRunner) -> None:
        self.user.last_heard = now = time.monotonic()
        self._stall.heard(now)
        match item:
            case Submitted(message, values):
                runner.submit(message, values)
            case Ordered(message):
                runner.command(message)
            case Asked(work):
                work()
            case Arrived(link, Parcel(messages.Failed() as failed)):
                link.consumed()
                self._fail_with(failed, link)
            case Arrived(link, Parcel(messages.ClusterLeft() as words)):
                link.consumed()
                if self._averager is not None:
                    self._averager.cluster_left(words.cluster)
                else:
                    self._tell_along(words, link)
            case Arrived(link, Parcel(messages.RingWentOn() as words)):
                link.consumed()
                if self._averager is not None:
                    self._averager.ring_went_on(words.ring)
                self._tell_along(words, link)
            case Arrived(link, parcel):
                runner.arrived(parcel)
                link.consumed()
            case Up(link):
                logger.info("%s: connected to %s", self.place.node, link.peer)
            case Lost(_, error):
                if not self.user.told_goodbye.is_set():
                    raise error
                logger.debug("%s left", error)

    # ---- failures ----

    def _happened(self, event: LinkEvent) -> None:
        """On the network thread. In line with everything else it is for the compute thread to hear;
        but that may be stuck in what it computes, and an end must reach the user all the same."""
        if event.link.peer.node in self._ring_peers:
            self._ring_inbox.put(event)
            return
        self._inbox.put(event)
        match event:
            case Lost() | Arrived(_, Parcel(messages.Failed())):
                loop = self._network_thread.loop
                loop.call_later(self.unheard_s, self._end_unheard, event)

    def _end_unheard(self, event: LinkEvent) -> None:
        over = self.user.told_goodbye.is_set() or self._ended.is_set()
        if self.user.failure is not None or over or not self._compute.is_alive():
            return
        match event:
            case Arrived(link, Parcel(messages.Failed() as failed)):
                self._fail_with(failed, link)
            case Lost(_, error):
                self._fail(error)

    def _fail(self, error: RavnestError, *, tell: bool = True) -> None:
        """The end, for whoever waits here first: nothing that follows may keep it from them."""
        self.user.fail(error)
        if self._averager is not None:
            self._averager.leave()
        if tell:
            self._tell(self._last_words(error))

    def _last_words(self, error: BaseException) -> messages.Failed:
        culprit = error.node if isinstance(error, PeerError) else None
        return messages.Failed(node=self.place.node, reason=_text_of(error), culprit=culprit or "")

    def _tell(self, failed: messages.Failed, source: Link | None = None) -> None:
        """Everybody but the one it came from, ahead of all that waits to be sent."""
        for link in self._links.values():
            if link is not source:
                link.send_last(Parcel(failed))

    def _fail_with(self, failed: messages.Failed, source: Link) -> None:
        """Another provider has failed: hand on what it says of its end."""
        culprit = failed.culprit or failed.node
        self._fail(PeerError(f"{failed.node} failed: {failed.reason}", node=culprit), tell=False)
        self._tell(failed, source)

    def hurry(self, within_s: float) -> None:
        """The run is to end: other clusters that are not there are not waited for much longer."""
        if self._averager is not None:
            self._averager.hurry(within_s)

    def abort(self, reason: str) -> None:
        """This provider gives up: tell the others, and whoever waits here."""
        if self.user.failure is None and not self._ended.is_set():
            self._fail(RunError(reason))
