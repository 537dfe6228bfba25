"""The thread on which a provider averages with other clusters, beside training.

    compute thread ──► due, ended, snapshots ──►┐                 ┌──► apply ──► compute thread
    network thread ──► what members send ──────►│ averager thread │
                                                └─────────────────┴──► what members are sent

It owns the rings of this provider, all of which may be in a round at once. Members that are lost
cost rounds; only what goes wrong on this side ends the run.
"""

import contextlib
import logging
import math
import queue
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence

from ravnest.errors import RavnestError, RunError, WireError
from ravnest.plan import bytes_per_s
from ravnest.provider.averaging.exchange import CHUNK_BYTES
from ravnest.provider.averaging.fragments import fragments_of
from ravnest.provider.averaging.pacing import Pacer
from ravnest.provider.averaging.ring import RingPlace, RoundReport, Surroundings
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Outcome, Share
from ravnest.provider.compression import Compression, Packing
from ravnest.provider.document import RingDocument
from ravnest.provider.telemetry import Telemetry
from ravnest.wire.encoding import Parcel
from ravnest.wire.link import Arrived, Link, LinkEvent, Lost, Up
from ravnest.wire.messages import RingChunk, RingGone, RingMessage

logger = logging.getLogger("ravnest.averaging")
_LAST_WORDS_S = 5.0
_LONGEST_WAIT_S = 3600.0
"""At one go: a limit may be infinite, and no queue waits that long."""
_BEHIND = 8
"""So many rounds of a ring may come to nothing while another ring of the cluster makes as many."""
RingInbox = queue.SimpleQueue[LinkEvent | Callable[[], None]]
"""What links to members bring, and what this provider wants of its rings."""


class Averager:
    """All rings of one provider."""

    def __init__(
        self,
        rings: Sequence[RingDocument],
        share: Share,
        settings: Averaging,
        inbox: RingInbox,
        *,
        reach: Callable[[str, bool], Link],
        on_compute_thread: Callable[[Callable[[], None]], None],
        averaged: Callable[[Outcome], None],
        fail: Callable[[RavnestError], None],
        tell_cluster: Callable[[int], None],
        tell_round: Callable[[int], None],
        compression: Compression,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._share = share
        self._telemetry = telemetry
        self._reach = reach
        self._on_compute_thread = on_compute_thread
        self._fail = fail
        self._tell_cluster, self._tell_round = tell_cluster, tell_round
        self._averaged = averaged
        self._fragments = settings.fragments
        self._compression = compression
        self._vain: Counter[int] = Counter()
        """Rounds of each ring that have come to nothing since its last one."""
        self._since: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """Rounds that other rings of this cluster have made since then."""
        self._up: set[str] = set()
        self._clusters_left: set[int] = set()
        self._goes_alone = False
        self._cluster = next(ring.members[ring.place].cluster for ring in rings)
        self._inbox = inbox
        self._links: dict[str, Link] = {}
        self._outbox: deque[tuple[str, Parcel]] = deque()
        mbps = settings.most_mbps
        codec = compression.for_rings(mbps)
        self._pacer = None if mbps is None else Pacer(mbps * 1e6 / 8)
        self._stopping = False
        self._within_s = math.inf
        self._packings: defaultdict[str, Packing] = defaultdict(lambda: Packing(codec))
        around = Surroundings(
            send=self._send,
            take_snapshot=self._take_snapshot,
            apply=self._apply,
            skipped=self._skipped,
            released=lambda ring, last: on_compute_thread(lambda: share.released(ring, last=last)),
            # Not at once: the ring that says so is in the middle of something.
            cut_off=lambda: inbox.put(self._go_alone),
            codec_for=lambda node: self._packings[node].codec_for(self._link(node)),
            note=None if telemetry is None else telemetry.round_ended,
            caught=None if telemetry is None else telemetry.caught,
        )
        self._rings = {ring.id: self._place(ring, settings, around) for ring in rings}
        share.ears = self
        self._thread = threading.Thread(target=self._serve, name="ravnest-averager", daemon=True)

    def _place(self, ring: RingDocument, settings: Averaging, around: Surroundings) -> RingPlace:
        tensors = self._share.tensors(ring.names)
        parameters = set(self._share.parameter_names(ring.names))
        fragments = fragments_of(tensors, parameters, settings)
        if settings.most_mbps is not None:
            largest = max(4 * sum(fragment.layout.sizes()) for fragment in fragments)
            _warn_if_too_slow(ring, min(largest // len(ring.members), CHUNK_BYTES), settings)
        self._share.add_ring(ring.id, [fragment.layout for fragment in fragments])
        return RingPlace(
            ring,
            fragments,
            around,
            round_s=settings.round_s,
            wait_s=settings.wait_s,
            agreement=(settings.mode, settings.outer, self._compression.rings),
            most_rows=settings.most_rows,
            codec=self._compression.loosest_on_rings,
        )

    # ---- from other threads ----

    def reports(self) -> dict[int, RoundReport]:
        """The last round of each ring."""
        return {number: ring.last for number, ring in self._rings.items() if ring.last is not None}

    def start(self) -> None:
        self._thread.start()

    def due(self, ring: int) -> None:
        self._inbox.put(self._rings[ring].due)

    def waits(self) -> None:
        self._inbox.put(lambda: self._each(RingPlace.waits))

    def ended(self) -> None:
        self._inbox.put(lambda: self._each(RingPlace.ended))

    def cluster_left(self, cluster: int) -> None:
        """Another provider of this cluster has heard so."""
        self._inbox.put(lambda: self._left(cluster))

    def ring_went_on(self, ring: int) -> None:
        """Another provider of this cluster says so."""
        self._inbox.put(lambda: self._went_on(ring))

    def hurry(self, within_s: float) -> None:
        """The run is to end: members that are not there are waited for no longer than this."""
        self._inbox.put(lambda: self._hurry(within_s))

    def leave(self) -> None:
        """Say goodbye to the members, and end."""
        self._inbox.put(self._leave)

    def stop(self) -> None:
        """The same, and wait until it is said."""
        self.leave()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_LAST_WORDS_S)

    # ---- the thread ----

    def _serve(self) -> None:
        try:
            self._each(self._connect)
            while not self._stopping:
                self._take()
                self._let_go()
        except Exception as error:
            logger.debug("averaging failed", exc_info=True)
            self._fail(error if isinstance(error, RavnestError) else _wrapped(error))
            with contextlib.suppress(Exception):
                self._leave()
        finally:
            self._let_go(all_of_it=True)

    def _take(self) -> None:
        now = time.monotonic()
        times = [ring.wake_at for ring in self._rings.values() if ring.wake_at is not None]
        waits = [_LONGEST_WAIT_S, *(max(0.0, at - now) for at in times)]
        if self._outbox and self._pacer is not None:
            waits.append(self._pacer.wait_s(now))
        with contextlib.suppress(queue.Empty):
            self._handle(self._inbox.get(timeout=max(min(waits), 1e-4)))  # zero would not wait
        now = time.monotonic()
        for ring in self._rings.values():
            if ring.wake_at is not None and ring.wake_at <= now:
                ring.tick()

    def _handle(self, item: LinkEvent | Callable[[], None]) -> None:
        match item:
            case Arrived(link, parcel):
                try:
                    self._arrived(link, parcel)
                finally:
                    link.consumed()
            case Lost(link, error):
                self._lost(link.peer.node, str(error))
                self._cluster_may_be_gone(link.peer.node)
            case Up(link):
                self._up.add(link.peer.node)
                logger.info("averaging with %s", link.peer)
            case _:
                item()

    def _arrived(self, link: Link, parcel: Parcel) -> None:
        message = parcel.message
        ring = self._rings.get(message.ring) if isinstance(message, RingMessage) else None
        number = None if ring is None else ring.round_under_way
        try:
            if ring is None:
                raise WireError(f"a {type(message).__name__} that no ring knows of")
            ring.heard(link.peer.node, parcel)
            if isinstance(message, RingGone) and message.member == message.by:
                cluster = ring.cluster_of(message.member)
                if cluster != self._cluster:  # which knows by itself whether it has left
                    self._left(cluster)
        except Exception as error:  # whatever it was, that member cannot be relied on
            if isinstance(error, RunError) and not isinstance(error, WireError):
                raise  # different settings, before a round was ever made
            logger.debug("what %s has sent", link.peer, exc_info=True)
            reason = f"it sent something unusable: {str(error) or type(error).__name__}"
            self._lost(link.peer.node, reason)
            if ring is not None:
                ring.spoilt(number, reason)
        if ring is not None:
            self._connect(ring)
        if isinstance(message, RingGone):
            self._say_who_is_needed()

    def _lost(self, node: str, reason: str) -> None:
        for ring in self._rings.values():
            ring.lost(node, reason)
            self._connect(ring)

    def _cluster_may_be_gone(self, node: str) -> None:
        """Without one of its providers a cluster ends."""
        for ring in self._rings.values():
            cluster = ring.cluster_named(node)
            if cluster is not None:
                self._left(cluster)

    def _left(self, cluster: int) -> None:
        """One of its providers has left, so the others will say goodbye too, or never come up."""
        if cluster in self._clusters_left:
            return
        self._clusters_left.add(cluster)
        self._tell_cluster(cluster)
        if cluster == self._cluster:
            self._go_alone()
            return
        self._each(self._connect)
        self._say_who_is_needed()

    def _go_alone(self) -> None:
        """A ring of this cluster is over while it trains on. Then all its providers leave theirs:
        stages that are averaged and stages that are not make no model."""
        if not self._goes_alone:
            self._goes_alone = True
            logger.warning("this cluster trains on alone: it cannot be averaged with the others")
            self._tell_cluster(self._cluster)
            self._each(RingPlace.leave)

    def _went_on(self, ring: int) -> None:
        """A ring of this cluster has made a round beside training. One that does not get there
        meanwhile, again and again, is as good as over."""
        self._vain[ring], self._since[ring] = 0, Counter()
        for other in self._rings.keys() - {ring}:
            self._since[other][ring] += 1
            # A ring of few tensors has fewer fragments than another one, and so fewer rounds.
            periods = self._since[other][ring] // self._fragments
            if min(periods, self._vain[other]) >= _BEHIND:
                logger.warning(
                    "ring %d: %d rounds have come to nothing, while ring %d went on",
                    *(other, self._vain[other], ring),
                )
                self._inbox.put(self._go_alone)

    def _leave(self) -> None:
        self._stopping = True
        self._each(RingPlace.leave)

    def _each(self, do: Callable[[RingPlace], None]) -> None:
        for ring in self._rings.values():
            do(ring)

    # ---- links ----

    def _connect(self, ring: RingPlace) -> None:
        """Neighbours change when members are lost. Those of a cluster that has left, with whom
        there never was a connection, will not come."""
        while gone := [node for node in ring.neighbours if self._never_came(ring, node)]:
            ring.lost(gone[0], f"cluster {ring.cluster_named(gone[0])} has left")
        for node in ring.neighbours:
            self._link(node)

    def _never_came(self, ring: RingPlace, node: str) -> bool:
        return node not in self._up and ring.cluster_named(node) in self._clusters_left

    def _say_who_is_needed(self) -> None:
        """Nobody waits for a member that is gone from all rings, when its link breaks."""
        needed = {node for ring in self._rings.values() for node in ring.others}
        for node, link in self._links.items():
            link.set_needed(node in needed)

    def _link(self, node: str) -> Link:
        if node not in self._links:
            met = any(ring.last is not None and ring.has(node) for ring in self._rings.values())
            self._links[node] = self._reach(node, met)
            if self._within_s < math.inf:
                self._links[node].hurry(self._within_s)
        return self._links[node]

    def _hurry(self, within_s: float) -> None:
        self._within_s = within_s
        for link in self._links.values():
            link.hurry(within_s)

    def _send(self, node: str, parcel: Parcel) -> None:
        if self._pacer is None:
            self._link(node).send(parcel)
        else:
            self._outbox.append((node, parcel))

    def _let_go(self, *, all_of_it: bool = False) -> None:
        """Send what waits, as fast as is allowed; words do not overtake chunks."""
        while self._outbox and self._pacer is not None:
            if not all_of_it and self._pacer.wait_s(time.monotonic()) > 0:
                return
            node, parcel = self._outbox.popleft()
            self._pacer.sent(_size(parcel), time.monotonic())
            self._link(node).send(parcel)

    def _apply(self, outcome: Outcome) -> None:
        if not outcome.still:
            self._went_on(outcome.ring)
            self._tell_round(outcome.ring)
        averaged = self._averaged
        self._on_compute_thread(lambda: averaged(outcome))

    def _skipped(self, ring: int, is_refused: bool) -> None:
        """A round has been given up: nobody waits for its chunks."""
        self._vain[ring] += 1
        self._outbox = deque(
            (node, parcel)
            for node, parcel in self._outbox
            if not (isinstance(parcel.message, RingChunk) and parcel.message.ring == ring)
        )
        self._on_compute_thread(lambda: self._share.skipped(ring, is_refused=is_refused))

    # ---- the compute thread ----

    def _take_snapshot(self, ring: int, number: int, fragments: tuple[int, ...]) -> None:
        place = self._rings[ring]

        def take() -> None:
            # What others need to know of it goes ahead, so that all members copy at once.
            started = time.monotonic()
            facts = self._share.facts(ring, fragments)
            self._inbox.put(lambda: place.snapshot_begun(number, facts))
            snapshot = self._share.snapshot(ring, fragments)
            self._inbox.put(lambda: place.snapshot_taken(number, snapshot))
            if self._telemetry is not None:
                self._telemetry.did("average", -1, -1, started, time.monotonic())

        self._on_compute_thread(lambda: self._share.when_up_to_date(take))


def _wrapped(error: Exception) -> RunError:
    wrapped = RunError(f"averaging failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _warn_if_too_slow(ring: RingDocument, chunk_bytes: int, settings: Averaging) -> None:
    """If the members after this one would give up waiting for a chunk."""
    assert settings.most_mbps is not None
    seconds = chunk_bytes / bytes_per_s(settings.most_mbps)
    if seconds > settings.round_s:
        logger.warning(
            "ring %d: a chunk of %.2g MB takes %.0f s at %g Mbit/s; rounds in which nothing comes "
            "for round_s=%g are given up. A higher most_mbps would help, or a longer round_s",
            ring.id,
            chunk_bytes / 1e6,
            seconds,
            settings.most_mbps,
            settings.round_s,
        )


def _size(parcel: Parcel) -> int:
    return sum(tensor.nbytes for tensor in parcel.tensors)
