"""One round of one ring, as one member computes it: chunks come, are added to, and go on.

Every member's share is its weight over the sum of all, so the sum of the shares is the mean. The
snapshot of this member is used up on the way: when a chunk's mean comes, its own share has long
been added, and the difference (or, in the last round of a run, the mean itself) takes its place.
"""

from collections.abc import Iterator, Sequence

import torch

from ravnest.errors import WireError
from ravnest.provider.averaging.course import Course, Division, Mean, Sum
from ravnest.provider.averaging.vectors import Vectors
from ravnest.wire.messages import RingChunk

CHUNK_BYTES = 4 << 20
Outgoing = tuple[RingChunk, torch.Tensor]


class Exchange:
    """From a snapshot to what the mean changes about it."""

    def __init__(
        self,
        ring: int,
        number: int,
        snapshot: Vectors,
        place: int,
        weights: Sequence[float],
        *,
        keep_mean: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        if not 0 <= place < len(weights):
            raise ValueError(f"member {place} with weights {list(weights)}")
        self.outcome = snapshot
        """The snapshot, chunk by chunk overwritten with what comes of it."""
        self._ring, self._round = ring, number
        # Where nobody has anything to say, all say the same.
        total = sum(weights)
        self._share = weights[place] / total if total > 0 else 1 / len(weights)
        self._keep_mean = keep_mean
        self._divisions, self._courses = [], []
        for vector in snapshot:
            elements = max(1, chunk_bytes // vector.element_size())
            division = Division(vector.numel(), len(weights), elements)
            self._divisions.append(division)
            self._courses.append(Course(division, place))

    @property
    def is_done(self) -> bool:
        return all(course.is_done for course in self._courses)

    def begin(self) -> Iterator[Outgoing]:
        """What this member sends out first."""
        for wide, course in enumerate(self._courses):
            for item in course.begin():
                yield self._message(bool(wide), item), self._own(bool(wide), item) * self._share

    @torch.no_grad()
    def arrived(self, message: RingChunk, payload: torch.Tensor) -> Outgoing | None:
        """A chunk of this round; what to send to the next member, if anything. `payload` is
        written to."""
        wide = message.wide
        item: Sum | Mean = (Mean if message.is_mean else Sum)(
            message.segment, message.chunk, message.passed
        )
        step = self._courses[wide].arrived(item)
        own = self._own(wide, item)
        if payload.shape != own.shape or payload.dtype != own.dtype:
            raise WireError(
                f"a chunk of {payload.dtype}{list(payload.shape)} came where "
                f"{own.dtype}{list(own.shape)} belongs"
            )
        if step.add:
            payload.add_(own, alpha=self._share)
        if step.keep:
            if self._keep_mean:
                own.copy_(payload)
            else:
                torch.sub(payload, own, out=own)
        return None if step.onward is None else (self._message(wide, step.onward), payload)

    def _own(self, wide: bool, item: Sum | Mean) -> torch.Tensor:
        start, stop = self._divisions[wide].chunk(item.segment, item.chunk)
        return self.outcome[wide][start:stop]

    def _message(self, wide: bool, item: Sum | Mean) -> RingChunk:
        return RingChunk(
            ring=self._ring,
            round=self._round,
            wide=wide,
            is_mean=isinstance(item, Mean),
            segment=item.segment,
            chunk=item.chunk,
            passed=item.holders if isinstance(item, Mean) else item.shares,
        )
