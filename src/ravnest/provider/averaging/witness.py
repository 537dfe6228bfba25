"""What each member of a ring sees of the one before it, and when that is too much.

Sums travel, so no member sees what another one brings. But the two beside a member see what it was
sent and what it sends, and the difference is its own:

    0 ──sum──► 1 ──sum + its share──► 2       2 watches 1: what it got from 1, less what 0 says
                                              that it gave to 1

Member 2 sketches what it gets with a key that member 1 does not know. Member 0 has the key (it goes
around the other way, see `RingPledge`) and says what its sums were, likewise (`RingWitness`). So
member 2 knows how far member 1 has moved, whether it has rewritten a mean that it was to hand on,
and whether a mean that it has finished is more than the sum that it was given and its own share.
With two members the other one is both, and neither needs to be told.

What each member has moved is held against what it has pledged before (bounds.py): it is not a
matter of opinion, and a member that is found out is left out at once. One liar is found: two beside
each other who agree on a lie are not.
"""

import os
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Protocol

import torch

from ravnest.provider.averaging.bounds import ROUNDING, Pledge
from ravnest.provider.averaging.outer import Momentum
from ravnest.provider.averaging.sketch import (
    Payload,
    Sketcher,
    add_all,
    empty_sketch,
    empty_sketches,
    length_of,
    longest_of,
    sketches_of,
    values_of,
)
from ravnest.wire.codecs import Codec, Packed
from ravnest.wire.messages import RingChunk

KEY_BYTES = 16
TOLERANCE = 4.0
"""So many times as far as it has pledged a member may have moved. What a member tells of itself is
the longest that twelve tables say, so that the four of another one, which may say as much as twice
the truth where all rows are alike, are not likely to say so much more."""
_SUM_ROUNDING = 1e-6
"""Of the length of the weights: what rounding adds to a sum."""
_NOISE = {"fp16": 0.005, "bf16": 0.02, "int8": 0.05, "int4": 0.25, "int4s": 0.25, "topk": 2.0}
"""Of the length of a sum: what these codecs leave out of it, or make up for in later rounds, looks
like a member's own share."""
_LEAST_NOISE = 1e-4
_SPARES = 2
"""Keys: for the next round that counts, and for another member that is to be watched then."""
_ROUNDS = 8
"""The longest change of so many rounds is what is usual, and what a codec has left out of so many
may still come."""


class Watched(Protocol):
    """A vector of a round, as far as it matters here."""

    name: str
    own: torch.Tensor
    base: torch.Tensor | None
    changes: bool
    is_parameters: bool
    momentum: Momentum | None
    codec: Codec | None


class Watch:
    """What is remembered about this member and the one before it, between rounds of a ring."""

    def __init__(self, me: int) -> None:
        self.me = me
        self.keys: defaultdict[str, list[Sketcher]] = defaultdict(_new_keys)
        """By vector. The first one is in use, and is not for the member that it is about. It is
        used for one round that counts: a member that sees which changes pass learns of it. What all
        had in common last is known under the spare ones as well."""
        self.bases: dict[str, torch.Tensor] = {}
        """By vector and key: sketches of what all members had in common last. Changes are counted
        from there. Fewer than there are keys, where a key is newer."""
        self.velocities: dict[str, torch.Tensor] = {}
        """Of the outer optimizer of the member before this one."""
        self.noise: dict[str, float] = {}
        """Of the codecs that have been used: what they have left out may still come."""
        self.about: dict[str, float] = {}
        """How far from here that may be for others: they may have taken over a round that failed
        here; or it is not known here, and this member's own values stand for it."""
        self.means: deque[dict[str, float]] = deque(maxlen=_ROUNDS)
        """How far the means of the last rounds can have been from where members began: what a codec
        has left out of them comes with the next ones."""
        self._moved: dict[str, float] = {}
        self._weight = 0.0
        self._recent: deque[tuple[float, dict[str, float]]] = deque(maxlen=_ROUNDS)
        """Rows and changes of the last rounds in which this member has trained."""
        self._farthest: tuple[float, dict[str, float]] = (0.0, {})
        """The same of the whole run, at most."""
        self._members: tuple[int, ...] = ()
        self._of_next: tuple[Sketcher, ...] = ()

    def starts_from(self, name: str, vector: torch.Tensor) -> None:
        self.bases[name] = sketches_of(self.keys[name], name, vector)

    def own(self, name: str) -> Sketcher:
        return self.keys[name][0]

    def use_next_key(self, name: str) -> None:
        self.keys[name] = [*self.keys[name][1:], Sketcher(os.urandom(KEY_BYTES))]

    def begin(self, members: tuple[int, ...]) -> None:
        """A round of these. Where others make up the ring another member is watched, and it may
        have been told the keys."""
        if self._members not in ((), members):
            self.bases = {name: some[1:] for name, some in self.bases.items()}
            for name in self.keys:
                self.use_next_key(name)
            self.velocities = {}
        self._members, self._of_next = members, ()

    def learn(self, keys: Sequence[bytes]) -> None:
        """How the member behind the next one wants to know what the next one is sent."""
        self._of_next = tuple(Sketcher(key) for key in keys)

    def of_next(self, tracks: Sequence[Watched]) -> Sequence[Sketcher]:
        """By vector; nothing as long as the keys have not come."""
        if len(self._members) == 2:
            return [self.own(track.name) for track in tracks]
        return self._of_next

    def neighbour(self, steps: int) -> int:
        place = self._members.index(self.me)
        return self._members[(place + steps) % len(self._members)]

    # ---- how far this member moves ----

    def pledge(self, tracks: Sequence[Watched], weight: float, *, has_ended: bool) -> Pledge:
        """Of what it brings to a round: values, before any of them is overwritten."""
        self._moved, self._weight = {}, weight
        sizes = []
        for track in tracks:
            values = _judged(track, track.own)
            if self.base_of(track) is None and track.changes:  # it is kept; only a key is too new
                assert track.base is not None
                self.starts_from(track.name, track.base)
            elif self.base_of(track) is None:
                self.about[track.name] = self._longest(track.name)
                self.starts_from(track.name, values)
            bases = self.bases.get(track.name)
            if bases is None:
                bases = empty_sketches(1 + _SPARES)
            own = sketches_of(self.keys[track.name][: len(bases)], track.name, values)
            self._moved[track.name] = longest_of(own - bases)
            sizes.append(length_of(bases[0]))
        lengths = tuple(self._moved[track.name] for track in tracks)
        usual = tuple(self._longest(track.name, ever=has_ended) for track in tracks)
        rows = max([weight, *(rows for rows, _ in self._recent)])
        rows = max(rows, self._farthest[0]) if has_ended else rows
        return Pledge(lengths, rows, usual, tuple(sizes), has_ended)

    def base_of(self, track: Watched) -> torch.Tensor | None:
        """None if it is not known any more; a state that was never averaged begins with nothing."""
        some = self.bases.get(track.name)
        if some is None:
            return None if track.is_parameters else empty_sketch()
        return some[0] if len(some) else None

    def _longest(self, name: str, *, ever: bool = False) -> float:
        before = [lengths.get(name, 0.0) for _, lengths in self._recent]
        if ever:
            before.append(self._farthest[1].get(name, 0.0))
        return max([self._moved.get(name, 0.0), *before])

    def moved(self) -> None:
        """The round counts."""
        if self._weight > 0:
            self._recent.append((self._weight, self._moved))
            rows, lengths = self._farthest
            longer = {name: max(new, lengths.get(name, 0.0)) for name, new in self._moved.items()}
            self._farthest = max(rows, self._weight), lengths | longer


class Witness:
    """One round, as one member sees the two beside it."""

    def __init__(
        self,
        watch: Watch,
        tracks: Sequence[Watched],
        members: tuple[int, ...],
        shares: Sequence[float],
        pledges: Sequence[Pledge],
    ) -> None:
        self._watch, self._of_next = watch, watch.of_next(tracks)
        self._tracks = tracks
        self._members, self._shares, self._pledges = members, shares, pledges
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
        kept = 0 if self._keeps_key else 1
        self._later = [watch.keys[track.name][kept:] for track in tracks]
        self._means = [empty_sketches(len(later)) for later in self._later]
        """All means, by the keys that are left after this round."""
        self._velocities: dict[str, torch.Tensor] = {}

    @property
    def vectors(self) -> int:
        return len(self._tracks)

    # ---- what the exchange tells ----

    def sends(self, message: RingChunk, start: int, payload: Payload) -> None:
        vector, name = message.vector, self._tracks[message.vector].name
        if not message.is_mean:
            unit = self._unit(message.segment)
            values = _judged(self._tracks[vector], values_of(payload))
            self._of_next[vector].add(self._given[vector], name, start, values, unit)
            return
        if message.passed == 1:  # made here
            self._note_mean(vector, start, values_of(payload))
        if message.passed + 1 < len(self._members):  # the next one hands it on
            place = (vector, message.segment, message.chunk)
            self._given_means[vector] += self._of_next[vector].digest(payload, place)

    def receives(
        self, message: RingChunk, start: int, values: torch.Tensor, payload: Payload
    ) -> None:
        vector, name = message.vector, self._tracks[message.vector].name
        own = self._watch.own(name)
        if isinstance(payload, Packed) and self._tracks[vector].changes:
            noise = _noise(payload, self._tracks[vector])
            self._watch.noise[name] = max(noise, self._watch.noise.get(name, 0.0))
        if not message.is_mean:
            unit = self._unit(message.segment)
            own.add(self._got[vector], name, start, _judged(self._tracks[vector], values), unit)
            return
        if message.passed > 1:
            place = (vector, message.segment, message.chunk)
            self._got_means[vector] += own.digest(payload, place)
        self._note_mean(vector, start, values, made_by_previous=message.passed == 1)

    def _note_mean(
        self, vector: int, start: int, values: torch.Tensor, *, made_by_previous: bool = False
    ) -> None:
        track = self._tracks[vector]
        keys, into = self._later[vector], self._means[vector]
        if made_by_previous:
            keys = [self._watch.own(track.name), *keys]
            into = empty_sketches(len(keys))
        add_all(keys, into, track.name, start, _judged(track, values))
        if made_by_previous:
            self._finished[vector] += into[0]
            self._means[vector] += into[1:]

    def _unit(self, segment: int) -> float:
        return self._shares[segment] or 1.0

    # ---- what is said of it ----

    def statement(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the next member was sent, for the one that watches it."""
        means = [total & ((1 << 63) - 1) for total in self._given_means]
        return torch.stack(self._given), torch.tensor(means, dtype=torch.int64)

    # ---- the verdict ----

    def judge(self, given: torch.Tensor, given_means: torch.Tensor) -> str:
        """What the member before this one has done that it may not, with figures; empty if nothing.
        `given` is what it was sent, as the member before that says."""
        for vector in range(self.vectors):
            handed_on = self._got_means[vector] & ((1 << 63) - 1)
            if handed_on != int(given_means[vector]):
                return "it has handed on another mean than it was given"
        found = (self._too_far(vector, given[vector]) for vector in range(self.vectors))
        return next(filter(None, found), "")

    def _too_far(self, vector: int, given: torch.Tensor) -> str:
        track, previous = self._tracks[vector], (self._place - 1) % len(self._members)
        brought = self._got[vector] + self._mean_made(vector) - given
        if not track.own.numel() or not bool(given.isfinite().all()):
            return ""  # there is nothing to see; or others are to blame
        if not bool(brought.isfinite().all()):
            return f"it has made of finite numbers some that are not ({track.name})"
        base = self._watch.base_of(track)
        assert base is not None
        scale = length_of(base)
        share, says = self._shares[previous], self._pledges[previous].lengths[vector]
        if not track.changes:
            brought = brought - share * base
        length = length_of(brought)
        noise = self._watch.noise.get(track.name, _LEAST_NOISE)
        likely = share * (says + self._watch.about.get(track.name, 0.0))
        likely += noise * self._longest_mean(vector)
        near = (share + noise) * ROUNDING * scale
        allowed = TOLERANCE * (likely + near) + _SUM_ROUNDING * scale
        if length <= allowed:
            return ""
        if not share:
            return f"it has moved the weights by {length:.3g} without a share ({track.name})"
        return (
            f"it has moved the weights by {length / share:.3g}, where it has pledged {says:.3g} "
            f"({track.name})"
        )

    def _mean_length(self, vector: int) -> float:
        """How far a mean of these pledges can be from where the members began. A long pledge has
        lowered its member's share, so none of them makes much of this."""
        everybody = zip(self._shares, self._pledges, strict=True)
        return sum(share * pledge.lengths[vector] for share, pledge in everybody)

    def _longest_mean(self, vector: int) -> float:
        name = self._tracks[vector].name
        before = [lengths.get(name, 0.0) for lengths in self._watch.means]
        return max([self._mean_length(vector), *before])

    def _ends(self) -> None:
        self._watch.means.append(
            {track.name: self._mean_length(vector) for vector, track in enumerate(self._tracks)}
        )

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
        watch = self._watch
        self._ends()
        watch.moved()
        watch.about = {}
        for vector, track in enumerate(self._tracks):
            means = self._means[vector]
            if track.changes:
                before = watch.bases[track.name]
                before = before if self._keeps_key else before[1:]
                means = before + means[: len(before)]
            watch.bases[track.name] = means
            # Without a base in common the outer optimizer begins anew.
            watch.velocities.pop(track.name, None)
            if not self._keeps_key:
                watch.use_next_key(track.name)
        watch.velocities |= self._velocities

    def failed(self) -> None:
        """The outer optimizer begins anew. Others may have taken the round over."""
        self._ends()
        for vector, track in enumerate(self._tracks):
            self._watch.velocities.pop(track.name, None)
            known = self._watch.about.get(track.name, 0.0)
            self._watch.about[track.name] = max(known, self._mean_length(vector))


def _new_keys() -> list[Sketcher]:
    return [Sketcher(os.urandom(KEY_BYTES)) for _ in range(1 + _SPARES)]


def _judged(track: Watched, values: torch.Tensor) -> torch.Tensor:
    """Some models keep infinities in a buffer, beside what is to be judged."""
    return values if track.is_parameters else values.nan_to_num(0.0, 0.0, 0.0)


def _noise(payload: Packed, track: Watched) -> float:
    """Of the codec by which something came; the loosest one only where it was agreed upon."""
    own = "" if track.codec is None else track.codec.name
    codec = payload.codec if payload.codec != "topk" or own == "topk" else "int4"
    return _NOISE.get(codec, _LEAST_NOISE)
