"""What the leader of a ring remembers of the members, and what follows from it. Pure.

Knows no rounds under way, no messages on their way and no time: that is the roll call's business
(rollcall.py), which asks here whether there is reason for a round, and whether one may begin with
what members have said in answer to its call.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ravnest.wire.messages import RingBegin, RingCall, RingWish

MISMATCH = "the clusters do not average the same: tensors, fragments, mode, outer or codec differ"
_MOST_SAMPLES = 1e15


@dataclass(frozen=True, slots=True)
class Unheard:
    """Everybody has everything of this round, and some do not know it yet."""

    round: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A round."""

    still: bool
    """All stand still, and end with the same bytes."""
    last: bool


class Wishes:
    """What members have said last."""

    def __init__(self) -> None:
        self._of: dict[int, RingWish] = {}

    def note(self, wish: RingWish) -> None:
        known = self._of.get(wish.member)
        if known is None or known.number < wish.number:
            self._of[wish.member] = wish

    def call_for(self, alive: Sequence[int]) -> Unheard | Wanted | None:
        """What the leader is to do for these members."""
        known = [self._of[member] for member in alive if member in self._of]
        settled = max((wish.settled for wish in known), default=0)
        if any(wish.complete == settled > wish.settled for wish in known):
            # The leader before was lost while it said so: some have heard it, some have not.
            return Unheard(settled)
        stands = {wish.stand for wish in known}
        still = len(known) == len(alive) and "trains" not in stands
        if still or any(wish.due for wish in known):
            return Wanted(still, last=still and stands == {"ended"})
        return None

    def moving(self, alive: Sequence[int]) -> list[int]:
        """Those who do not stand still, as far as is known."""
        return [m for m in alive if m not in self._of or self._of[m].stand == "trains"]

    def forget_due(self) -> None:
        """Those who want a round say so again when the next one is due."""
        self._of = {member: replace(wish, due=False) for member, wish in self._of.items()}

    def forget_settled(self, number: int, *, was_last: bool) -> None:
        """What was wished before this round is settled by it; some may have said more since."""
        for member, wish in list(self._of.items()):
            is_told = wish.complete == number > wish.settled
            if is_told or max(wish.settled, wish.missed) < number:
                if wish.stand == "waits" or (wish.stand == "ended" and was_last):
                    del self._of[member]
                else:
                    settled = number if is_told else wish.settled
                    self._of[member] = replace(wish, due=False, settled=settled)


def beginning(call: RingCall, alive: Sequence[int]) -> RingBegin | str:
    """How a round begins whose call has been around; or why it does not."""
    members = tuple(share.member for share in call.shares)
    weights = tuple(share.weight for share in call.shares)
    rows = tuple(share.rows for share in call.shares)
    if not can_average(members, weights, alive):
        return "not everybody has answered"
    if len({share.layout for share in call.shares}) > 1:
        return MISMATCH
    return RingBegin(
        ring=call.ring,
        round=call.round,
        members=members,
        weights=weights,
        rows=rows,
        moments=_all_the_same(share.moments for share in call.shares),
        changes=_all_the_same(share.base for share in call.shares),
    )


def can_average(members: Sequence[int], weights: Sequence[float], alive: Sequence[int]) -> bool:
    """Whether these are all who are there, each with its weight."""
    return list(members) == list(alive) and len(weights) == len(members) and are_weights(weights)


def are_weights(weights: Sequence[float]) -> bool:
    """Numbers of samples, which NaN is not."""
    return all(0 <= weight < _MOST_SAMPLES for weight in weights)


def _all_the_same(numbers: Iterator[int]) -> bool:
    """And not 0, which stands for nothing."""
    found = set(numbers)
    return len(found) == 1 and found != {0}
