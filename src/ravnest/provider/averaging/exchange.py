"""One round of one ring, as one member computes it: chunks come, are added to, and go on.

Every member's share is its weight over the sum of all, so the sum of the shares is the mean. A
chunk sets out as it lies in the snapshot of its first member, whose share is the unit of the sum
unless it is very small: nothing is copied or multiplied before it leaves. The snapshot is used up
on the way: when a chunk's mean comes, its own share has long been added, and what is to be applied
takes its place.

What travels of parameters are the changes since what all members had in common last: they tell how
far each has moved (witness.py), and are small and alike in size, so that they can be compressed.
What compression leaves out of a message is added by the same member in its next rounds, as far as
all have pledged. Where members have nothing in common, because a round counted for some of
them only, the values themselves travel; and those of buffers and of an optimizer's state do always.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from ravnest.errors import WireError
from ravnest.provider.averaging.bounds import Vector
from ravnest.provider.averaging.course import Course, Division, Mean, Sum, unit_of
from ravnest.provider.averaging.outer import Momentum
from ravnest.provider.averaging.witness import Payload, Witness, buffers_norm_of, norm_of
from ravnest.wire.codecs import Codec, Packed, unpack
from ravnest.wire.messages import RingChunk

CHUNK_BYTES = 2 << 20
"""Smaller ones cost more each than they save; while larger ones come, the line after waits."""
_LEAST_BYTES = 1 << 10
"""What codecs may add to a chunk, beside its own bytes once more."""
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
    is_buffers: bool = False
    division: Division = field(default_factory=lambda: Division(0, 1, 1))
    lengths: tuple[float, ...] = ()
    """Of what this member brings, chunk by chunk, from where it is counted."""
    size: float = 0.0
    """Of the values themselves."""

    def divide(self, members: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        """Into chunks. Changes take the place of values, where they are to travel."""
        elements = max(1, chunk_bytes // self.own.element_size())
        self.division = Division(self.own.numel(), members, elements)
        lengths, sizes = [], []
        for start, stop in self.division.pieces():
            values = self.own[start:stop]
            sizes.append((buffers_norm_of if self.is_buffers else norm_of)(values))
            if self.base is None:
                lengths.append(sizes[-1])
            elif self.changes:
                lengths.append(norm_of(values.sub_(self.base[start:stop])))
            else:
                lengths.append(norm_of(values - self.base[start:stop]))
        self.lengths, self.size = tuple(lengths), math.hypot(*sizes)

    @property
    def vector(self) -> Vector:
        return Vector(self.own.numel(), self.is_parameters, self.is_buffers)

    @property
    def remembers(self) -> bool:
        """What a codec leaves out, or has left out before, is made up for."""
        return self.changes and self.residual is not None


def in_full(weights: Sequence[float]) -> list[float]:
    """Shares that make up a whole. Where nobody has anything to say, all say the same."""
    total = sum(weights)
    even = [1 / len(weights)] * len(weights)
    return [weight / total for weight in weights] if total > 0 else even


def shares_by_track(
    tracks: Sequence[Track], of_changes: Sequence[float], whole: Sequence[float]
) -> list[Sequence[float]]:
    return [of_changes if track.changes else whole for track in tracks]


class Gate:
    """Which chunks have a place in a round, each once: known as soon as the vectors are divided, so
    that none is kept, unpacked or counted before."""

    def __init__(self, tracks: Sequence[Track], place: int) -> None:
        self._tracks = tracks
        self.courses = [Course(track.division, place) for track in tracks]

    def admit(self, message: RingChunk, payload: Payload) -> Sum | Mean:
        """What it is. `WireError` if it does not belong here, or has been here before."""
        vector = message.vector
        if vector >= len(self._tracks):
            raise WireError(f"a chunk of vector {vector}, of which there are {len(self._tracks)}")
        item: Sum | Mean = (Mean if message.is_mean else Sum)(
            message.segment, message.chunk, message.passed
        )
        self.courses[vector].admit(item)
        track = self._tracks[vector]
        start, stop = track.division.chunk(item.segment, item.chunk)
        most = 2 * (stop - start) * track.own.element_size() + _LEAST_BYTES
        exact = tuple(payload.shape) == (stop - start,) and payload.dtype == track.own.dtype
        if not exact or payload.nbytes > most:
            raise WireError(
                f"a chunk of {payload.dtype}{list(payload.shape)}, {payload.nbytes} bytes, came "
                f"where {track.own.dtype}[{stop - start}] belongs"
            )
        return item


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
        shares: Sequence[float] | None = None,
        witness: Witness | None = None,
        gate: "Gate | None" = None,
    ) -> None:
        """`shares`: where changes do not count in full. What they lack of a whole is no change."""
        self._ring, self._round = ring, number
        self._tracks = tracks
        place = members.index(me)
        whole = in_full(weights)
        self._shares = shares_by_track(tracks, whole if shares is None else shares, whole)
        self._share = [shares[place] for shares in self._shares]
        self.witness = witness
        self._still = still
        self._gate = gate or Gate(tracks, place)
        self._courses = self._gate.courses
        for track in tracks:
            if track.changes and track.momentum is not None:
                first, stop = track.division.segment((place + 1) % len(members))
                track.momentum.begin(members, first, stop, track.own.dtype)

    @property
    def is_done(self) -> bool:
        return all(course.is_done for course in self._courses)

    def begin(self) -> Iterator[Outgoing]:
        """What this member sends out first."""
        for vector, course in enumerate(self._courses):
            for item in course.begin():
                start, stop = self._bounds(vector, item)
                track, share = self._tracks[vector], self._share[vector]
                values, unit = track.own[start:stop], unit_of(share)
                if not share:  # 0 times infinity is not 0
                    values = torch.zeros_like(values)
                elif unit != share:
                    values = values * share
                if track.remembers:
                    values = self._with_residual(track, start, values.clone(), unit)
                # What is sent as it lies there is not written to before its mean is back, when it
                # has long arrived.
                payload, _ = self._packed(vector, item, start, values, unit)
                yield self._sent(vector, item, payload)

    def arrived(self, message: RingChunk, payload: Payload) -> Outgoing | None:
        """A chunk of this round; what to send to the next member, if anything. A tensor that comes
        is written to."""
        return self.take(message.vector, self._gate.admit(message, payload), payload)

    @torch.no_grad()
    def take(self, vector: int, item: Sum | Mean, payload: Payload) -> Outgoing | None:
        """The same of one that was admitted before."""
        track = self._tracks[vector]
        start, stop = self._bounds(vector, item)
        values = unpack(payload) if isinstance(payload, Packed) else payload
        if self.witness is not None:
            self.witness.receives(vector, item, start, values, payload)
        step = self._courses[vector].arrived(item)
        if step.add:
            unit = unit_of(self._shares[vector][item.segment])
            if share := self._share[vector]:
                values.add_(track.own[start:stop], alpha=share / unit)
            if step.finish:
                self._finish(track, start, values, unit)
                unit = 1.0
            # After the outer step: what was left out then must not go through it again.
            self._with_residual(track, start, values, unit)
            assert step.onward is not None
            payload, values = self._packed(vector, step.onward, start, values, unit)
        if step.keep:  # what the others get, too
            self._keep(track, start, values)
        return None if step.onward is None else self._sent(vector, step.onward, payload)

    def _finish(self, track: Track, start: int, mean: torch.Tensor, unit: float) -> None:
        mean.mul_(unit)
        if track.changes and track.momentum is not None:
            trained = max(0, min(track.trained - start, mean.numel()))
            track.momentum.step(start, mean[:trained])

    def _packed(
        self, vector: int, item: Sum | Mean, start: int, values: torch.Tensor, unit: float
    ) -> tuple[Payload, torch.Tensor]:
        """The form in which they travel, and what arrives. What that leaves out is remembered."""
        track, witness = self._tracks[vector], self.witness
        codec = track.codec if track.changes else None

        def pack(values: torch.Tensor) -> tuple[Payload, torch.Tensor]:
            payload = values if codec is None else codec.pack(values)
            return payload, unpack(payload) if isinstance(payload, Packed) else values

        if witness is not None and witness.may_not_fit:
            payload, arrives = witness.fitting(vector, item, start, values, pack)
        else:
            payload, arrives = pack(values)
        if track.remembers and arrives is not values:
            assert track.residual is not None
            left_out = track.residual[start : start + values.numel()]
            left_out.add_(values.sub_(arrives), alpha=unit)
        return payload, arrives

    def _with_residual(
        self, track: Track, start: int, values: torch.Tensor, unit: float
    ) -> torch.Tensor:
        """Together with what this member has left out before."""
        if track.remembers:
            assert track.residual is not None
            left_out = track.residual[start : start + values.numel()]
            values.add_(left_out, alpha=1.0 / unit)
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
        return self._tracks[vector].division.chunk(item.segment, item.chunk)

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
            self.witness.sends(vector, item, payload)
        return message, payload
