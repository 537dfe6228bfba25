"""How much each member counts in a round: no more than the others make likely. Pure.

Before any value is sent, every member pledges how far it has moved since the last round. All
members compute the same shares from the same pledges, so nothing is refused after the exchange
because somebody has moved far. A pledge that is long against the median of the others lowers the
share of its member (norm clipping), and nobody gets what is taken from it: the mean change is that
much shorter. Chunks that are longer than the pledges say do not pass (witness.py).
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from ravnest.errors import WireError

MOST_TIMES = 4.0
"""So many times the median of the others' changes, and no more, the change of a member counts."""
MOST_TIMES_REST = 100.0
"""The same of buffers and of an optimizer's state, which differ more between honest members."""
MOST_TIMES_THE_WEIGHT = 4.0
"""So many times the median of the others' weights, and no more, a member's own one counts."""
LEAST_OF_TWO = 0.25
"""Two members are not averaged if less than this would count of one of them: which of the two has
gone astray nobody can tell, and the one that has moved would lose what it has learnt."""
ROUNDING = 1e-6
"""Of the length of the weights: changes below that are not told from rounding."""
_FEW = 100
"""Vectors of so few elements differ by chance: they may be twice as many times as long."""
_WORTH_A_WARNING = 0.5
_MOST = 1e100
"""Sums and squares of such numbers are numbers, too."""
_LONGEST = 1e30
"""Of values that travel. Sums of such, in any unit, steps of an outer optimizer and what codecs
make up for are numbers of single precision, so that no honest member sends an infinity."""


@dataclass(frozen=True, slots=True)
class Pledge:
    """What a member says of itself before a round."""

    lengths: tuple[float, ...]
    """How far it has moved since the last round, by vector."""
    rows: float
    """That it has trained on between rounds, at most; 0 if it has never trained."""
    usual: tuple[float, ...]
    """How far it has moved then, at most. The others' changes are held against this."""
    sizes: tuple[float, ...]
    """How long the vectors are that it has moved from."""
    has_ended: bool = False
    """It has finished training, and follows the others."""
    chunks: tuple[tuple[float, ...], ...] = ()
    """`lengths`, chunk by chunk."""
    codec: str = ""
    """By which it sends, or has sent and left something out; nothing if as it is."""

    @classmethod
    def of(
        cls,
        chunks: tuple[tuple[float, ...], ...],
        rows: float,
        usual: tuple[float, ...],
        sizes: tuple[float, ...],
        *,
        has_ended: bool,
        codec: str,
    ) -> "Pledge":
        lengths = tuple(math.hypot(*each) for each in chunks)
        return cls(lengths, rows, usual, sizes, has_ended, chunks, codec)

    @property
    def said(self) -> tuple[object, ...]:
        """Without what each member computes of it."""
        return self.chunks, self.rows, self.usual, self.sizes, self.has_ended, self.codec

    def is_about(self, chunks: Sequence[int]) -> bool:
        """Vectors of so many chunks."""
        same = len(self.usual) == len(self.sizes) == len(chunks)
        return same and [len(each) for each in self.chunks] == list(chunks)

    def is_too_long(self, vectors: "Sequence[Vector]") -> bool:
        """Buffers may be: some masks are the least number there is."""
        told = zip(vectors, self.lengths, self.sizes, strict=True)
        return any(length + size > _LONGEST for v, length, size in told if not v.is_buffers)

    def check(self) -> None:
        numbers = (self.rows, *self.lengths, *self.usual, *self.sizes, *chain(*self.chunks))
        if not all(0 <= number < _MOST for number in numbers):
            raise WireError("a pledge in numbers that are no lengths")


@dataclass(frozen=True, slots=True)
class Vector:
    """What has to be known of a vector to tell how far it may be moved."""

    elements: int
    is_parameters: bool
    """Not an optimizer's state, nor buffers."""
    is_buffers: bool = False

    @property
    def times(self) -> float:
        times = MOST_TIMES if self.is_parameters else MOST_TIMES_REST
        return times * (1 + _FEW / max(1, self.elements))

    @property
    def least(self) -> float:
        """Of its length: so much it may be moved whatever others say."""
        return ROUNDING if self.is_parameters else 1 / MOST_TIMES_REST


@dataclass(frozen=True, slots=True)
class Lowered:
    """A member counts for less than it weighs."""

    place: int
    factor: float
    length: float
    counts: float

    @property
    def is_worth_a_warning(self) -> bool:
        return self.factor < _WORTH_A_WARNING


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all members make of the pledges of all."""

    shares: tuple[float, ...] = ()
    """At most a whole together."""
    lowered: tuple[Lowered, ...] = ()
    idle: int | None = None
    """The round is not made: nothing can be told of the others before this one has trained."""
    apart: bool = False
    """The round is not made: too little would count of a member, or of all together; or values are
    too large for sums."""


def agree(
    weights: Sequence[float], pledges: Sequence[Pledge], vectors: Sequence[Vector], *, still: bool
) -> Agreement:
    """`weights` are rows since the last round, as members say."""
    places = range(len(weights))
    if any(pledge.is_too_long(vectors) for pledge in pledges):
        return Agreement(apart=True)
    waited_for = [k for k in places if not weights[k] and not pledges[k].has_ended]
    if not still and waited_for and sum(weight > 0 for weight in weights) < 2:
        return Agreement(idle=waited_for[0])
    counted = bounded(weights)
    total = sum(counted)
    shares = [weight / total if total else 1 / len(weights) for weight in counted]
    usual = _Usual([pledge for pledge in pledges if pledge.rows > 0], len(vectors))
    lowered = []
    for place in places:
        if not usual.has_others(pledges[place]):
            # When all stand still one that has never trained takes what there is.
            if not still:
                return Agreement(idle=next(k for k in places if k != place))
        elif shares[place]:
            more = usual.more_rows(counted[place], pledges[place]) if total else 1.0
            found = _lowered(place, more, pledges[place], usual, vectors)
            if found.factor < 1:
                lowered.append(found)
                shares[place] *= found.factor
    apart = len(weights) == 2 and any(one.factor < LEAST_OF_TWO for one in lowered)
    return Agreement(tuple(shares), tuple(lowered), apart=apart)


class _Usual:
    """What the others are like, for each member: medians over those that have ever trained."""

    def __init__(self, pledges: Sequence[Pledge], vectors: int) -> None:
        self._trained = len(pledges)
        self._training = sum(not pledge.has_ended for pledge in pledges)
        self._rows = sorted(pledge.rows for pledge in pledges)
        self._usual = [sorted(pledge.usual[k] for pledge in pledges) for k in range(vectors)]
        self._sizes = [sorted(pledge.sizes[k] for pledge in pledges) for k in range(vectors)]

    def has_others(self, member: Pledge) -> bool:
        return self._trained > (member.rows > 0)

    def more_rows(self, weight: float, member: Pledge) -> float:
        """How many times further a member may move because of its rows. Those that have finished
        follow it no further than they would have gone themselves."""
        others_train = self._training > (member.rows > 0 and not member.has_ended)
        rows = _median_beside(self._rows, member.rows, high=False)
        return min(MOST_TIMES_THE_WEIGHT, max(1.0 if others_train else 0.0, weight / rows))

    def change(self, vector: int, member: Pledge) -> tuple[float, float]:
        """How far the others have moved, and from where."""
        length, size = member.usual[vector], member.sizes[vector]
        if not member.rows:  # it is not among them
            length = size = math.inf
        return (
            _median_beside(self._usual[vector], length),
            _median_beside(self._sizes[vector], size),
        )


def _lowered(
    place: int, more: float, member: Pledge, usual: _Usual, vectors: Sequence[Vector]
) -> Lowered:
    least = Lowered(place, 1.0, 0.0, 0.0)
    for number, vector in enumerate(vectors):
        length = member.lengths[number]
        others, size = usual.change(number, member)
        counts = vector.times * (more * others + vector.least * size)
        if length > counts and counts / length < least.factor:
            least = Lowered(place, counts / length, length, counts)
    return least


def _median_beside(ordered: Sequence[float], one: float, *, high: bool = True) -> float:
    """The median of all but this one. Of two in the middle the higher one, or the lower one of
    rows: one of the others may lie, and is not to hold this one back by it."""
    place = bisect.bisect_left(ordered, one)
    is_among = place < len(ordered) and ordered[place] == one
    others = len(ordered) - is_among
    middle = others // 2 if high else (others - 1) // 2
    return ordered[middle + (is_among and middle >= place)]


def bounded(weights: Sequence[float]) -> tuple[float, ...]:
    """As they count: members say themselves how much they have trained, and none is to outweigh
    the others by saying so. The same for all members, from what all have heard."""
    some = sorted(weight for weight in weights if weight > 0)
    if len(some) < 2:
        return tuple(weights)
    return tuple(min(weight, _most_beside(some, weight)) if weight else 0.0 for weight in weights)


def _most_beside(ordered: Sequence[float], weight: float) -> float:
    """What one of these counts at most: by the median of the others."""
    middle = [_median_beside(ordered, weight, high=high) for high in (False, True)]
    return MOST_TIMES_THE_WEIGHT * sum(middle) / 2
