"""One round of one ring, as one member computes it: chunks come, are added to, and go on.

Every member's share is its weight over the sum of all, so the sum of the shares is the mean. A
chunk sets out as it lies in the snapshot of its first member, whose share is the unit of the sum:
nothing is copied or multiplied before it leaves. The snapshot is used up on the way: when a chunk's
mean comes, its own share has long been added, and what is to be applied takes its place.

Either the values themselves travel, or, where all members have a base in common, the changes since
then. Those are small and alike in size, so that they can be compressed; and what compression leaves
out of a message is added by the same member in its next round, so that nothing is lost for good.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ravnest.errors import WireError
from ravnest.provider.averaging.bounds import Pledge, Vector
from ravnest.provider.averaging.course import Course, Division, Mean, Sum
from ravnest.provider.averaging.outer import Momentum
from ravnest.provider.averaging.sketch import Payload
from ravnest.provider.averaging.witness import Watch, Witness
from ravnest.wire.codecs import Codec, Packed, unpack
from ravnest.wire.messages import RingChunk

CHUNK_BYTES = 2 << 20
"""Smaller ones cost more each than they save; while larger ones come, the line after waits."""
Outgoing = tuple[RingChunk, Payload]


@dataclass(slots=True)
class Track:
    """One vector in one round."""

    own: torch.Tensor
    """The snapshot; chunk by chunk overwritten with what comes of it."""
    trained: int = 0
    """So many elements, the first ones, belong to parameters."""
    base: torch.Tensor | None = None
    changes: bool = False
    """Changes since the base travel."""
    residual: torch.Tensor | None = None
    momentum: Momentum | None = None
    codec: Codec | None = None
    name: str = ""
    """The same in every round, and for all members."""
    is_parameters: bool = False
    """Not an optimizer's state, nor buffers."""

    @property
    def vector(self) -> Vector:
        return Vector(self.own.numel(), self.is_parameters)

    @property
    def remembers(self) -> bool:
        """What a codec leaves out, or has left out before, is made up for."""
        return self.changes and self.residual is not None


class Exchange:
    """From snapshots to what is to be applied."""

    def __init__(
        self,
        ring: int,
        number: int,
        tracks: Sequence[Track],
        members: tuple[int, ...],
        weights: Sequence[float],
        me: int,
        *,
        still: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        watch: Watch | None = None,
        pledges: Sequence[Pledge] = (),
    ) -> None:
        """`watch`: what goes past is looked at, and held against the pledges; see witness.py."""
        self._ring, self._round = ring, number
        self._tracks = tracks
        place = members.index(me)
        # Where nobody has anything to say, all say the same.
        total = sum(weights)
        even = [1 / len(weights)] * len(weights)
        self._shares = [weight / total for weight in weights] if total > 0 else even
        self._share = self._shares[place]
        self.witness: Witness | None = None
        if watch is not None:
            self.witness = Witness(watch, tracks, members, self._shares, pledges)
        self._still = still
        self._divisions, self._courses = [], []
        for track in tracks:
            elements = max(1, chunk_bytes // track.own.element_size())
            division = Division(track.own.numel(), len(members), elements)
            self._divisions.append(division)
            self._courses.append(Course(division, place))
            if track.changes:
                assert track.base is not None
                track.own.sub_(track.base)
                if track.momentum is not None:
                    first, stop = division.segment((place + 1) % len(members))
                    track.momentum.begin(members, first, stop, track.own.dtype)

    @property
    def share(self) -> float:
        """Of this member."""
        return self._share

    @property
    def is_done(self) -> bool:
        return all(course.is_done for course in self._courses)

    def begin(self) -> Iterator[Outgoing]:
        """What this member sends out first."""
        for vector, course in enumerate(self._courses):
            for item in course.begin():
                start, stop = self._bounds(vector, item)
                track = self._tracks[vector]
                values = track.own[start:stop]
                if not self._share:  # what the others add is in units of the whole then
                    values = torch.zeros_like(values)
                if track.remembers:
                    values = self._with_residual(track, start, values.clone(), self._share)
                # What is sent as it lies there is not written to before its mean is back, when it
                # has long arrived.
                yield self._sent(vector, item, self._packed(track, start, values, self._share))

    @torch.no_grad()
    def arrived(self, message: RingChunk, payload: Payload) -> Outgoing | None:
        """A chunk of this round; what to send to the next member, if anything. A tensor that comes
        is written to."""
        vector = message.vector
        if vector >= len(self._tracks):
            raise WireError(f"a chunk of vector {vector}, of which there are {len(self._tracks)}")
        item: Sum | Mean = (Mean if message.is_mean else Sum)(
            message.segment, message.chunk, message.passed
        )
        step = self._courses[vector].arrived(item)
        track = self._tracks[vector]
        start, stop = self._bounds(vector, item)
        values = unpack(payload) if isinstance(payload, Packed) else payload
        if values.shape != (stop - start,) or values.dtype != track.own.dtype:
            raise WireError(
                f"a chunk of {values.dtype}{list(values.shape)} came where "
                f"{track.own.dtype}[{stop - start}] belongs"
            )
        if self.witness is not None:
            self.witness.receives(message, start, values, payload)
        if step.add:
            unit = self._shares[message.segment]
            if self._share:  # 0 times infinity is not 0
                values.add_(track.own[start:stop], alpha=self._share / (unit or 1.0))
            if step.finish:
                self._finish(track, start, values, unit)
                unit = 1.0
            # After the outer step: what was left out then must not go through it again.
            self._with_residual(track, start, values, unit)
            payload = self._packed(track, start, values, unit)
            if step.keep and isinstance(payload, Packed):  # all are to have the same
                values = unpack(payload)
        if step.keep:
            self._keep(track, start, values)
        return None if step.onward is None else self._sent(vector, step.onward, payload)

    def _finish(self, track: Track, start: int, mean: torch.Tensor, unit: float) -> None:
        if unit:
            mean.mul_(unit)
        if track.changes and track.momentum is not None:
            trained = max(0, min(track.trained - start, mean.numel()))
            track.momentum.step(start, mean[:trained])

    def _packed(self, track: Track, start: int, values: torch.Tensor, unit: float) -> Payload:
        """The form in which they travel. What that leaves out is remembered."""
        if track.codec is None or not track.changes:
            return values
        packed = track.codec.pack(values)
        if track.remembers and isinstance(packed, Packed):
            assert track.residual is not None
            left_out = track.residual[start : start + values.numel()]
            left_out.add_(values.sub_(unpack(packed)), alpha=unit or 1.0)
        return packed

    def _with_residual(
        self, track: Track, start: int, values: torch.Tensor, unit: float
    ) -> torch.Tensor:
        """Together with what this member has left out before."""
        if track.remembers:
            assert track.residual is not None
            left_out = track.residual[start : start + values.numel()]
            values.add_(left_out, alpha=1.0 / (unit or 1.0))
            left_out.zero_()
        return values

    def _keep(self, track: Track, start: int, mean: torch.Tensor) -> None:
        stop = start + mean.numel()
        own = track.own[start:stop]
        agreed = mean
        if track.base is not None:
            agreed = track.base[start:stop]
            if track.changes:
                agreed.add_(mean)
            else:
                agreed.copy_(mean)
        if self._still:
            own.copy_(agreed)
            return
        trained = max(0, min(track.trained - start, mean.numel()))
        torch.sub(mean[:trained], own[:trained], out=own[:trained])
        own[trained:].copy_(agreed[trained:])

    def _bounds(self, vector: int, item: Sum | Mean) -> tuple[int, int]:
        return self._divisions[vector].chunk(item.segment, item.chunk)

    def _sent(self, vector: int, item: Sum | Mean, payload: Payload) -> Outgoing:
        message = RingChunk(
            ring=self._ring,
            round=self._round,
            vector=vector,
            is_mean=isinstance(item, Mean),
            segment=item.segment,
            chunk=item.chunk,
            passed=item.holders if isinstance(item, Mean) else item.shares,
        )
        if self.witness is not None:
            self.witness.sends(message, self._bounds(vector, item)[0], payload)
        return message, payload
