"""When a ring makes a round, and who takes part. Pure: events and `now` in, instructions out.

    whoever is due     Wish ─────────► leader
    leader             snapshot ► Call ► … around the ring … ► back: Begin ► … around the ring
    everybody          Call comes: snapshot, add oneself, hand on; Begin comes: hand on, take part

The leader is the first member that has not gone. Everybody takes part in every round with what it
has learnt since the last one, due or not, so nobody waits for slower clusters: they only weigh
less. Members talk to their neighbours in the ring alone; what is meant for others is handed on.

A member may also stand still: until the next round (blocking averaging), or because it has finished
training. Once all stand still, a round leaves all of them with the same bytes; once all have
finished it is the last one. Nobody is released from such a round before everybody has everything:
`Got` goes around to find out, then `Done` to say so. If a member is lost before that, those who are
left make the round again, whether it was complete for them or not, and so end with the same bytes.

What the leader knows of the others is what they have said last, and may be out of date. So whoever
is called to stand still and does not says so, and the round is off.

A member that is gone is passed over from then on, and everybody hears of it (see membership.py). It
costs the round that was under way and nothing else, since what is applied at the end is the
difference between the mean and one's own snapshot. No round outlives one of its members here.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from ravnest.errors import WireError
from ravnest.provider.averaging.instructions import (
    Instruction,
    Message,
    Over,
    Release,
    Send,
    Skip,
    Start,
    TakeSnapshot,
)
from ravnest.provider.averaging.membership import Membership
from ravnest.provider.averaging.wishes import (
    MISMATCH,
    Unheard,
    Wishes,
    are_weights,
    beginning,
    can_average,
)
from ravnest.wire.messages import (
    RingBegin,
    RingCall,
    RingCancel,
    RingDone,
    RingGone,
    RingGot,
    RingShare,
    RingWho,
    RingWish,
)

Stand = Literal["trains", "waits", "ended"]
_MOST_MISSED = 1 << 32
"""Rounds that somebody may have missed. Further on than that nobody can be, and whoever says so is
not to use up the numbers."""
_TOLD_IN_VAIN = 2
_AT_ONCE = 5
"""So often in a row a round that has come to nothing is made again at once."""
_IN_VAIN = 100
"""So often a round of all that stand still is made again before this member goes; `_AT_ONCE` if it
has stood still for as long as it may. What it has of the round it keeps."""
_State = Literal["idle", "snapshot", "called", "running", "settling", "over"]


@dataclass(slots=True)
class _Round:
    call: RingCall
    deadline: float
    began: float = 0.0
    """The exchange of chunks."""
    others_have_all: bool = False
    """Everybody from the leader to the member before this one."""
    was_due: bool = False
    """This member wanted it, and still does if it comes to nothing."""


class RollCall:
    """One member of one ring."""

    def __init__(
        self,
        ring: int,
        me: int,
        members: int,
        *,
        round_s: float = 600.0,
        fragments: int = 1,
        names: Sequence[str] | None = None,
    ) -> None:
        self.me = me
        self._ring = ring
        self._members = members
        self._round_s = round_s
        self._fragments = fragments
        self._names = names or [f"member {member}" for member in range(members)]
        self._ranks = Membership(members)
        self._due = False
        self._stand: Stand = "trains"
        self._wishes = Wishes()
        """Known to the leader."""
        self._state: _State = "idle"
        self._round: _Round | None = None
        self._last_number = 0
        self._last_leader = 0
        self._said = 0
        self._complete = 0
        self._settled = 0
        self._missed = 0
        self._failures = 0
        """Rounds one after the other that have come to nothing, or are not known to be complete
        everywhere."""
        self._is_late = False
        """This member has stood still for as long as it may, and takes part in a round."""
        self._was_last = False
        """The round that was complete here last was to be the last one."""
        self._was_still = False
        self._told_leader = -1
        self._told: dict[int, int] = {}
        """How often who has told this leader that it has waited long."""

    @property
    def alive(self) -> list[int]:
        return self._ranks.alive

    @property
    def leader(self) -> int:
        return self.alive[0]

    @property
    def has_ended(self) -> bool:
        """This member has finished training."""
        return self._stand == "ended"

    @property
    def makes_again(self) -> bool:
        """A round that was complete here is not known to be so everywhere: it is made once more."""
        return self._complete > self._settled

    @property
    def is_idle(self) -> bool:
        return self._state in ("idle", "over")

    @property
    def is_over(self) -> bool:
        return self._state == "over"

    @property
    def wake_at(self) -> float | None:
        """When `tick` is to be called."""
        return None if self._round is None else self._round.deadline

    @property
    def neighbours(self) -> set[int]:
        """With whom a link is needed; nobody, once there are no more rounds."""
        return set() if self._state == "over" else self._beside

    # ---- events ----

    def due(self, now: float) -> list[Instruction]:
        """This member would like a round."""
        self._due = True
        return self._wish(now)

    def waits(self, now: float) -> list[Instruction]:
        """This member does nothing until the next round."""
        if self._state == "over":
            return [Release(last=False, met=False)]
        self._stand = "waits"
        return self._wish(now)

    def ended(self, now: float) -> list[Instruction]:
        """This member has finished training, and waits for the last round."""
        if self._state == "over":
            return [Release(last=True, met=False)]
        self._stand = "ended"
        return self._wish(now)

    def waited_long(self, now: float) -> list[Instruction]:
        """This member has stood still for as long as it may; said again and again from then on.

        Those who do not stand still are given up, and the others make their round. The leader has
        to find out who that is: what is handed on around the ring may be stuck at one that is
        frozen. So it asks everybody when it is told for the first time, and goes on without the
        others when it is told again. A leader that is told in vain is given up itself."""
        if self._state == "over" or self._stand == "trains":
            return []
        if self._is_at_it:
            self._is_late = True
            return []
        if self.leader == self.me:
            return self._told_of_waiting(self.me, now)
        if self._told_leader != self.leader:
            self._told_leader, self._told = self.leader, {}
        self._told[self.me] = self._told.get(self.me, 0) + 1
        if self._told[self.me] <= _TOLD_IN_VAIN:
            return [Send(self.leader, self._own_wish(waited_long=True))]
        return self._give_up_late(self.leader, now)

    def _told_of_waiting(self, by: int, now: float) -> list[Instruction]:
        if self._told_leader != self.me:
            self._told_leader, self._told = self.me, {}
        self._told[by] = self._told.get(by, 0) + 1
        if self._told[by] < _TOLD_IN_VAIN:
            who = RingWho(ring=self._ring, by=self.me)
            others = [member for member in self.alive if member != self.me]
            return [*(Send(member, who) for member in others), *self._wish(now)]
        found: list[Instruction] = []
        for member in self._wishes.moving(self.alive):
            if member != self.me and self._state != "over":
                found += self._give_up_late(member, now)
        return found

    def _give_up_late(self, member: int, now: float) -> list[Instruction]:
        """One that may live, and has been waited for. Everybody is told directly: others who are
        frozen would not hand it on."""
        gone = RingGone(ring=self._ring, member=member, by=self.me, after=0, is_late=True)
        others = [other for other in self.alive if other not in (self.me, member)]
        return [*(Send(other, gone) for other in others), *self._given_up(gone, now)]

    @property
    def _is_at_it(self) -> bool:
        """In a round of all that stand still."""
        return self._round is not None and self._round.call.still

    def leave(self, now: float) -> list[Instruction]:
        """This member will not be there any more."""
        if self._state == "over":
            return []
        found = self._to_neighbours(self._goodbye())
        if self._round is not None:
            found += self._drop("this member leaves")
        return [*found, *self._end("this member has left")]

    def _goodbye(self) -> RingGone:
        return RingGone(ring=self._ring, member=self.me, by=self.me, after=self._settled)

    def snapshot_taken(self, share: RingShare, now: float) -> list[Instruction]:
        current = self._round
        if self._state != "snapshot" or current is None:
            return []
        current.call = replace(current.call, shares=(*current.call.shares, share))
        self._state = "called"
        return [Send(self._next, current.call)]

    def heard(self, message: Message, source: int, now: float) -> list[Instruction]:
        """From a neighbour, who may only be handing it on."""
        if self._state == "over":
            # Who says so may not know, and would wait; but goodbyes are not answered for ever.
            leaves = isinstance(message, RingGone) and message.member == message.by
            return [] if leaves else [Send(source, self._goodbye())]
        if not self._may_speak(source, message):
            return []
        self._check(message)
        match message:
            case RingWish():
                return self._wished(message, now)
            case RingWho(by=leader):
                return [Send(source, self._own_wish())] if leader == source else []
            case RingCall():
                return self._called(message, now)
            case RingBegin():
                return self._begun(message, now)
            case RingGot():
                return self._others_got_all(message, now)
            case RingDone():
                return self._done(message, now)
            case RingCancel():
                return self._cancelled(message, now)
            case RingGone():  # what this member has said of others comes back, and is known here
                return [] if message.by == self.me else self._given_up(message, now)

    def _may_speak(self, source: int, message: Message) -> bool:
        """Who is gone is heard no more, but where it says goodbye, or contests that it is gone."""
        if source not in self._ranks.gone:
            return True
        if not isinstance(message, RingGone) or message.by != source:
            return False
        return message.member == source or self._ranks.has_given_up(message.member, source)

    def _check(self, message: Message) -> None:
        """Before anything of it is kept, or handed on: else the next one would take the one that
        hands it on for a liar. On which side it came from nothing is built: members may differ for
        a moment in whom they have beside them."""
        knows, leads = self._ranks.knows, getattr(message, "round", 0) % self._members
        match message:
            case RingWish(member=member):
                fits = knows(member) and member != self.me
            case RingCall(leader=leader, shares=shares):
                # Those who have answered by now: from the leader on, each once.
                places = [share.member for share in shares]
                last = self._members if leader == self.me else self.me
                in_turn = places == sorted({leader, *places}) and leader == places[0]
                said = [number for share in shares for number in (share.weight, share.rows)]
                fits = leads == leader and in_turn and places[-1] < last and are_weights(said)
            case RingBegin(members=members, weights=weights, rows=rows):
                same = len(members) == len(weights) == len(rows) and are_weights(rows)
                fits = same and members[:1] == (leads,) and leads != self.me
            case RingDone(by=by):
                fits = knows(by) and by != self.me
            case RingGone(member=member, by=by):
                fits = knows(member) and knows(by)
            case _:
                fits = True
        if not fits:
            raise WireError(f"a {type(message).__name__} that nobody here can have said")

    def lost(self, member: int, now: float, *, is_caught: bool = False) -> list[Instruction]:
        """A member cannot be reached, or cannot be relied on."""
        gone = RingGone(ring=self._ring, member=member, by=self.me, after=0, is_caught=is_caught)
        return [] if self._state == "over" else self._given_up(gone, now)

    def _given_up(self, news: RingGone, now: float) -> list[Instruction]:
        ranks, before = self._ranks, self._ranks.gone
        if not ranks.gave_up(news.by, news.member, is_caught=news.is_caught):
            return []
        # Whoever is given up is told too: it may live, and is not to wait for the others.
        found = [*self._to_neighbours(news), *self._unless_me(news.member, news)]
        contests = news.member == self.me and not (news.is_late or news.is_caught)
        if contests and ranks.gave_up(self.me, news.by):
            # One of the two has to go; the others are to know that this one lives.
            reply = RingGone(ring=self._ring, member=news.by, by=self.me, after=0)
            found += [*self._to_neighbours(reply), *self._unless_me(news.by, reply)]
        if self.me in ranks.gone:
            dropped = self._drop("the others go on alone") if self._round is not None else []
            left = self._end("the other members have given this one up")
            return [*found, *self._to_neighbours(self._goodbye()), *dropped, *left]
        return [*found, *self._without(ranks.gone - before, news.after, now)]

    def _without(self, gone: Set[int], after: int, now: float) -> list[Instruction]:
        """Go on without these. Who has left knew that everybody had everything up to `after`."""
        found: list[Instruction] = []
        if after >= self._complete > self._settled:
            found += self._settle(now)
        elif gone and self._round is not None:
            found += self._cancel(f"{self._names[min(gone)]} is gone")
        if len(self.alive) == 1:
            return [*found, *self._end("nobody else is left")]
        # What was wished may have been under way there, or the leader is another one now.
        return [*found, *self._wish(now), *self._lead(now)]

    def _unless_me(self, member: int, message: Message) -> list[Instruction]:
        return [] if member == self.me else [Send(member, message)]

    def completed(self, now: float) -> list[Instruction]:
        """All chunks of the round are here."""
        current = self._round
        if current is None or self._state != "running":
            return []
        self._complete = current.call.round
        self._was_last, self._was_still = current.call.last, current.call.still
        if not self._was_still:
            return self._settle(now)
        self._state = "settling"
        # Others may still be at it: at most about as long as it has taken so far.
        current.deadline = now + max(self._round_s, now - current.began)
        if current.call.leader == self.me or current.others_have_all:
            return self._hand_on_got(current)
        return []

    def progressed(self, now: float) -> None:
        """A chunk has come: large rounds on slow lines take long, and are no less worth it."""
        if self._round is not None and self._state == "running":
            self._round.deadline = now + self._round_s

    def failed(self, reason: str, now: float, *, is_refused: bool = False) -> list[Instruction]:
        """The exchange of chunks came to nothing; or what has come of it is refused."""
        if self._round is None:
            return []
        off = self._cancel(reason, is_refused=is_refused)
        return [*off, *self._wish_again(now), *self._lead(now)]

    def tick(self, now: float) -> list[Instruction]:
        """Time has passed."""
        if self._round is None or now < self._round.deadline:
            return []
        return self.failed("it took too long", now)

    # ---- wishes ----

    def _wish(self, now: float) -> list[Instruction]:
        return [] if self._state == "over" else self._wished(self._own_wish(), now)

    def _own_wish(self, *, waited_long: bool = False) -> RingWish:
        self._said += 1
        return RingWish(
            ring=self._ring,
            member=self.me,
            number=self._said,
            complete=self._complete,
            settled=self._settled,
            missed=self._missed,
            due=self._due,
            stand=self._stand,
            waited_long=waited_long,
        )

    def _wish_again(self, now: float) -> list[Instruction]:
        return self._wish(now) if self._due or self._stand != "trains" else []

    def _wished(self, wish: RingWish, now: float) -> list[Instruction]:
        if self.leader != self.me:
            return [] if self._next == wish.member else [Send(self._next, wish)]
        if self._ranks.knows(wish.member):
            self._wishes.note(wish)
            if wish.waited_long and self._stand != "trains" and not self._is_at_it:
                return [*self._told_of_waiting(wish.member, now), *self._lead(now)]
        return self._lead(now)

    def _lead(self, now: float) -> list[Instruction]:
        """Begin a round if there is reason to."""
        alive = self.alive
        if self.leader != self.me or self._state != "idle" or len(alive) < 2:
            return []
        reason = self._wishes.call_for(alive)
        if reason is None:
            return []
        if isinstance(reason, Unheard):
            return self._say_done(reason.round, now)
        # No two leaders use the same number, whatever they know of each other's.
        turn = self._last_number // self._members + 1
        number = turn * self._members + self.me
        call = RingCall(
            ring=self._ring,
            round=number,
            leader=self.me,
            fragment=0 if reason.still or self._fragments == 1 else 1 + turn % self._fragments,
            shares=(),
            still=reason.still,
            last=reason.last,
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
        if call.fragment > self._fragments:
            off = RingCancel(ring=self._ring, round=call.round, reason=MISMATCH)
            return [*self._to_neighbours(off), *self._end(MISMATCH, is_mismatch=True)]
        if call.round > self._last_number + _MOST_MISSED:
            return []
        if call.leader == self._last_leader and call.round <= self._last_number:
            return []  # it has called again since
        if call.still and (self._stand == "trains" or (call.last and self._stand != "ended")):
            off = RingCancel(
                ring=self._ring, round=call.round, reason=f"{self._names[self.me]} has gone on"
            )
            return [*self._wish(now), *self._to_neighbours(off)]
        found: list[Instruction] = []
        if current is not None:  # the leader has given that one up
            found += self._drop("another round was called")
        return found + self._prepare(call, now)

    def _prepare(self, call: RingCall, now: float) -> list[Instruction]:
        self._last_number = max(self._last_number, call.round)
        self._last_leader = call.leader
        self._state = "snapshot"
        self._round = _Round(call, now + self._round_s)
        return [TakeSnapshot(call.round, call.fragment)]

    def _begin(self, call: RingCall, now: float) -> list[Instruction]:
        begin = beginning(call, self.alive)
        if begin == MISMATCH:
            return [*self._cancel(MISMATCH), *self._end(MISMATCH, is_mismatch=True)]
        if isinstance(begin, str):
            return self._cancel(begin)
        return self._begun(begin, now)

    def _begun(self, begin: RingBegin, now: float) -> list[Instruction]:
        current = self._round
        if current is None or current.call.round != begin.round or self._state != "called":
            return []
        if not can_average(begin.members, begin.weights, self.alive):
            return self._cancel("it begins with other members")
        current.was_due = self._due
        self._state, self._due = "running", False
        current.deadline, current.began = now + self._round_s, now
        found: list[Instruction] = []
        if self._next != begin.members[0]:
            found.append(Send(self._next, begin))
        start = Start(
            begin.round,
            current.call.fragment,
            begin.members,
            begin.weights,
            begin.rows,
            current.call.still,
            current.call.last,
            begin.moments,
            begin.changes,
        )
        return [*found, start]

    # ---- the end of a round ----

    def _others_got_all(self, got: RingGot, now: float) -> list[Instruction]:
        current = self._round
        if current is None or current.call.round != got.round:
            return []
        if current.call.leader == self.me:
            return self._say_done(got.round, now) if self._state == "settling" else []
        current.others_have_all = True
        return self._hand_on_got(current) if self._state == "settling" else []

    def _hand_on_got(self, current: _Round) -> list[Instruction]:
        return [Send(self._next, RingGot(ring=self._ring, round=current.call.round))]

    def _say_done(self, number: int, now: float) -> list[Instruction]:
        done = RingDone(ring=self._ring, round=number, by=self.me)
        self._wishes.forget_settled(number, was_last=self._was_last)
        settled = self._settle(now) if self._complete == number > self._settled else []
        return [Send(self._next, done), *settled]

    def _done(self, done: RingDone, now: float) -> list[Instruction]:
        has_been_around = self._next == done.by or done.by not in self.alive
        found = [] if has_been_around else [Send(self._next, done)]
        if self._complete == done.round > self._settled:
            return [*found, *self._settle(now)]
        return list(found)

    def _settle(self, now: float) -> list[Instruction]:
        """The round that was complete here last is so everywhere, or needs not be."""
        found: list[Instruction] = []
        self._settled, self._failures = self._complete, 0
        self._wishes.forget_settled(self._settled, was_last=self._was_last)
        free = self._stand == "waits" or (self._stand == "ended" and self._was_last)
        if self._was_still and free:
            found += self._released(met=True)
        if self._round is not None and self._round.call.round != self._complete:
            found += self._cancel("the one before is complete after all")
        if self._state == "over":
            return found
        self._round, self._state = None, "idle"
        if len(self.alive) == 1:
            return [*found, *self._end("nobody else is left")]
        return [*found, *self._lead(now)]

    def _released(self, *, met: bool) -> list[Instruction]:
        last, self._stand, self._is_late = self._stand == "ended", "trains", False
        return [Release(last, met)]

    def _cancelled(self, cancel: RingCancel, now: float) -> list[Instruction]:
        if self._round is None or self._round.call.round != cancel.round:
            return []
        if cancel.reason == MISMATCH:  # which does not pass
            return [*self._cancel(MISMATCH), *self._end(MISMATCH, is_mismatch=True)]
        off = self._cancel(cancel.reason, is_refused=cancel.is_refused)
        return [*off, *self._wish_again(now), *self._lead(now)]

    def _cancel(self, reason: str, *, is_refused: bool = False) -> list[Instruction]:
        assert self._round is not None
        number = self._round.call.round
        cancel = RingCancel(ring=self._ring, round=number, reason=reason, is_refused=is_refused)
        return [*self._to_neighbours(cancel), *self._drop(reason, is_refused=is_refused)]

    def _drop(self, reason: str, *, is_refused: bool = False) -> list[Instruction]:
        assert self._round is not None
        number, was_due = self._round.call.round, self._round.was_due
        self._round, self._state = None, "idle"
        self._failures += 1
        # Those who want a round ask for it again when the next one is due: it would fail again.
        is_refused = is_refused or self._failures > _AT_ONCE
        self._due = (self._due or was_due) and not is_refused
        if is_refused:
            self._wishes.forget_due()
        self._missed = max(self._missed, number)
        skip: list[Instruction] = [Skip(number, reason, is_refused)]
        most = _AT_ONCE if self._is_late else _IN_VAIN
        if self._failures > most and self._stand != "trains":
            left = self._to_neighbours(self._goodbye())
            return [*skip, *left, *self._end("no round has come about, again and again")]
        return [*skip, *self._end("nobody else is left")] if len(self.alive) == 1 else skip

    def _end(self, reason: str, *, is_mismatch: bool = False) -> list[Instruction]:
        if self._state == "over":
            return []
        self._state = "over"
        has_it = self.makes_again and (self._stand == "waits" or self._was_last)
        released = self._released(met=has_it) if self._stand != "trains" else []
        return [*released, Over(reason, is_mismatch)]

    # ---- who is there ----

    @property
    def _next(self) -> int:
        return next(self._ranks.around(self.me, 1))

    @property
    def _previous(self) -> int:
        return next(self._ranks.around(self.me, -1))

    @property
    def _beside(self) -> set[int]:
        return {self._next, self._previous} - {self.me}

    def _to_neighbours(self, message: Message) -> list[Instruction]:
        return [Send(member, message) for member in sorted(self._beside)]
