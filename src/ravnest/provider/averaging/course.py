"""The way of every chunk around a ring. Pure.

A vector is divided into as many segments as the ring has members, and segments into chunks. Chunks
of segment g set out at member g. Each member on the way adds its own share and sends the sum on;
the last one, g - 1, has the sum of all, makes the mean of it, and sends that around the other way
of the circle, to those who have not got it:

    3 members, segment 0      0 ──x0──► 1 ──x0+x1──► 2 = all     2 ──mean──► 0 ──mean──► 1

Nothing waits for anything else: what a member does with a chunk follows from the chunk alone. All
links are busy all the time, each carries 2 (m - 1) / m of the vector, and all members end with the
same bytes, because each mean is made once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ravnest.errors import WireError

_LEAST_UNIT = 1 / 64


def unit_of(share: float) -> float:
    """In what unit the sums of a segment travel, of which the first member has this share of the
    whole: its values are sent as they are. In very small units sums would be too large for floats.
    """
    return share if share >= _LEAST_UNIT else 1.0


@dataclass(frozen=True, slots=True)
class Division:
    """A vector of so many elements in segments and chunks."""

    elements: int
    members: int
    chunk_elements: int

    def segment(self, segment: int) -> tuple[int, int]:
        """First element, and the one after the last."""
        return (
            self.elements * segment // self.members,
            self.elements * (segment + 1) // self.members,
        )

    def chunks(self, segment: int) -> int:
        first, stop = self.segment(segment)
        return -(-(stop - first) // self.chunk_elements)

    def chunk(self, segment: int, chunk: int) -> tuple[int, int]:
        first, stop = self.segment(segment)
        start = first + chunk * self.chunk_elements
        return start, min(start + self.chunk_elements, stop)

    def number(self, segment: int, chunk: int) -> int:
        """Of a chunk, counted over all segments."""
        return sum(self.chunks(before) for before in range(segment)) + chunk

    def pieces(self) -> Iterator[tuple[int, int]]:
        """First element of each chunk, and the one after its last, in the order of numbers."""
        for segment in range(self.members):
            for chunk in range(self.chunks(segment)):
                yield self.chunk(segment, chunk)

    @property
    def total_chunks(self) -> int:
        return sum(self.chunks(segment) for segment in range(self.members))


@dataclass(frozen=True, slots=True)
class Sum:
    """A chunk on its way to its mean; `shares` members have added theirs."""

    segment: int
    chunk: int
    shares: int


@dataclass(frozen=True, slots=True)
class Mean:
    """A chunk that is done; `holders` members have it."""

    segment: int
    chunk: int
    holders: int


@dataclass(frozen=True, slots=True)
class Step:
    """What to do with a chunk that has come."""

    add: bool
    """Add this member's own share to it."""
    finish: bool
    """It is the sum of all now: make the mean."""
    keep: bool
    """It is the mean: put it into the result."""
    onward: Sum | Mean | None
    """What to send to the next member."""


class Course:
    """One member's part in one round of one vector."""

    def __init__(self, division: Division, member: int) -> None:
        self._division = division
        self._member = member
        self._seen: set[Sum | Mean] = set()
        self._left = division.total_chunks

    def begin(self) -> Iterator[Sum]:
        """What this member sends out first: its own segment."""
        for chunk in range(self._division.chunks(self._member)):
            yield Sum(self._member, chunk, 1)

    @property
    def is_done(self) -> bool:
        """The result is complete."""
        return self._left == 0

    def admit(self, item: Sum | Mean) -> None:
        """`WireError` if it does not belong here, or has been here before."""
        self._check(item)
        self._seen.add(item)

    def arrived(self, item: Sum | Mean) -> Step:
        """One that was admitted, and is as it may be, counts from now on."""
        members = self._division.members
        if isinstance(item, Mean):
            self._left -= 1
            more = item.holders + 1 < members
            onward = Mean(item.segment, item.chunk, item.holders + 1) if more else None
            return Step(add=False, finish=False, keep=True, onward=onward)
        if item.shares + 1 < members:
            onward_sum = Sum(item.segment, item.chunk, item.shares + 1)
            return Step(add=True, finish=False, keep=False, onward=onward_sum)
        self._left -= 1
        return Step(add=True, finish=True, keep=True, onward=Mean(item.segment, item.chunk, 1))

    def _check(self, item: Sum | Mean) -> None:
        division, members = self._division, self._division.members
        passed = item.shares if isinstance(item, Sum) else members - 1 + item.holders
        at_home = (
            0 <= item.segment < members
            and 0 <= item.chunk < division.chunks(item.segment)
            and 1 <= (item.shares if isinstance(item, Sum) else item.holders) < members
            and (item.segment + passed) % members == self._member
        )
        if not at_home:
            raise WireError(f"{item} does not belong to member {self._member} of {members}")
        if item in self._seen:
            raise WireError(f"{item} came twice")
