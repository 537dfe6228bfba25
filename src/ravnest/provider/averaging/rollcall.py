"""When a ring makes a round, and who takes part. Pure: events and `now` in, instructions out.

    whoever is due     Wish ─────────► leader
    leader             snapshot ► Call ► … around the ring … ► back: Begin ► … around the ring
    everybody          Call comes: snapshot, add oneself, hand on; Begin comes: hand on, take part

The leader is the first member that has not gone. Everybody takes part in every round with what it
has learnt since the last one, due or not, so nobody waits for slower clusters: they only weigh
less. Members talk to their neighbours in the ring alone; what is meant for others is handed on.

A member that is gone is passed over from then on, and everybody hears of it. It costs the round
that was under way and nothing else, since what is applied at the end is the difference between the
mean and one's own snapshot. Once all have finished training there is a last round, after which all
hold the same bytes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from ravnest.wire.messages import RingBegin, RingCall, RingCancel, RingGone, RingWish

Message = RingWish | RingCall | RingBegin | RingCancel | RingGone


@dataclass(frozen=True, slots=True)
class Send:
    to: int
    message: Message


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Keep the present values, at the next border between updates, and say `snapshot_taken`."""

    round: int


@dataclass(frozen=True, slots=True)
class Start:
    """Exchange chunks with these members, of whom this is one."""

    round: int
    members: tuple[int, ...]
    weights: tuple[float, ...]
    last: bool


@dataclass(frozen=True, slots=True)
class Skip:
    """No mean this time; forget the snapshot."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class Over:
    """There will be no more rounds."""

    reason: str


Instruction = Send | TakeSnapshot | Start | Skip | Over
_State = Literal["idle", "snapshot", "called", "running", "over"]


@dataclass(slots=True)
class _Round:
    call: RingCall
    deadline: float


class RollCall:
    """One member of one ring."""

    def __init__(self, ring: int, me: int, members: int, round_s: float = 600.0) -> None:
        self.me = me
        self._ring = ring
        self._members = members
        self._round_s = round_s
        self._gone: set[int] = set()
        self._wants = False
        """Somebody is due; known to the leader."""
        self._due = False
        self._finished: set[int] = set()
        self._state: _State = "idle"
        self._round: _Round | None = None
        self._last_number = 0

    @property
    def leader(self) -> int:
        return min(member for member in range(self._members) if member not in self._gone)

    @property
    def alive(self) -> list[int]:
        return [member for member in range(self._members) if member not in self._gone]

    @property
    def is_idle(self) -> bool:
        return self._state in ("idle", "over")

    @property
    def wake_at(self) -> float | None:
        """When `tick` is to be called."""
        return None if self._round is None else self._round.deadline

    @property
    def neighbours(self) -> set[int]:
        """With whom a link is needed."""
        return {next(self._around(1)), next(self._around(-1))} - {self.me}

    # ---- events ----

    def due(self, now: float) -> list[Instruction]:
        """This member would like a round."""
        self._due = True
        return self._wish(now)

    def finished(self, now: float) -> list[Instruction]:
        """This member has finished training."""
        self._finished.add(self.me)
        return self._wish(now)

    def snapshot_taken(self, weight: float, now: float) -> list[Instruction]:
        current = self._round
        if self._state != "snapshot" or current is None:
            return []
        call = current.call
        current.call = replace(
            call, members=(*call.members, self.me), weights=(*call.weights, weight)
        )
        self._state = "called"
        return [Send(next(self._around(1)), current.call)]

    def heard(self, message: Message, now: float) -> list[Instruction]:
        match message:
            case RingWish():
                return self._wished(message, now)
            case RingCall():
                return self._called(message, now)
            case RingBegin():
                return self._begun(message, now)
            case RingCancel():
                return self._cancelled(message, now)
            case RingGone():
                return self.lost(message.member, now)

    def lost(self, member: int, now: float) -> list[Instruction]:
        """A member cannot be reached, or is said to be gone."""
        if member in self._gone or member == self.me or not 0 <= member < self._members:
            return []
        self._gone.add(member)
        found = self._to_neighbours(RingGone(ring=self._ring, member=member))
        if self._round is not None:
            found += self._cancel(f"member {member} is gone")
        if len(self.alive) == 1 and self._state != "over":
            self._state = "over"
            return [*found, Over("nobody else is left")]
        if self._due or self.me in self._finished:
            found += self._wish(now)  # it may have been under way there, or the leader is another
        return found + self._lead(now)

    def completed(self, now: float) -> list[Instruction]:
        """All chunks of the round are here."""
        current, self._round = self._round, None
        if current is None:
            return []
        if current.call.last:
            self._state = "over"
            return [Over("training is finished")]
        self._state = "idle"
        return self._lead(now)

    def failed(self, reason: str, now: float) -> list[Instruction]:
        """The exchange of chunks came to nothing."""
        if self._round is None:
            return []
        return [*self._cancel(reason), *self._lead(now)]

    def tick(self, now: float) -> list[Instruction]:
        """Time has passed."""
        if self._round is None or now < self._round.deadline:
            return []
        return self.failed("it took too long", now)

    # ---- wishes ----

    def _wish(self, now: float) -> list[Instruction]:
        wish = RingWish(ring=self._ring, member=self.me, finished=self.me in self._finished)
        return self._wished(wish, now)

    def _wished(self, wish: RingWish, now: float) -> list[Instruction]:
        if self.leader != self.me:
            after = next(self._around(1))
            return [] if after == wish.member else [Send(after, wish)]
        self._wants = True
        if wish.finished:
            self._finished.add(wish.member)
        return self._lead(now)

    def _lead(self, now: float) -> list[Instruction]:
        """Begin a round if there is reason to."""
        all_finished = self._finished >= set(self.alive)
        if self.leader != self.me or self._state != "idle" or not self._wants:
            return []
        if len(self.alive) < 2:
            return []
        self._wants = False
        call = RingCall(
            ring=self._ring,
            round=self._last_number + 1,
            leader=self.me,
            members=(),
            weights=(),
            last=all_finished,
        )
        return self._prepare(call, now)

    # ---- the call ----

    def _called(self, call: RingCall, now: float) -> list[Instruction]:
        current = self._round
        if call.leader == self.me:
            if current is None or self._state != "called" or current.call.round != call.round:
                return []
            return self._begin(call, now)
        if call.leader != self.leader:
            return []  # one of us knows more than the other; it comes again
        found: list[Instruction] = []
        if current is not None:  # the leader has given that one up
            found += self._drop("another round was called")
        return found + self._prepare(call, now)

    def _prepare(self, call: RingCall, now: float) -> list[Instruction]:
        if self._state == "over":
            return []
        self._last_number = max(self._last_number, call.round)
        self._state = "snapshot"
        self._round = _Round(call, now + self._round_s)
        return [TakeSnapshot(call.round)]

    def _begin(self, call: RingCall, now: float) -> list[Instruction]:
        if set(call.members) != set(self.alive) or not _usable(call.weights, len(call.members)):
            return self._cancel("not everybody has answered")
        begin = RingBegin(
            ring=self._ring,
            round=call.round,
            members=call.members,
            weights=call.weights,
            last=call.last,
        )
        return self._begun(begin, now)

    def _begun(self, begin: RingBegin, now: float) -> list[Instruction]:
        current = self._round
        if current is None or current.call.round != begin.round or self._state != "called":
            return []
        if self.me not in begin.members or not _usable(begin.weights, len(begin.members)):
            return self._cancel("it begins without this member")
        self._state, self._due = "running", False
        current.call = replace(
            current.call, members=begin.members, weights=begin.weights, last=begin.last
        )
        current.deadline = now + self._round_s
        after = next(self._around(1))
        found: list[Instruction] = [] if after == begin.members[0] else [Send(after, begin)]
        return [*found, Start(begin.round, begin.members, begin.weights, begin.last)]

    # ---- the end of a round ----

    def _cancelled(self, cancel: RingCancel, now: float) -> list[Instruction]:
        if self._round is None or self._round.call.round != cancel.round:
            return []
        return [*self._cancel(cancel.reason), *self._lead(now)]

    def _cancel(self, reason: str) -> list[Instruction]:
        assert self._round is not None
        number = self._round.call.round
        if self._round.call.last:  # nobody is going to ask for it again
            self._wants = True
        cancel = RingCancel(ring=self._ring, round=number, reason=reason)
        return [*self._to_neighbours(cancel), *self._drop(reason)]

    def _drop(self, reason: str) -> list[Instruction]:
        assert self._round is not None
        number, self._round = self._round.call.round, None
        self._state = "idle"
        return [Skip(number, reason)]

    # ---- who is there ----

    def _around(self, step: int) -> Iterator[int]:
        """Those who have not gone, from the next one on; oneself at the end."""
        for count in range(1, self._members + 1):
            other = (self.me + step * count) % self._members
            if other not in self._gone:
                yield other

    def _to_neighbours(self, message: Message) -> list[Instruction]:
        return [Send(member, message) for member in sorted(self.neighbours)]


def _usable(weights: tuple[float, ...], members: int) -> bool:
    finite = all(math.isfinite(weight) and weight >= 0 for weight in weights)
    return finite and len(weights) == members
