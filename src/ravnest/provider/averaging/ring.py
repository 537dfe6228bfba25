"""One ring, as one provider sees it: does what the roll call says. On the averager's thread."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ravnest.errors import RunError, WireError
from ravnest.provider.averaging.bounds import LEAST_OF_TWO, Agreement, agree
from ravnest.provider.averaging.course import Mean, Sum
from ravnest.provider.averaging.exchange import (
    Exchange,
    Gate,
    Track,
    in_full,
    shares_by_track,
)
from ravnest.provider.averaging.fragments import Fragment, is_finite
from ravnest.provider.averaging.instructions import (
    Instruction,
    Over,
    Release,
    Send,
    Skip,
    Start,
    TakeSnapshot,
)
from ravnest.provider.averaging.rollcall import RollCall
from ravnest.provider.averaging.share import Facts, Outcome, Snapshot
from ravnest.provider.averaging.testimony import Testimony, Words
from ravnest.provider.averaging.vectors import Layout, Vectors, numbered
from ravnest.provider.averaging.witness import Payload, TooLongError, loosest
from ravnest.provider.document import RingDocument
from ravnest.provider.telemetry import Round
from ravnest.wire.codecs import Codec
from ravnest.wire.encoding import Parcel
from ravnest.wire.messages import RingChunk, RingMessage, RingShare

logger = logging.getLogger("ravnest.averaging")
_MOST_DISAGREEMENTS = 3
_ASKED_S = 60.0
"""How long a leader that is asked to go on without stragglers may take."""


@dataclass(frozen=True)
class Surroundings:
    """What a ring has others do."""

    send: Callable[[str, Parcel], None]
    """To a member, by its node's name."""
    take_snapshot: Callable[[int, int, tuple[int, ...]], None]
    """Of a ring, for a round: these fragments."""
    apply: Callable[[Outcome], None]
    skipped: Callable[[int, bool], None]
    """A round has come to nothing; True if the next one is not to be asked for at once."""
    released: Callable[[int, bool], None]
    cut_off: Callable[[], None]
    """There are no more rounds here, though the cluster trains on."""
    codec_for: Callable[[str], Codec | None]
    """How chunks to that node are to be compressed."""
    note: Callable[[Round], None] | None = None
    """A round has ended; for those who look on."""
    caught: Callable[[int], None] | None = None
    """A member of this cluster has sent what it may not; for them, too."""


@dataclass(frozen=True)
class RoundReport:
    """What a round was like, as this member saw it."""

    number: int
    members: int
    seconds: float
    """From the call to the result."""
    exchange_s: float
    """Of those, while chunks were under way."""
    sent_bytes: int


@dataclass
class _Round:
    number: int
    fragments: tuple[int, ...]
    began: float
    exchange_began: float = 0.0
    sent_bytes: int = 0
    facts: Facts | None = None
    snapshot: Snapshot | None = None
    start: Start | None = None
    tracks: list[Track] = field(default_factory=list)
    gate: Gate | None = None
    """Once this member has pledged what it brings."""
    exchange: Exchange | None = None
    rest: tuple[Vectors, ...] = ()
    """What belongs to no parameter, as it was in the snapshot."""
    early: list[tuple[int, Sum | Mean, Payload]] = field(default_factory=list)
    """Chunks that were admitted before this member could begin."""
    is_exchanged: bool = False
    """All chunks are here."""


class RingPlace:
    """This provider's place in one ring."""

    def __init__(
        self,
        document: RingDocument,
        fragments: Sequence[Fragment],
        around: Surroundings,
        *,
        round_s: float,
        wait_s: float,
        agreement: object = None,
        most_rows: int | None = None,
        codec: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`agreement` is what all members must have in common beside the tensors; `codec` leaves
        out most of those that links of this run may have."""
        self.id = document.id
        self.fragments = fragments
        self.last: RoundReport | None = None
        self._members = document.members
        self._around = around
        self._clock = clock
        self._wait_s = wait_s
        self._wait_ends: float | None = None
        self._says_waited = False
        self._agreement = numbered(agreement)
        self._leaves = False
        self._has_met = False
        """For the last time; it is no surprise that others leave then."""
        self._round: _Round | None = None
        self._most_rows = most_rows
        self._testimony = Testimony(
            document.id,
            document.place,
            lambda member, words: around.send(document.members[member].node, Parcel(words)),
            codec,
        )
        self._disagreements = 0
        self._rows: defaultdict[tuple[int, int], float] = defaultdict(float)
        """That each member had trained on at the last round of each fragment here."""
        self._lowered: set[int] = set()
        """Members that count for much less than they weigh, which has been said."""
        self._roll = RollCall(
            document.id,
            document.place,
            len(document.members),
            round_s=round_s,
            fragments=len(fragments),
            names=[f"{m.node} (cluster {m.cluster})" for m in document.members],
        )
        self._places = {member.node: k for k, member in enumerate(document.members)}

    @property
    def wake_at(self) -> float | None:
        times = [at for at in (self._roll.wake_at, self._wait_ends) if at is not None]
        return min(times, default=None)

    @property
    def neighbours(self) -> list[str]:
        return [self._members[place].node for place in sorted(self._roll.neighbours)]

    @property
    def others(self) -> list[str]:
        """All who are there, but for this member."""
        alive = (place for place in self._roll.alive if place != self._roll.me)
        return [self._members[place].node for place in alive]

    def has(self, node: str) -> bool:
        return node in self._places

    def cluster_of(self, place: int) -> int:
        if not 0 <= place < len(self._members):
            raise WireError(f"ring {self.id} has no member {place}")
        return self._members[place].cluster

    def cluster_named(self, node: str) -> int | None:
        """That of a member, if it is one."""
        place = self._places.get(node)
        return None if place is None else self._members[place].cluster

    # ---- events ----

    def due(self) -> None:
        self._do(self._roll.due(self._clock()))

    def waits(self) -> None:
        self._wait_ends = self._clock() + self._wait_s
        self._do(self._roll.waits(self._clock()))

    def ended(self) -> None:
        self._wait_ends = self._clock() + self._wait_s
        self._do(self._roll.ended(self._clock()))

    def leave(self) -> None:
        self._leaves = True
        self._do(self._roll.leave(self._clock()))

    def lost(
        self, node: str, reason: str, *, is_caught: bool = False, is_measured: bool = False
    ) -> None:
        """`is_measured`: this member has seen it on what came from there. Words that went through
        others are enough to go on without a member, and not to accuse its cluster outside."""
        place = self._places.get(node)
        if place is not None and place in self._roll.alive and not self._roll.is_over:
            logger.warning("ring %d goes on without %s: %s", self.id, node, reason)
            if is_measured and self._around.caught is not None:
                self._around.caught(self._members[place].cluster)
            self._do(self._roll.lost(place, self._clock(), is_caught=is_caught))

    def tick(self) -> None:
        now = self._clock()
        if self._wait_ends is not None and now >= self._wait_ends:
            if not self._says_waited:
                self._says_waited = True
                logger.warning(
                    "ring %d: other clusters were waited for %g s; going on without those that "
                    "have not come",
                    self.id,
                    self._wait_s,
                )
            self._wait_ends = now + min(self._wait_s, _ASKED_S)
            self._do(self._roll.waited_long(now))
        self._do(self._roll.tick(now))

    def heard(self, source: str, parcel: Parcel) -> None:
        message = parcel.message
        assert isinstance(message, RingMessage)
        if source not in self._places:
            raise WireError(f"{source} is not a member of ring {self.id}")
        place = self._places[source]
        if not isinstance(message, Words | RingChunk):
            self._do(self._roll.heard(message, place, self._clock()))
        elif place not in self._roll.alive:
            return  # what was on its way when it went
        elif isinstance(message, Words):
            self._testified(message, place)
        else:
            self._chunk(message, place, parcel.tensors)

    def _chunk(self, message: RingChunk, source: int, content: Sequence[Payload]) -> None:
        current = self._round
        if current is None or current.start is None or current.number != message.round:
            return  # of a round that has been given up here
        if source != self._testimony.watch.neighbour(-1):
            raise WireError("a chunk from another member than the one before this one")
        if current.gate is None or not self._testimony.has_terms:
            raise WireError("a chunk before the terms on which it was made")
        if len(content) != 1:
            raise WireError(f"a chunk with {len(content)} tensors")
        item = current.gate.admit(message, content[0])
        if current.exchange is None:
            current.early.append((message.vector, item, content[0]))
        else:
            self._take_in(current, message.vector, item, content[0])

    def _take_in(self, current: _Round, vector: int, item: Sum | Mean, payload: Payload) -> None:
        assert current.exchange is not None
        try:
            onward = current.exchange.take(vector, item, payload)
        except TooLongError as error:
            reason = f"in round {self._turn(current.number)} {error}"
            self._refuse(current, reason, is_measured=True, is_certain=error.is_certain)
            return
        self._roll.progressed(self._clock())
        if onward is not None:
            self._pass_on(*onward)
        self._look_whether_done(current)

    def _refuse(
        self, current: _Round, reason: str, *, is_measured: bool, is_certain: bool = True
    ) -> None:
        """What the member before this one has done, if that is certain. The round is off in any
        case: nothing of it is built on who it was, or on whether that one can be left out."""
        if is_certain:
            node = self._members[self._testimony.watch.neighbour(-1)].node
            self.lost(node, reason, is_caught=True, is_measured=is_measured)
        self.spoilt(current.number, reason)

    @property
    def round_under_way(self) -> int | None:
        return None if self._round is None else self._round.number

    def spoilt(self, number: int | None, reason: str) -> None:
        """Something that is not fit has come in that round: if it is still under way, it is off."""
        if self._round is not None and self._round.number == number:
            self._do(self._roll.failed(reason, self._clock(), is_refused=True))

    def snapshot_begun(self, number: int, facts: Facts) -> None:
        current = self._round
        if current is None or current.number != number:
            return
        current.facts = facts
        layouts = [self.fragments[k].layout.digest for k in current.fragments]
        layouts.append(self._agreement)
        bases = [self.fragments[k].base_id for k in current.fragments]
        moments = [layout.digest for layout in facts.moments if layout.names]
        share = RingShare(
            member=self._roll.me,
            weight=facts.weight,
            rows=facts.samples,
            layout=numbered(*layouts),
            moments=numbered(*moments) if moments else 0,
            base=numbered(*bases) if all(bases) else 0,
        )
        self._do(self._roll.snapshot_taken(share, self._clock()))

    def snapshot_taken(self, number: int, snapshot: Snapshot) -> None:
        current = self._round
        if current is None or current.number != number:
            return
        current.snapshot = snapshot
        self._check(current)
        self._try_to_pledge(current)

    def _check(self, current: _Round) -> None:
        """A cluster that has gone astray ends here, and does not lead the others astray."""
        snapshot, facts = current.snapshot, current.facts
        assert snapshot is not None
        assert facts is not None
        for number, vectors in zip(current.fragments, snapshot.vectors, strict=True):
            if fault := self.fragments[number].fault_in(vectors):
                raise _gone_astray(fault, facts.updates)
        for layout, vectors in zip(facts.moments, snapshot.moments, strict=True):
            if not all(is_finite(vector) for vector in vectors):
                raise _gone_astray(
                    f"the optimizer's state of {layout.names[0]!r} or of those after it is not "
                    "finite (NaN or infinite)",
                    facts.updates,
                )

    # ---- instructions ----

    def _do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send(to, message):
                    self._around.send(self._members[to].node, Parcel(message))
                case TakeSnapshot(number, fragment):
                    chosen = range(len(self.fragments)) if fragment == 0 else (fragment - 1,)
                    self._round = _Round(number, tuple(chosen), self._clock())
                    self._around.take_snapshot(self.id, number, tuple(chosen))
                case Start():
                    assert self._round is not None
                    if self._is_fair(instruction):
                        self._started(instruction, self._round)
                case Skip():
                    self._skip(instruction)
                case Release(last, met):
                    self._wait_ends, self._says_waited = None, False
                    self._released(last, met=met)
                case Over(reason, is_mismatch):
                    if is_mismatch and self.last is None:
                        # It never went well: a mistake of whoever started this, and not of a
                        # member that has gone astray.
                        raise RunError(
                            f"{reason}. Give all providers the same plan and the same Averaging(…)"
                        )
                    expected = self._leaves or self._has_met
                    level = logging.INFO if expected else logging.WARNING
                    logger.log(level, "ring %d: no more rounds: %s", self.id, reason)
                    if not expected:
                        self._around.cut_off()

    def _is_fair(self, start: Start) -> bool:
        """Whether the leader can have made this of what it was told, and no member says rows again
        that have counted."""
        current = self._round
        assert current is not None
        facts = current.facts
        assert facts is not None
        has_moments = any(layout.names for layout in facts.moments)
        has_base = all(self.fragments[k].base_id for k in current.fragments)
        me = start.members.index(self._roll.me)
        other = (start.weights[me], start.rows[me]) != (facts.weight, facts.samples)
        if other or start.moments > has_moments or start.changes > has_base:
            self._disagree("the round begins with other words than this member has said")
            return False
        for member, weight, rows in zip(start.members, start.weights, start.rows, strict=True):
            # Who counts from the same has taken over the same rounds. In others, and in those of
            # all that stand still, rows are said again that may have counted elsewhere.
            counted = min(self._rows[number, member] for number in current.fragments)
            again = start.changes and not start.still and weight > rows - counted
            if again and self._most_rows is not None and weight <= self._most_rows:
                reason = f"{self._members[member].node} says rows again that have counted"
                self._do(self._roll.failed(reason, self._clock(), is_refused=True))
                return False
        return True

    def _says_too_much(self, start: Start) -> bool:
        """Once all are clear: a member of which another one has said so would not be."""
        most = math.inf if self._most_rows is None else self._most_rows
        for member, weight, rows in zip(start.members, start.weights, start.rows, strict=True):
            if member != self._roll.me and max(weight, rows) > most:
                self.lost(
                    self._members[member].node,
                    f"it says that it has trained on {max(weight, rows):.6g} rows, and there are "
                    f"{most} for a cluster in the whole run",
                    is_caught=True,
                    is_measured=len(start.members) == 2,
                )
                self.spoilt(start.round, "a member says more rows than there are")
                return True
        return False

    def _started(self, start: Start, current: _Round) -> None:
        current.start = start
        self._testimony.begin(start)
        self._try_to_pledge(current)

    def _try_to_pledge(self, current: _Round) -> None:
        if current.start is None or current.snapshot is None or current.facts is None:
            return
        start, snapshot = current.start, current.snapshot
        current.tracks = self._tracks(snapshot, start, current.fragments)
        current.rest = tuple(layout.rest_of(vectors) for layout, vectors in self._parts(snapshot))
        for track in current.tracks:
            track.divide(len(start.members))
        current.gate = Gate(current.tracks, start.members.index(self._roll.me))
        codecs = [track.codec.name for track in current.tracks if track.codec is not None]
        codecs += [self.fragments[number].compressed_by for number in current.fragments]
        self._testimony.pledge(
            current.tracks,
            current.facts.weight,
            codec=loosest(codecs),
            has_ended=self._roll.has_ended,
            again=start.still and self._roll.makes_again,
        )
        self._try_to_begin(current)

    def _try_to_begin(self, current: _Round) -> None:
        """Once all members have pledged how far they have moved."""
        if not current.tracks or current.exchange is not None:
            return
        pledges = self._testimony.pledges
        if pledges is None:
            return
        assert current.start is not None
        start, vectors = current.start, [track.vector for track in current.tracks]
        chunks = [len(track.lengths) for track in current.tracks]
        if not all(pledge.is_about(chunks) for pledge in pledges):
            self._disagree("the members have pledged different vectors")
            return
        agreed = agree(start.weights, pledges, vectors, still=start.still)
        self._report_lowered(agreed, start)
        # Without a base in common, what is taken from one would have to fall to others.
        too_little = not start.changes and sum(agreed.shares) < LEAST_OF_TWO
        if agreed.idle is not None:
            who = self._members[start.members[agreed.idle]].node
            reason = f"{who} has not trained since the last round"
            self._do(self._roll.failed(reason, self._clock(), is_refused=True))
        elif not agreed.apart and not too_little:
            self._begin(current, agreed.shares)
        elif start.still:  # it would be the same for ever
            self._do(self._roll.leave(self._clock()))
        else:
            reason = "one of the members has moved far away"
            self._do(self._roll.failed(reason, self._clock(), is_refused=True))

    def _report_lowered(self, agreed: Agreement, start: Start) -> None:
        """Once as a warning, until that member counts in full again."""
        much = set()
        for one in agreed.lowered:
            member = start.members[one.place]
            much |= {member} if one.is_worth_a_warning else set()
            is_news = one.is_worth_a_warning and member not in self._lowered
            logger.log(
                logging.WARNING if is_news else logging.INFO,
                "ring %d: %s has moved by %.3g, of which %.3g counts: a multiple of the others' "
                "median; its share is lowered",
                *(self.id, self._members[member].node, one.length, one.counts),
            )
        self._lowered = much

    def _released(self, last: bool, *, met: bool) -> None:
        if last:
            self._has_met = met
        if last and not met:
            logger.warning(
                "ring %d: the last round was not made, because nobody was left to make it with. "
                "What this cluster has of it may differ from what others have",
                self.id,
            )
        self._around.released(self.id, last)

    def _begin(self, current: _Round, shares: Sequence[float]) -> None:
        start, snapshot = current.start, current.snapshot
        assert start is not None
        assert snapshot is not None
        current.exchange_began = self._clock()
        by_track = shares_by_track(current.tracks, shares, in_full(shares))
        current.exchange = Exchange(
            self.id,
            start.round,
            current.tracks,
            start.members,
            shares,
            self._roll.me,
            still=start.still,
            shares=shares,
            witness=self._testimony.watches(current.tracks, by_track),
            gate=current.gate,
        )
        if self._testimony.agree is False:
            self._disagree("the members were told different weights or pledges")
            return
        for message, payload in current.exchange.begin():
            self._pass_on(message, payload)
        early, current.early = current.early, []
        for vector, item, payload in early:
            if self._round is current:
                self._take_in(current, vector, item, payload)
        self._look_whether_done(current)

    def _tracks(self, snapshot: Snapshot, start: Start, fragments: Sequence[int]) -> list[Track]:
        after = start.members[(start.members.index(self._roll.me) + 1) % len(start.members)]
        codec = None if start.last else self._around.codec_for(self._members[after].node)
        tracks = []
        for number, vectors in zip(fragments, snapshot.vectors, strict=True):
            fragment = self.fragments[number]
            fragment.remember_for(codec)
            for k, trained in enumerate(fragment.layout.trained()):
                parameters = Track(
                    vectors[k][:trained],
                    trained,
                    name=f"parameters {number}.{k}",
                    is_parameters=True,
                    base=fragment.base[k],
                    changes=start.changes,
                    residual=None if fragment.residual is None else fragment.residual[k],
                    momentum=fragment.momenta[k] if fragment.momenta else None,
                    codec=codec,
                )
                # The rest is small, and may hold infinities, which have no difference.
                tracks += [
                    parameters,
                    Track(vectors[k][trained:], name=f"buffers {number}.{k}", is_buffers=True),
                ]
        if start.moments:
            for number, moments in zip(fragments, snapshot.moments, strict=True):
                for k, vector in enumerate(moments):
                    tracks.append(Track(vector, vector.numel(), name=f"moments {number}.{k}"))
        return tracks

    def _pass_on(self, message: RingChunk, payload: Payload) -> None:
        current = self._round
        assert current is not None
        assert current.start is not None
        members = current.start.members
        after = members[(members.index(self._roll.me) + 1) % len(members)]
        current.sent_bytes += payload.nbytes
        self._around.send(self._members[after].node, Parcel(message, (payload,)))

    def _look_whether_done(self, current: _Round) -> None:
        if self._round is not current or current.exchange is None or not current.exchange.is_done:
            return
        assert current.start is not None
        if not current.is_exchanged:
            current.is_exchanged = True
            self._testimony.exchanged()
        found = self._testimony.verdict()
        if found:
            reason = f"in round {self._turn(current.number)} {found}"
            self._refuse(current, reason, is_measured=False)
        elif found is not None and not self._says_too_much(current.start):
            self._take_over(current, current.start)

    def _take_over(self, current: _Round, start: Start) -> None:
        snapshot, facts, exchange = current.snapshot, current.facts, current.exchange
        assert snapshot is not None
        assert facts is not None
        assert exchange is not None
        assert exchange.witness is not None
        self._round = None
        exchange.witness.applied()
        self._testimony.end()
        self._disagreements = 0
        parts = []
        for number, vectors in zip(current.fragments, snapshot.vectors, strict=True):
            fragment = self.fragments[number]
            fragment.completed(start.round, start.members, changes=start.changes)
            if not start.still:
                self._rows |= {
                    (number, member): rows
                    for member, rows in zip(start.members, start.rows, strict=True)
                }
            parts.append((fragment.layout, vectors))
        now = self._clock()
        self.last = RoundReport(
            start.round,
            len(start.members),
            now - current.began,
            now - current.exchange_began,
            current.sent_bytes,
        )
        logger.info(
            "ring %d: round %d, %d clusters, %.2f s, %.3g MB sent",
            self.id,
            self._turn(start.round),
            len(start.members),
            self.last.seconds,
            self.last.sent_bytes / 1e6,
        )
        self._note(start.round, current, "applied", now)
        self._around.apply(
            Outcome(
                self.id,
                current.fragments,
                tuple(parts),
                current.rest,
                tuple(zip(facts.moments, snapshot.moments, strict=True)) if start.moments else (),
                start.still,
                facts.samples,
                facts.updates,
            )
        )
        self._do(self._roll.completed(self._clock()))

    # ---- the members beside this one ----

    def _testified(self, words: Words, source: int) -> None:
        current = self._round
        if current is None:
            return
        self._testimony.heard(words, source)
        if self._testimony.agree is False:
            self._disagree("the members were told different weights or pledges")
            return
        self._try_to_begin(current)
        self._look_whether_done(current)

    def _disagree(self, reason: str) -> None:
        """A member between here and there has lied, and it cannot be told which one. Where it does
        so again and again this member goes."""
        self._disagreements += 1
        if self._disagreements < _MOST_DISAGREEMENTS:
            self._do(self._roll.failed(reason, self._clock()))
        else:
            logger.warning("ring %d: this member leaves: %s, again and again", self.id, reason)
            self._do(self._roll.leave(self._clock()))

    def _parts(self, snapshot: Snapshot) -> list[tuple[Layout, Vectors]]:
        current = self._round
        assert current is not None
        layouts = [self.fragments[number].layout for number in current.fragments]
        return list(zip(layouts, snapshot.vectors, strict=True))

    def _turn(self, number: int) -> int:
        """A round as people count them: its number also says who leads it."""
        return number // len(self._members)

    def _note(
        self,
        number: int,
        seen: _Round | None,
        outcome: Literal["applied", "given up", "skipped"],
        now: float,
        reason: str = "",
    ) -> None:
        if self._around.note is None:
            return
        start = None if seen is None else seen.start
        self._around.note(
            Round(
                ring=self.id,
                number=self._turn(number),
                began=now if seen is None else seen.began,
                ended=now,
                members=tuple(self._members[k].node for k in start.members) if start else (),
                weights=start.weights if start else (),
                outcome=outcome,
                reason=reason,
                sent_bytes=0 if seen is None else seen.sent_bytes,
            )
        )

    def _skip(self, skip: Skip) -> None:
        current, number, reason = self._round, skip.round, skip.reason
        seen = current if current is not None and current.number == number else None
        began = seen is not None and seen.start is not None
        self._note(number, seen, "given up" if began else "skipped", self._clock(), reason)
        if current is not None and current.number == number:
            if current.exchange is not None:
                for fragment in current.fragments:
                    self.fragments[fragment].failed()
                if current.exchange.witness is not None:
                    current.exchange.witness.failed()
            self._testimony.end()
            self._round = None
        turn = self._turn(number)
        level = logging.INFO if skip.is_refused else logging.WARNING
        logger.log(level, "ring %d: round %d is skipped: %s", self.id, turn, reason)
        self._around.skipped(self.id, skip.is_refused)


def _gone_astray(fault: str, updates: int) -> RunError:
    return RunError(
        f"after {updates} updates {fault}; it is not averaged with other clusters. A lower "
        "learning rate, clip_grad_norm=1.0 or a look at the data may help"
    )
