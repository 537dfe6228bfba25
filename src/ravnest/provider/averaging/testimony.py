"""What the members of a ring say of themselves and each other, before a round is taken over.

    RingPledge    2 ──► 3 ──► 0 ──► 1   how far 2 has moved; up to 0 with the key by which 2, which
                                        watches 1, hears what 1 is sent
    RingTerms     2 ──► 3               digest of what all have pledged, as 2 has heard it
    RingWitness   2 ◄── 3 ◄── 0         what 0 has sent to 1
    RingClear     2 ──► 3 ──► 0 ──► 1   2 has nothing to say against 1

Nothing of what is said about a member goes through it before it has reached all others, and words
that come from the other side are refused: so a member neither learns the key by which it is
watched, nor forges what is said about it. A round is taken over when all members are clear.
"""

from collections.abc import Callable, Sequence

import torch
from msgspec import structs

from ravnest.errors import WireError
from ravnest.provider.averaging.bounds import Pledge
from ravnest.provider.averaging.instructions import Start
from ravnest.provider.averaging.sketch import BUCKETS, TABLES
from ravnest.provider.averaging.vectors import numbered
from ravnest.provider.averaging.witness import KEY_BYTES, Watch, Watched, Witness
from ravnest.wire.codecs import Packed
from ravnest.wire.messages import RingClear, RingPledge, RingTerms, RingWitness

Words = RingPledge | RingTerms | RingWitness | RingClear


class Testimony:
    """One member's side of it, in the round that is under way."""

    def __init__(
        self,
        ring: int,
        me: int,
        tell: Callable[[int, Words, Sequence[torch.Tensor]], None],
    ) -> None:
        self.watch = Watch(me)
        self._ring, self._me = ring, me
        self._tell = tell
        self._start: Start | None = None
        self._witness: Witness | None = None
        self._pledges: dict[int, Pledge] = {}
        self._terms: dict[int, int] = {}
        """Of this member and the one before it."""
        self._about: tuple[torch.Tensor, torch.Tensor] | None = None
        self._clear: set[int] = set()

    def begin(self, start: Start) -> None:
        self._start, self._witness, self._about = start, None, None
        self._pledges, self._terms, self._clear = {}, {}, set()
        self.watch.begin(start.members)

    def end(self) -> None:
        """The round is over, well or not."""
        self._start = None

    # ---- pledges ----

    def pledge(self, tracks: Sequence[Watched], weight: float, *, has_ended: bool) -> None:
        """What this member brings is known."""
        assert self._start is not None
        own = self.watch.pledge(tracks, weight, has_ended=has_ended)
        self._pledges[self._me] = own
        alone = len(self._start.members) == 2
        words = RingPledge(
            ring=self._ring,
            round=self._start.round,
            by=self._me,
            lengths=own.lengths,
            rows=own.rows,
            usual=own.usual,
            sizes=own.sizes,
            has_ended=own.has_ended,
            keys=() if alone else tuple(self.watch.own(track.name).key for track in tracks),
        )
        self._tell(self.watch.neighbour(1), words, ())

    def _pledged(self, words: RingPledge) -> None:
        assert self._start is not None
        watch = self.watch
        if words.by == self._me or words.by not in self._start.members:
            raise WireError("a pledge in the name of another member")
        pledge = Pledge(words.lengths, words.rows, words.usual, words.sizes, words.has_ended)
        pledge.check()
        self._pledges.setdefault(words.by, pledge)
        if words.by == watch.neighbour(1):
            return  # it has been around
        if words.by == watch.neighbour(2):
            if [len(key) for key in words.keys] != [KEY_BYTES] * len(words.lengths):
                raise WireError("a pledge without its keys")
            watch.learn(words.keys)
            words = structs.replace(words, keys=())
        self._tell(watch.neighbour(1), words, ())

    @property
    def pledges(self) -> list[Pledge] | None:
        """Of all members in turn, once they are known: then the keys have come, too."""
        assert self._start is not None
        if len(self._pledges) < len(self._start.members):
            return None
        return [self._pledges[member] for member in self._start.members]

    def exchanges(self, witness: Witness) -> None:
        """The exchange of chunks begins. The member behind this one is told on which terms."""
        assert self._start is not None
        self._witness = witness
        if len(self._start.members) > 2:
            terms = numbered(self._start, sorted(self._pledges.items()))
            self._terms[self._me] = terms
            words = RingTerms(ring=self._ring, round=self._start.round, terms=terms)
            self._tell(self.watch.neighbour(1), words, ())

    def exchanged(self) -> None:
        """All chunks have come and gone: say what the next member was sent."""
        assert self._start is not None
        assert self._witness is not None
        given, means = self._witness.statement()
        if len(self._start.members) == 2:
            self._about = given, means
            return
        about = RingWitness(ring=self._ring, round=self._start.round, of=self.watch.neighbour(1))
        self._tell(self.watch.neighbour(-1), about, (given, means))

    def heard(self, words: Words, tensors: Sequence[torch.Tensor | Packed], source: int) -> None:
        start, watch = self._start, self.watch
        if start is None or start.round != words.round:
            return
        if source != watch.neighbour(1 if isinstance(words, RingWitness) else -1):
            raise WireError(f"a {type(words).__name__} from the wrong side of the ring")
        match words:
            case RingPledge():
                self._pledged(words)
            case RingTerms():
                self._terms[watch.neighbour(-1)] = words.terms
            case RingWitness():
                given, means = self._sketches(tensors)
                if words.of == watch.neighbour(-1):
                    self._about = given, means
                else:
                    self._tell(watch.neighbour(-1), words, (given, means))
            case RingClear():
                self._clear.add(words.by)
                if words.by != watch.neighbour(1):
                    self._tell(watch.neighbour(1), words, ())

    def _sketches(
        self, tensors: Sequence[torch.Tensor | Packed]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        given, means = tensors if len(tensors) == 2 else (None, None)
        if not isinstance(given, torch.Tensor) or not isinstance(means, torch.Tensor):
            raise WireError("a testimony without a sketch")
        if self._witness is None:
            raise WireError("a testimony before the exchange has begun")
        count = self._witness.vectors
        if given.shape != (count, TABLES, BUCKETS) or means.shape != (count,):
            raise WireError("a testimony about other vectors than those of the round")
        if not given.is_floating_point() or means.dtype != torch.int64:
            raise WireError("a testimony in other numbers than those of a sketch")
        return given.double(), means

    # ---- the verdict ----

    @property
    def disagree(self) -> bool:
        """The member before this one has heard other pledges, or other weights."""
        return len(self._terms) == 2 and len(set(self._terms.values())) == 2

    def verdict(self) -> str | None:
        """What the member before this one has done that it may not; empty if it is known that no
        member has anything to say against the one before it, and None as long as it is not."""
        assert self._start is not None
        assert self._witness is not None
        alone = len(self._start.members) == 2  # no other member watches one that is to be believed
        if self._me not in self._clear:
            if self._about is None or (len(self._terms) < 2 and not alone):
                return None
            if found := self._witness.judge(*self._about):
                return found
            self._clear.add(self._me)
            if not alone:
                clear = RingClear(ring=self._ring, round=self._start.round, by=self._me)
                self._tell(self.watch.neighbour(1), clear, ())
        return "" if alone or self._clear >= set(self._start.members) else None
