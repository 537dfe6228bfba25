"""What each member of a ring sees of the one before it, and when that is too much.

Sums travel, so no member sees what another one brings. But the two beside a member see what it was
sent and what it sends, and the difference is its own:

    0 ──sum──► 1 ──sum + its share──► 2       2 watches 1: what it got from 1, less what 0 says
                                              that it gave to 1

Member 2 sketches what it gets with a key that member 1 does not know. Member 0 has the key (it goes
around the other way, see `RingKey`) and says what its sums were, likewise (`RingWitness`). So
member 2 knows how far member 1 has moved, whether it has rewritten a mean that it was to hand on,
and whether a mean that it has finished is more than the sum that it was given and its own share.
With two members the other one is both, and nothing needs to be said.

The change of a member is held against the median of what the others say of theirs, in proportion to
their weights. One liar is found: two beside each other who agree on a lie are not.
"""

import math
import os
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ravnest.provider.averaging.outer import Momentum
from ravnest.provider.averaging.sketch import (
    Payload,
    Sketcher,
    empty_sketch,
    length_of,
    values_of,
)
from ravnest.wire.codecs import Codec, Packed
from ravnest.wire.messages import RingChunk

MOST_TIMES = 4.0
"""So many times the median of the others a member may have moved."""
MOST_TIMES_REST = 100.0
"""The same of buffers and of an optimizer's state, which differ more between honest members."""
STRIKES = 3
"""Rounds in which a member has moved much too far before it is left out; a round that is taken over
takes one back."""
PATIENT_STRIKES = 20
"""The same of a member that has moved too far, though not much, or before this member has a change
of its own to hold that against. Such a round is refused as well. But clusters begin at different
times, and are in different epochs with other learning rates."""
_MUCH = 3.0
"""Times what is allowed."""
_FEW = 100
"""Vectors of so few elements differ by chance: they may be twice as many times as long."""
_ROUNDING = 1e-4
"""Of the length of the weights: changes below that are not told from rounding."""
_SUM_ROUNDING = 1e-6
"""The same of a sum."""
_NOISE = {"fp16": 0.005, "bf16": 0.02, "int8": 0.05, "int4": 0.25, "int4s": 0.25, "topk": 2.0}
"""Of the length of a sum: what these codecs leave out of it, or make up for in later rounds, looks
like a member's own share."""
_LEAST_NOISE = 1e-4
_SPARES = 2
"""Keys: for the next round that counts, and for another member that is to be watched then."""
_ROUNDS = 8
"""A member's own changes that others are held against: the longest of so many."""


class Watched(Protocol):
    """A vector of a round, as far as it matters here."""

    name: str
    own: torch.Tensor
    base: torch.Tensor | None
    changes: bool
    is_parameters: bool
    momentum: Momentum | None
    codec: Codec | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """About the member before this one, in one round."""

    reason: str = ""
    """What it has done, with figures; empty if it has done nothing that it may not."""
    is_certain: bool = False
    """No accident explains it. A change that is too large may be honest, and is given a chance."""
    is_early: bool = False
    """This member has not moved yet, and cannot tell: it takes nothing over, and blames no one."""
    is_much: bool = False


class Watch:
    """What is remembered about the member before this one, between rounds of a ring."""

    def __init__(self, me: int) -> None:
        self.me = me
        self.keys = [Sketcher(os.urandom(16)) for _ in range(1 + _SPARES)]
        """The first one is in use, and is not for the member that it is about. It is used for one
        round that counts: a member that sees which changes pass learns of it. What all had in
        common last is known under the spare ones as well."""
        self.strikes = 0
        self.bases: dict[str, list[torch.Tensor]] = {}
        """By key: sketches of what all members had in common last. Changes are counted from
        there. Shorter than the list of keys where a key is newer."""
        self.begins_anew: set[str] = set()
        """Vectors of which that is not known: the next snapshot becomes what is counted from."""
        self.spent: dict[str, float] = {}
        """How far others have moved this member since it has trained itself."""
        self.lengths: dict[str, deque[float]] = {}
        """How far this member itself has moved, in the last rounds in which it has."""
        self.weights: deque[float] = deque(maxlen=_ROUNDS)
        """The same of what it weighed."""
        self.velocities: dict[str, torch.Tensor] = {}
        """Of the outer optimizer of the member before this one."""
        self.noise: dict[str, float] = {}
        """Of the codecs that have been used: what they have left out may still come."""
        self._members: tuple[int, ...] = ()
        self._of_next: Sketcher | None = None

    def starts_from(self, name: str, vector: torch.Tensor) -> None:
        self.bases[name] = [key.of(name, vector) for key in self.keys]

    @property
    def own(self) -> Sketcher:
        return self.keys[0]

    def strike(self, verdict: Verdict) -> bool:
        """Whether it is the last one."""
        self.strikes += 1
        patient = not (verdict.is_much and self.weights)
        return verdict.is_certain or self.strikes >= (PATIENT_STRIKES if patient else STRIKES)

    def use_next_key(self) -> None:
        self.keys = [*self.keys[1:], Sketcher(os.urandom(16))]

    def begin(self, members: tuple[int, ...]) -> None:
        """A round of these. Where others make up the ring another member is watched, and it may
        have been told the key."""
        if self._members not in ((), members):
            self.bases = {name: some[1:] for name, some in self.bases.items()}
            self.use_next_key()
            self.velocities = {}
            self.strikes = 0
        self._members, self._of_next = members, None

    def learn(self, key: bytes) -> None:
        """How the member behind the next one wants to know what the next one is sent."""
        if self._of_next is None or self._of_next.key != key:
            self._of_next = Sketcher(key)

    @property
    def of_next(self) -> Sketcher | None:
        """None as long as the key has not come."""
        return self.own if len(self._members) == 2 else self._of_next

    def neighbour(self, steps: int) -> int:
        place = self._members.index(self.me)
        return self._members[(place + steps) % len(self._members)]


class Witness:
    """One round, as one member sees the two beside it."""

    def __init__(
        self,
        watch: Watch,
        tracks: Sequence[Watched],
        members: tuple[int, ...],
        weights: Sequence[float],
        shares: Sequence[float],
        *,
        last: bool = False,
        trains: bool = True,
    ) -> None:
        """`trains`: this member goes on training; one that has finished follows the others."""
        assert watch.of_next is not None
        self._watch, self._of_next = watch, watch.of_next
        self._tracks = tracks
        self._last, self._trains = last, trains
        self._members, self._weights, self._shares = members, weights, shares
        self._place = members.index(watch.me)
        count = len(tracks)
        self._given = [empty_sketch() for _ in range(count)]
        """Sums that the next member was sent."""
        self._given_means = [0] * count
        self._got = [empty_sketch() for _ in range(count)]
        """Sums that the member before this one has sent."""
        self._finished = [empty_sketch() for _ in range(count)]
        """Means that it has made."""
        self._got_means = [0] * count
        """Means that it has handed on."""
        self._keeps_key = any(track.momentum is not None for track in tracks)
        """The velocity of an outer optimizer is known under the key of all rounds before."""
        self._later = watch.keys if self._keeps_key else watch.keys[1:]
        self._means = [[empty_sketch() for _ in self._later] for _ in range(count)]
        """All means, by the keys that are left after this round."""
        self._own = [empty_sketch() for _ in range(count)]
        self._velocities: dict[str, torch.Tensor] = {}
        self._moved_by = [0.0] * count

    @property
    def vectors(self) -> int:
        return len(self._tracks)

    # ---- what the exchange tells ----

    def brings(self, vector: int) -> None:
        """This member's own values, before any of them is overwritten."""
        track, watch = self._tracks[vector], self._watch
        values = _judged(track, track.own)
        watch.own.add(self._own[vector], track.name, 0, values)
        if track.name in watch.begins_anew:
            # The others are about here, if they have gone on from the same weights.
            watch.begins_anew.remove(track.name)
            watch.starts_from(track.name, values)

    def sends(self, message: RingChunk, start: int, payload: Payload) -> None:
        vector, name = message.vector, self._tracks[message.vector].name
        if not message.is_mean:
            unit = self._unit(message.segment)
            values = _judged(self._tracks[vector], values_of(payload))
            self._of_next.add(self._given[vector], name, start, values, unit)
            return
        if message.passed == 1:  # made here
            self._note_mean(vector, start, values_of(payload))
        if message.passed + 1 < len(self._members):  # the next one hands it on
            place = (vector, message.segment, message.chunk)
            self._given_means[vector] += self._of_next.digest(payload, place)

    def receives(
        self, message: RingChunk, start: int, values: torch.Tensor, payload: Payload
    ) -> None:
        vector, own = message.vector, self._watch.own
        name = self._tracks[vector].name
        if isinstance(payload, Packed) and self._tracks[vector].changes:
            noise = _noise(payload, self._tracks[vector])
            self._watch.noise[name] = max(noise, self._watch.noise.get(name, 0.0))
        if not message.is_mean:
            unit = self._unit(message.segment)
            own.add(self._got[vector], name, start, _judged(self._tracks[vector], values), unit)
            return
        if message.passed == 1:
            made = _judged(self._tracks[vector], values)
            own.add(self._finished[vector], name, start, made)
        else:
            place = (vector, message.segment, message.chunk)
            self._got_means[vector] += own.digest(payload, place)
        self._note_mean(vector, start, values)

    def _note_mean(self, vector: int, start: int, values: torch.Tensor) -> None:
        track = self._tracks[vector]
        values = _judged(track, values)
        for key, sketch in zip(self._later, self._means[vector], strict=True):
            key.add(sketch, track.name, start, values)

    def _unit(self, segment: int) -> float:
        return self._shares[segment] or 1.0

    # ---- what is said of it ----

    def statement(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the next member was sent, for the one that watches it."""
        means = [total & ((1 << 63) - 1) for total in self._given_means]
        return torch.stack(self._given), torch.tensor(means, dtype=torch.int64)

    def usual(self) -> tuple[float, ...]:
        """What this member weighs, and how far it moves, by vector: at most in its last rounds."""
        lengths = (
            max([self._length(vector), *self._watch.lengths.get(track.name, ())])
            for vector, track in enumerate(self._tracks)
        )
        return (max([self._weights[self._place], *self._watch.weights]), *lengths)

    def _length(self, vector: int) -> float:
        """How far this member has moved in this round; 0 if that is not known."""
        base = self._base(vector)
        length = 0.0 if base is None else length_of(self._own[vector] - base)
        return length if math.isfinite(length) else 0.0

    def _base(self, vector: int) -> torch.Tensor | None:
        track = self._tracks[vector]
        if track.changes:
            return empty_sketch()
        if some := self._watch.bases.get(track.name):
            return some[0]
        return None if track.is_parameters else empty_sketch()  # a state begins with nothing

    # ---- the verdict ----

    def judge(
        self, given: torch.Tensor, given_means: torch.Tensor, usual: Sequence[Sequence[float]]
    ) -> Verdict:
        """About the member before this one: `given` is what it was sent, as the member before that
        says, and `usual` is what all others say of themselves."""
        usual = [*usual, self.usual()]
        found = Verdict()
        for vector in range(self.vectors):
            handed_on = self._got_means[vector] & ((1 << 63) - 1)
            if handed_on != int(given_means[vector]):
                return Verdict("it has handed on another mean than it was given", is_certain=True)
            others = [(some[0], some[1 + vector]) for some in usual]
            verdict = self._moved(vector, given[vector], others)
            if verdict.reason:
                found = verdict
        return found

    def _moved(
        self, vector: int, given: torch.Tensor, others: Sequence[tuple[float, float]]
    ) -> Verdict:
        track, previous = self._tracks[vector], (self._place - 1) % len(self._members)
        own = self._own[vector]
        brought = self._got[vector] + self._mean_made(vector) - given
        if not track.own.numel() or not bool(own.isfinite().all() and given.isfinite().all()):
            return Verdict()  # there is nothing to see; or others are to blame
        if not bool(brought.isfinite().all()):
            return Verdict(
                f"it has made of finite numbers some that are not ({track.name})", is_certain=True
            )
        base = self._base(vector)
        if base is None:
            self._watch.begins_anew.add(track.name)
            return Verdict("it is not known where the members began", is_early=True)
        scale = length_of(base)
        if track.changes and track.base is not None:
            scale = float(torch.linalg.vector_norm(track.base))
        share, weighs = self._shares[previous], self._weights[previous]
        length = length_of(brought - share * base)
        usual = [
            length * (min(MOST_TIMES, max(1.0, weighs / weight)) if weight > 0 else 1.0)
            for weight, length in others
            if 0 < length < math.inf and weight < math.inf
        ]
        median = statistics.median(usual or [0.0]) + _ROUNDING * scale
        if not track.is_parameters:
            median = max(median, scale / MOST_TIMES_REST)
        noise = self._watch.noise.get(track.name, _LEAST_NOISE)
        spent = self._watch.spent.get(track.name, 0.0) if self._trains else 0.0
        allowed = _times(track) * (share + noise) * median + _SUM_ROUNDING * scale
        self._moved_by[vector] = length
        if length + spent <= allowed:
            return Verdict()
        if not usual and (self._last or not track.is_parameters):
            # At the end a member that has never trained takes what there is.
            return Verdict() if track.is_parameters else _too_far(track, length, allowed, share)
        if self._trains and (not usual or length <= allowed):
            return Verdict("this member has not trained since", is_early=True)
        return _too_far(track, length, allowed, share)

    def _mean_made(self, vector: int) -> torch.Tensor:
        """The mean that the member before this one has made, as it was before its outer step."""
        track, made = self._tracks[vector], self._finished[vector]
        if track.momentum is None or not track.changes:
            return made
        rule = track.momentum.rule
        before = self._watch.velocities.get(track.name, empty_sketch())
        mean = (made / rule.lr - rule.momentum**2 * before) / (1 + rule.momentum)
        self._velocities[track.name] = rule.momentum * before + mean
        return mean

    def applied(self) -> None:
        """The round counts: the next one is counted from here, and with the next key."""
        watch, weight = self._watch, self._weights[self._place]
        watch.strikes = max(0, watch.strikes - 1)
        if weight > 0:
            watch.weights.append(weight)
        for vector, track in enumerate(self._tracks):
            # Those that have finished move no more, and are no measure for the others.
            if weight > 0 and (length := self._length(vector)) > 0:
                watch.lengths.setdefault(track.name, deque(maxlen=_ROUNDS)).append(length)
            spent = watch.spent.get(track.name, 0.0) + self._moved_by[vector]
            watch.spent[track.name] = spent if self._trains and weight <= 0 else 0.0
            means, before = self._means[vector], watch.bases.get(track.name, [])
            before = before if self._keeps_key else before[1:]
            if track.changes:
                means = [base + mean for base, mean in zip(before, means, strict=False)]
            watch.bases[track.name] = means
            # Without a base in common the outer optimizer begins anew.
            watch.velocities.pop(track.name, None)
        watch.velocities |= self._velocities
        if not self._keeps_key:
            watch.use_next_key()

    def failed(self) -> None:
        """The outer optimizer begins anew."""
        for track in self._tracks:
            self._watch.velocities.pop(track.name, None)


def _too_far(track: Watched, length: float, allowed: float, share: float) -> Verdict:
    moved = f"{length / share:.3g}" if share else f"{length:.3g} without a share"
    return Verdict(
        f"it has moved the weights by {moved}, where {allowed / (share or 1.0):.3g} is allowed "
        f"({track.name})",
        is_much=length > _MUCH * allowed,
    )


def _judged(track: Watched, values: torch.Tensor) -> torch.Tensor:
    """Some models keep infinities in a buffer, beside what is to be judged."""
    return values if track.is_parameters else values.nan_to_num(0.0, 0.0, 0.0)


def _noise(payload: Packed, track: Watched) -> float:
    """Of the codec by which something came; the loosest one only where it was agreed upon."""
    own = "" if track.codec is None else track.codec.name
    codec = payload.codec if payload.codec != "topk" or own == "topk" else "int4"
    return _NOISE.get(codec, _LEAST_NOISE)


def _times(track: Watched) -> float:
    times = MOST_TIMES if track.is_parameters else MOST_TIMES_REST
    return times * (1 + _FEW / max(1, track.own.numel()))
