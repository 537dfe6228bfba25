"""Who takes part in the next round of a ring, and who has gone. Pure: events and `now` in,
instructions out.

Clusters train at their own speed, so before a round its members are asked one after another:

    leader            due ► snapshot ► Call ───────────────► … comes back: Begin, or Cancel
    everybody else    Call comes ► due? snapshot, add oneself, hand on ► Begin comes ► take part

The leader is the first member that has not gone. Who is not due when the call comes keeps it for a
while (`Patience.wait_s`) and then hands it on without itself: the slowest member holds a round up
by that much at most, and training nowhere. A member that is gone is passed over, and the others
hear of it; a round that has begun with it is cancelled, which costs that round and nothing else,
since what is applied at the end is the difference between the mean and one's own snapshot.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

# ---- what members say to each other ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """Goes around once: who takes part?"""

    round: int
    leader: int
    members: tuple[int, ...]
    weights: tuple[float, ...]
    final: bool
    """The leader has finished training; only who has finished too is to take part."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Goes to all who take part, in the order of the ring."""

    round: int
    members: tuple[int, ...]
    weights: tuple[float, ...]
    final: bool


@dataclass(frozen=True, slots=True)
class Cancel:
    """The round is off; goes to all who take part."""

    round: int
    members: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """This member is not to be waited for any more; goes to all."""

    member: int


Message = Call | Begin | Cancel | Gone

# ---- instructions ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    to: int
    message: Message


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Keep the present values, at the next border between updates; answer with `snapshot_taken`."""

    round: int


@dataclass(frozen=True, slots=True)
class Start:
    """Exchange chunks with these members, of whom this is one."""

    round: int
    members: tuple[int, ...]
    weights: tuple[float, ...]
    final: bool


@dataclass(frozen=True, slots=True)
class Skip:
    """No mean this time; forget the snapshot."""

    round: int
    reason: str


Instruction = Send | TakeSnapshot | Start | Skip

# ---- the member ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Patience:
    wait_s: float = 60.0
    """How long a call waits for a member that is not due."""
    final_wait_s: float = 1800.0
    """The same at the end of training."""
    round_s: float = 600.0
    """How long a round may take from its beginning."""


_State = Literal["idle", "snapshot", "called", "running"]


@dataclass(slots=True)
class _Round:
    number: int
    call: Call
    deadline: float


@dataclass
class RollCall:
    """One member of one ring."""

    me: int
    members: int
    patience: Patience = field(default_factory=Patience)
    quorum: int = 2
    """Members without whom a round is not worth it."""

    def __post_init__(self) -> None:
        self._gone: set[int] = set()
        self._due = self._final = False
        self._state: _State = "idle"
        self._round: _Round | None = None
        self._held: tuple[Call, float] | None = None  # a call that waits for us, and until when
        self._last = 0

    @property
    def leader(self) -> int:
        return min(member for member in range(self.members) if member not in self._gone)

    @property
    def is_waiting(self) -> bool:
        """A round is under way here, or somebody waits for this member."""
        return self._state != "idle" or self._held is not None

    # ---- events ----

    def due(self, now: float, *, final: bool = False) -> list[Instruction]:
        """There is something to average."""
        self._due, self._final = True, self._final or final
        if self._held is not None and self._may_join(self._held[0]):
            call, self._held = self._held[0], None
            return self._prepare(call, now)
        return self._lead(now)

    def snapshot_taken(self, weight: float, now: float) -> list[Instruction]:
        if self._state != "snapshot" or self._round is None:
            return []
        call = self._round.call
        joined = replace(call, members=(*call.members, self.me), weights=(*call.weights, weight))
        self._round.call = joined
        self._state = "called"
        return self._hand_on(joined, now)

    def heard(self, message: Message, now: float) -> list[Instruction]:
        match message:
            case Call():
                return self._called(message, now)
            case Begin():
                return self._begun(message, now)
            case Cancel():
                return self._cancelled(message)
            case Gone():
                return self.lost(message.member, now)

    def lost(self, member: int, now: float) -> list[Instruction]:
        """A member cannot be reached, or is said to be gone."""
        if member in self._gone or member == self.me:
            return []
        self._gone.add(member)
        found: list[Instruction] = [Send(other, Gone(member)) for other in self._others()]
        current = self._round
        if current is not None and (
            member in current.call.members or member == current.call.leader
        ):
            found += self._cancel(f"member {member} is gone")
        if self._held is not None and self._held[0].leader == member:
            self._held = None
        return found + self._lead(now)

    def completed(self, now: float) -> list[Instruction]:
        """All chunks of the round are here."""
        self._finish()
        return self._lead(now)

    def failed(self, reason: str) -> list[Instruction]:
        """The exchange of chunks came to nothing."""
        return self._cancel(reason) if self._round is not None else []

    def tick(self, now: float) -> list[Instruction]:
        """Time has passed; to be called at `wake_at` at the latest."""
        if self._held is not None and now >= self._held[1]:
            call, self._held = self._held[0], None
            return self._hand_on(call, now)
        if self._round is not None and now >= self._round.deadline:
            return [*self._cancel("it took too long"), *self._lead(now)]
        return []

    @property
    def wake_at(self) -> float | None:
        times = [held[1] for held in (self._held,) if held is not None]
        if self._round is not None:
            times.append(self._round.deadline)
        return min(times, default=None)

    # ---- the leader ----

    def _lead(self, now: float) -> list[Instruction]:
        if not self._due or self._state != "idle" or self.leader != self.me:
            return []
        if len(self._gone) + 1 == self.members:
            self._due = False
            return [Skip(self._last, "nobody else is left")]
        self._last += 1
        return self._prepare(Call(self._last, self.me, (), (), self._final), now)

    def _came_back(self, call: Call, now: float) -> list[Instruction]:
        if len(call.members) < self.quorum:
            self._finish()
            self._due = True
            return [Skip(call.round, "nobody else was ready")]
        begin = Begin(call.round, call.members, call.weights, call.final)
        return self._begun(begin, now)

    # ---- everybody ----

    def _called(self, call: Call, now: float) -> list[Instruction]:
        self._last = max(self._last, call.round)
        if call.leader == self.me:
            current = self._round
            if current is None or current.number != call.round or self._state != "called":
                return []
            return self._came_back(call, now)
        if self._state != "idle" or call.leader in self._gone:
            return self._hand_on(call, now)  # busy with another round, or nobody waits for this one
        if self._may_join(call):
            return self._prepare(call, now)
        wait_s = self.patience.final_wait_s if call.final else self.patience.wait_s
        self._held = (call, now + wait_s)
        return []

    def _may_join(self, call: Call) -> bool:
        return self._final if call.final else self._due

    def _prepare(self, call: Call, now: float) -> list[Instruction]:
        patience = self.patience
        wait_s = patience.final_wait_s if call.final else patience.wait_s
        self._state = "snapshot"
        self._round = _Round(call.round, call, now + self.members * wait_s + patience.round_s)
        return [TakeSnapshot(call.round)]

    def _hand_on(self, call: Call, now: float) -> list[Instruction]:
        if call.leader in self._gone:
            return []  # who had joined is told by those who noticed
        after = next(self._after(self.me))
        return self._called(call, now) if after == self.me else [Send(after, call)]

    def _begun(self, begin: Begin, now: float) -> list[Instruction]:
        current = self._round
        if current is None or current.number != begin.round or self._state != "called":
            return []
        if self.me not in begin.members:
            return []
        self._state = "running"
        current.call = replace(current.call, members=begin.members, weights=begin.weights)
        current.deadline = now + self.patience.round_s
        self._due = False
        found: list[Instruction] = []
        place = begin.members.index(self.me)
        if place + 1 < len(begin.members):
            found.append(Send(begin.members[place + 1], begin))
        return [*found, Start(begin.round, begin.members, begin.weights, begin.final)]

    def _cancelled(self, cancel: Cancel) -> list[Instruction]:
        current = self._round
        if current is None or current.number != cancel.round:
            return []
        self._finish()
        self._due = True
        return [Skip(cancel.round, cancel.reason)]

    def _cancel(self, reason: str) -> list[Instruction]:
        current = self._round
        assert current is not None
        cancel = Cancel(current.number, current.call.members, reason)
        told = [m for m in current.call.members if m != self.me and m not in self._gone]
        self._finish()
        self._due = True
        return [*(Send(member, cancel) for member in told), Skip(current.number, reason)]

    def _finish(self) -> None:
        self._state, self._round = "idle", None

    # ---- who is there ----

    def _after(self, member: int) -> Iterator[int]:
        """Those who have not gone, from the next one on, around the ring; oneself at the end."""
        for step in range(1, self.members + 1):
            other = (member + step) % self.members
            if other not in self._gone:
                yield other

    def _others(self) -> list[int]:
        return [m for m in range(self.members) if m != self.me and m not in self._gone]
