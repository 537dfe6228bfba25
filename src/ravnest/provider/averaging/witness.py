"""What each member of a ring holds what it is sent against, chunk by chunk.

Sums travel, so no member sees what another one brings. But all have pledged before how long each
chunk of their changes is, and a sum is no longer than its summands are together (s are shares):

    0 ──s0·x0──► 1 ──s0·x0 + s1·x1──► 2       |what 2 gets| ≤ s0·|x0| + s1·|x1|, as pledged

The same goes for means, and for steps of an outer optimizer. It is arithmetic and no estimate: an
honest member sends no chunk that is longer, and one that does is left out before its chunk reaches
a model. So nobody moves the others further than all have pledged together, and pledges are held
against each other (bounds.py).

A mean that is handed on has to be the same bytes. The member behind the one that hands it on hears
a MAC of what that one was sent (testimony.py), under a key that it does not know.
"""

import hashlib
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Protocol

import torch
from cryptography.hazmat.primitives.poly1305 import Poly1305

from ravnest.provider.averaging.bounds import Pledge
from ravnest.provider.averaging.course import Division, Mean, Sum, unit_of
from ravnest.provider.averaging.outer import Momentum, Nesterov
from ravnest.wire.codecs import Packed

Payload = torch.Tensor | Packed
_ROUNDING = 1e-3
"""Of what is allowed: sums of single precision are rounded, and so are their lengths."""
_EACH_HOP = 1e-4
"""As much again with each member that a chunk has been at: processors differ in their last digits,
and what one has let pass, the next one must not find too long."""
_ROUNDED_VALUES = 1e-6
"""Of the length of values, where these travel instead of changes."""
_MAKES_UP = {"int8": 0.1, "int4": 0.5, "int4s": 0.75, "topk": 1.0}
"""What a member may add of what these codecs have left out of its earlier messages, as a part of
what all have pledged together. An honest member keeps the rest for later rounds."""
_SUMS = 1 << 62
"""Sums of MACs are told modulo this."""
_LONGEST_BUFFERS = 1e99
_ROUNDS = 8
"""The longest change of so many rounds is what is usual."""
_MISSED, _MOST_MISSED = 2, 32
"""Rounds in a row that may have counted for one of two members only; with each round that comes to
nothing because of that, one more."""


class TooLongError(Exception):
    """A chunk is longer than its summands can be together."""

    def __init__(self, reason: str, *, is_certain: bool) -> None:
        """How far apart members are that have missed rounds is known roughly."""
        super().__init__(reason)
        self.is_certain = is_certain


class Watched(Protocol):
    """A vector of a round, as far as it matters here."""

    name: str
    own: torch.Tensor
    changes: bool
    is_parameters: bool
    is_buffers: bool
    momentum: Momentum | None
    division: Division
    lengths: tuple[float, ...]
    size: float


class Watch:
    """What is remembered between the rounds of a ring."""

    def __init__(self, me: int) -> None:
        self.me = me
        self.members: tuple[int, ...] = ()
        self.velocities: dict[str, list[float]] = {}
        """By vector and chunk: how long what the outer optimizer remembers can be."""
        self.shifts: defaultdict[str, deque[list[float]]] = defaultdict(
            lambda: deque(maxlen=_MOST_MISSED)
        )
        """How far rounds have moved what all had in common, or may have, by chunk, the last one
        first: one that counts here may have failed elsewhere, and the other way round."""
        self.may_have_counted: set[str] = set()
        """Vectors whose last round has come to nothing here."""
        self.in_vain = 0
        """Rounds in a row that have come to nothing."""
        self._moved: dict[str, float] = {}
        self._known: dict[str, float] = {}
        """The same, of the last round in which all counted from the same."""
        self._known_rows = 0.0
        """Of that round: a length says nothing without the rows that it took."""
        self._is_known = False
        self._weight = 0.0
        self._rows: deque[float] = deque(maxlen=_ROUNDS)
        self._changes: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_ROUNDS))
        """Rows and changes of the last rounds in which this member has trained."""
        self._most_rows = 0.0
        self._farthest: defaultdict[str, float] = defaultdict(float)
        """The same of the whole run, at most."""

    def begin(self, members: tuple[int, ...]) -> None:
        """A round of these. Where others make up the ring, outer optimizers begin anew."""
        if self.members != members:
            self.velocities = {}
        self.members = members

    def neighbour(self, steps: int) -> int:
        place = self.members.index(self.me)
        return self.members[(place + steps) % len(self.members)]

    def pledge(
        self,
        tracks: Sequence[Watched],
        weight: float,
        *,
        codec: str = "",
        has_ended: bool = False,
        again: bool = False,
    ) -> Pledge:
        """Of what this member brings. `again`: a round that was complete here is made once more,
        because others may not have it; there is nothing new."""
        self._weight = weight
        chunks = tuple(self._believable(track) for track in tracks)
        self._moved = {t.name: math.hypot(*each) for t, each in zip(tracks, chunks, strict=True)}
        self._is_known = weight > 0 and all(_count_alike(track) for track in tracks)
        if self._is_known:
            self._known.update(self._moved)
            self._known_rows = weight
        usual = [self._usual(track, ever=has_ended, again=again) for track in tracks]
        rows = [weight, *self._rows, self._known_rows, self._most_rows if has_ended else 0.0]
        sizes = tuple(track.size for track in tracks)
        return Pledge.of(chunks, max(rows), tuple(usual), sizes, has_ended=has_ended, codec=codec)

    def _believable(self, track: Watched) -> tuple[float, ...]:
        """How long its chunks are. Where members do not count from the same, an unfinished round
        may have left anything of the base: then no more than this member can have moved."""
        found, name = track.lengths, track.name
        if _count_alike(track) or not self.trained_by(name):
            return found
        doubts = (self.doubt(name, chunk, len(found)) for chunk in range(len(found)))
        most = self.trained_by(name) + math.hypot(*doubts)
        less = min(1.0, most / (math.hypot(*found) or 1.0))
        return tuple(less * length for length in found)

    def _usual(self, track: Watched, *, ever: bool, again: bool) -> float:
        now = self._moved[track.name]
        if again:
            return now
        farthest = self._farthest[track.name] if ever else 0.0
        return max(now, self.trained_by(track.name), farthest)

    def doubt(self, name: str, chunk: int, chunks: int) -> float:
        """How far apart the places can be from which two members count their changes: as far as
        the rounds can have gone that one of them has missed."""
        missed = islice(self.shifts[name], _MISSED + self.in_vain)
        # Where others make up the ring, chunks are others, too.
        return sum(each[chunk] if len(each) == chunks else math.hypot(*each) for each in missed)

    def trained_by(self, name: str) -> float:
        """The longest change of this member's last rounds, as far as that was known."""
        return max([*self._changes[name], self._known.get(name, 0.0)])

    def counted(self) -> None:
        """The round counts."""
        self.in_vain = 0
        if self._is_known:
            self._rows.append(self._weight)
            self._most_rows = max(self._most_rows, self._weight)
            for name, length in self._moved.items():
                self._changes[name].append(length)
                self._farthest[name] = max(self._farthest[name], length)


class Witness:
    """One round, as one member sees what it is sent."""

    def __init__(
        self,
        watch: Watch,
        tracks: Sequence[Watched],
        shares: Sequence[Sequence[float]],
        pledges: Sequence[Pledge],
        keys: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        """`shares`: of all members, by vector. `keys`: for what the member before this one hands
        on; and for what the next one does, as the member behind that wants to hear of it."""
        self._watch, self._tracks = watch, tracks
        self._shares, self._pledges = shares, pledges
        self._place = watch.members.index(watch.me)
        self._own_key, self._key_of_next = keys
        self.got_means = self.given_means = 0
        """Sums of MACs: of means that the member before this one has handed on, and of those that
        the next one is to hand on."""
        self._shifts = [[0.0] * len(track.lengths) for track in tracks]
        self._makes_up = [_MAKES_UP.get(pledge.codec, 0.0) for pledge in pledges]
        self.may_not_fit = any(pledge.codec for pledge in pledges)
        """Codecs may make chunks longer than they were."""
        self._members = len(pledges)
        everybody = range(self._members)
        self._means = [
            [self._pledged(vector, chunk, everybody) for chunk in range(len(track.lengths))]
            for vector, track in enumerate(tracks)
        ]
        """How long means can be, by vector and chunk, without what codecs have left out."""

    # ---- how long a chunk is, and how long it may be ----

    def length(self, vector: int, item: Sum | Mean, start: int, values: torch.Tensor) -> float:
        """From where all count from: what all have in common, or nothing; or from this member's own
        values, where others count from elsewhere."""
        track = self._tracks[vector]
        unit = unit_of(self._shares[vector][item.segment]) if isinstance(item, Sum) else 1.0
        if track.is_buffers:
            return unit * buffers_norm_of(values)
        if _count_alike(track):
            return unit * norm_of(values)
        part = sum(self._shares[vector][place] for place in self._in(item))
        return norm_of(values * unit - track.own[start : start + values.numel()] * part)

    def allowed(self, vector: int, item: Sum | Mean) -> float:
        track = self._tracks[vector]
        chunk = track.division.number(item.segment, item.chunk)
        mean = self._means[vector][chunk]
        if isinstance(item, Sum):
            made_up = sum(self._makes_up[k] for k in self._in(item))
            return self._pledged(vector, chunk, self._in(item)) + made_up * mean
        finisher = (item.segment - 1) % self._members
        whole, rule = self._before_step(mean, finisher), _rule_of(track)
        if rule is not None:
            velocity = self._velocity(track)[chunk]
            whole = rule.lr * ((1 + rule.momentum) * whole + rule.momentum**2 * velocity)
        return whole + self._makes_up[finisher] * mean

    def _pledged(self, vector: int, chunk: int, places: Iterable[int]) -> float:
        track, apart = self._tracks[vector], 0.0
        if not _count_alike(track):
            own = self._pledges[self._place].chunks[vector]
            doubt = self._watch.doubt(track.name, chunk, len(own))
            # What an unfinished round has left of the base must not make this any longer.
            apart = min(own[chunk], self._watch.trained_by(track.name) + doubt) + doubt
        lengths = ((k, self._pledges[k].chunks[vector][chunk]) for k in places)
        return sum(self._shares[vector][k] * (length + apart) for k, length in lengths)

    def _in(self, item: Sum | Mean) -> Iterable[int]:
        """Whose shares are in it."""
        shares = self._members if isinstance(item, Mean) else item.shares
        return ((item.segment + k) % self._members for k in range(shares))

    def _before_step(self, mean: float, finisher: int) -> float:
        made_up = sum(self._makes_up) - self._makes_up[finisher]
        return mean * (1 + made_up)

    def _velocity(self, track: Watched) -> list[float]:
        return self._watch.velocities.get(track.name) or [0.0] * len(track.lengths)

    # ---- what the exchange tells ----

    def receives(
        self, vector: int, item: Sum | Mean, start: int, values: torch.Tensor, payload: Payload
    ) -> None:
        """`TooLongError` if the member before this one cannot have made this of what it got."""
        track = self._tracks[vector]
        length, allowed = self.length(vector, item, start, values), self.allowed(vector, item)
        slack = 0.0 if _count_alike(track) else _ROUNDED_VALUES * track.size
        hops = item.shares if isinstance(item, Sum) else self._members - 1 + item.holders
        if not length <= allowed * (1 + _ROUNDING + _EACH_HOP * hops) + slack:
            what = "mean" if isinstance(item, Mean) else "sum"
            raise TooLongError(
                f"it has sent a {what} of length {length:.3g}, where all together have pledged "
                f"{allowed:.3g} ({track.name})",
                is_certain=_count_alike(track) or not math.isfinite(length),
            )
        if isinstance(item, Mean):
            self._shifts[vector][track.division.number(item.segment, item.chunk)] = length
            if item.holders > 1:
                mac = digest(self._own_key, payload, _place(vector, item))
                self.got_means = (self.got_means + mac) % _SUMS

    def sends(self, vector: int, item: Sum | Mean, payload: Payload) -> None:
        if isinstance(item, Mean):
            if item.holders == 1:  # made here
                division = self._tracks[vector].division
                chunk = division.number(item.segment, item.chunk)
                self._shifts[vector][chunk] = self.allowed(vector, item)
            if item.holders + 1 < self._members:  # the next one hands it on
                mac = digest(self._key_of_next, payload, _place(vector, item))
                self.given_means = (self.given_means + mac) % _SUMS

    def fitting(
        self,
        vector: int,
        item: Sum | Mean,
        start: int,
        values: torch.Tensor,
        pack: Callable[[torch.Tensor], tuple[Payload, torch.Tensor]],
    ) -> tuple[Payload, torch.Tensor]:
        """The form in which values travel, and what arrives: less of them, where they would be
        longer than all have pledged, because of what a codec has left out before or puts in."""
        payload, arrives = pack(values)
        if not self._tracks[vector].changes:
            return payload, arrives
        allowed = self.allowed(vector, item)
        for less in (0.001, 0.01, 0.1):
            length = self.length(vector, item, start, arrives)
            if length <= allowed * (1 + _ROUNDING / 2):
                return payload, arrives
            values = values * ((1 - less) * allowed / length)
            payload, arrives = pack(values)
        return pack(torch.zeros_like(values))

    # ---- the end ----

    def applied(self) -> None:
        """The round counts: the next one is counted from here."""
        self._watch.counted()
        for vector, track in enumerate(self._tracks):
            rule = _rule_of(track)
            if rule is not None:
                known = zip(self._velocity(track), self._whole(vector), strict=True)
                self._watch.velocities[track.name] = [
                    rule.momentum * before + now for before, now in known
                ]
            else:
                self._watch.velocities.pop(track.name, None)
            self._watch.may_have_counted.discard(track.name)
            self._shifted(vector, self._shifts[vector])

    def _whole(self, vector: int) -> list[float]:
        """How long means can have been before an outer step."""
        segments = range(self._members)
        division = self._tracks[vector].division
        makers = [(k - 1) % self._members for k in segments for _ in range(division.chunks(k))]
        known = zip(self._means[vector], makers, strict=True)
        return [self._before_step(mean, maker) for mean, maker in known]

    def failed(self) -> None:
        """Outer optimizers begin anew. Others may have taken the round over."""
        self._watch.in_vain += 1
        for vector, track in enumerate(self._tracks):
            means = [
                self.allowed(vector, Mean(segment, chunk, 1))
                for segment in range(self._members)
                for chunk in range(track.division.chunks(segment))
            ]
            self._watch.velocities.pop(track.name, None)
            self._shifted(vector, means)
            self._watch.may_have_counted.add(track.name)

    def _shifted(self, vector: int, lengths: list[float]) -> None:
        track = self._tracks[vector]
        if not _count_alike(track):
            # As far as all have pledged: what was allowed for doubt is not doubted once more.
            said = list(zip(self._shares[vector], self._pledges, strict=True))
            lengths = [
                sum(share * pledge.chunks[vector][chunk] for share, pledge in said)
                for chunk in range(len(track.lengths))
            ]
        if not track.is_parameters:
            return
        shifts = self._watch.shifts[track.name]
        if track.name in self._watch.may_have_counted and len(shifts[0]) == len(lengths):
            # Each such round goes all the way from what members had in common before the first.
            lengths = [max(both) for both in zip(lengths, shifts.popleft(), strict=True)]
        shifts.appendleft(lengths)


def _place(vector: int, item: Mean) -> tuple[int, int, int]:
    return vector, item.segment, item.chunk


def _count_alike(track: Watched) -> bool:
    """All members count from the same: from what they had in common, or from nothing."""
    return track.changes or not track.is_parameters


def _rule_of(track: Watched) -> Nesterov | None:
    return track.momentum.rule if track.momentum is not None and track.changes else None


def is_looser(codec: str, than: str) -> bool:
    return _MAKES_UP.get(codec, 0.0) > _MAKES_UP.get(than, 0.0)


def loosest(codecs: Iterable[str]) -> str:
    """That by which most may have been left out; nothing if there are none."""
    return max(codecs, key=lambda name: _MAKES_UP.get(name, 0.0), default="")


_BLOCK = 1024
_SQUARES_FIT = 1e-10, 1e18
"""Norms between these: squares of numbers that count have their place in single precision."""


def norm_of(values: torch.Tensor) -> float:
    """As exact as in double precision, and three times as fast: single precision adds up too few
    numbers in each block to lose anything (4e-9 of a chunk of 2 MB, and not 3e-6)."""
    whole = values.numel() // _BLOCK * _BLOCK
    blocks = torch.linalg.vector_norm(values[:whole].view(-1, _BLOCK), dim=1)
    rest = torch.linalg.vector_norm(values[whole:], dtype=torch.float64)
    found = math.hypot(float(torch.linalg.vector_norm(blocks, dtype=torch.float64)), float(rest))
    least, most = _SQUARES_FIT
    return found if least < found < most else float(torch.linalg.vector_norm(values.double()))


def buffers_norm_of(values: torch.Tensor) -> float:
    """Some models keep infinities in a buffer, or the least number there is."""
    return min(norm_of(values.nan_to_num(0.0, 0.0, 0.0)), _LONGEST_BUFFERS)


def digest(key: bytes, payload: Payload, place: tuple[object, ...]) -> int:
    """Of the bytes as they travel, and of where they belong. A sum of digests tells whether any of
    them was changed, or has changed places with another."""
    parts = payload.parts if isinstance(payload, Packed) else (payload,)
    total = 0
    for number, part in enumerate(parts):
        codec = payload.codec if isinstance(payload, Packed) else ""
        about = repr((place, number, codec, str(part.dtype), tuple(part.shape)))
        once = hashlib.blake2b(about.encode(), key=key, digest_size=32).digest()
        # As bytes: numpy knows fewer kinds of numbers than torch.
        content = part.detach().reshape(-1).contiguous().view(torch.uint8).numpy().data
        total += int.from_bytes(Poly1305.generate_tag(once, content)[:7])
    return total
