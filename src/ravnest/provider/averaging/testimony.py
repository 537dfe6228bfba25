"""What the members of a ring say of themselves and each other, before a round is taken over.

    RingPledge    2 ──► 3 ──► 0 ──► 1   how far 2 has moved; up to 0 with the key by which 2, which
                                        is behind 1, hears what 1 was given to hand on
    RingTerms     2 ──► 3               digest of what all have pledged, keys included, as 2 has
                                        heard it
    RingWitness   2 ◄── 3 ◄── 0         MACs of the means that 0 has given 1 to hand on
    RingClear     2 ──► 3 ──► 0 ──► 1   2 has nothing to say against 1

Nothing of what is said about a member goes through it before it has reached all others, and words
that come from the other side are refused: so a member neither learns the key by which it is
watched, nor forges what is said about it. Words are looked at before they are kept or handed on,
and each is taken once: else their next reader would take the one that hands them on for a liar, or
hear another one than this member has kept. A round is taken over when all members are clear.
"""

import hashlib
import os
from collections.abc import Callable, Sequence

from msgspec import structs

from ravnest.errors import WireError
from ravnest.provider.averaging.bounds import Pledge
from ravnest.provider.averaging.instructions import Start
from ravnest.provider.averaging.witness import Watch, Watched, Witness, is_looser
from ravnest.wire.messages import RingClear, RingPledge, RingTerms, RingWitness

Words = RingPledge | RingTerms | RingWitness | RingClear
_KEY_BYTES = 16


class Testimony:
    """One member's side of it, in the round that is under way."""

    def __init__(
        self, ring: int, me: int, tell: Callable[[int, Words], None], codec: str = ""
    ) -> None:
        """`codec`: the one by which most may be left out in this run."""
        self.watch = Watch(me)
        self._codec = codec
        self._ring, self._me = ring, me
        self._tell = tell
        self._start: Start | None = None
        self._heard: set[tuple[str, int]] = set()
        """Kinds of words, and of whom they were."""
        self._witness: Witness | None = None
        self._pledges: dict[int, Pledge] = {}
        self._own_key = self._key_of_next = b""
        self._locks: dict[int, bytes] = {}
        """Digests of the members' keys."""
        self._terms: dict[int, bytes] = {}
        """Of this member and the one before it."""
        self._given_means: int | None = None
        """What the member before this one was given to hand on."""
        self._is_clear = False
        """This member has nothing to say against the one before it. Not to be heard from others."""
        self._others_clear: set[int] = set()

    def begin(self, start: Start) -> None:
        self._start, self._witness, self._given_means = start, None, None
        self._pledges, self._terms, self._locks, self._heard = {}, {}, {}, set()
        self._own_key, self._key_of_next = os.urandom(_KEY_BYTES), b""
        self._is_clear, self._others_clear = False, set()
        self.watch.begin(start.members)

    def end(self) -> None:
        """The round is over, well or not."""
        self._start = None

    @property
    def _are_two(self) -> bool:
        """Then nothing is handed on, and nobody else is there to be told anything."""
        assert self._start is not None
        return len(self._start.members) == 2

    # ---- pledges ----

    def pledge(
        self,
        tracks: Sequence[Watched],
        weight: float,
        *,
        codec: str,
        has_ended: bool,
        again: bool,
    ) -> None:
        """What this member brings is known."""
        assert self._start is not None
        own = self.watch.pledge(tracks, weight, codec=codec, has_ended=has_ended, again=again)
        self._pledges[self._me], self._locks[self._me] = own, _digest(self._own_key)
        words = RingPledge(
            ring=self._ring,
            round=self._start.round,
            by=self._me,
            chunks=own.chunks,
            rows=own.rows,
            usual=own.usual,
            sizes=own.sizes,
            has_ended=own.has_ended,
            codec=own.codec,
            key=b"" if self._are_two else self._own_key,
            lock=self._locks[self._me],
        )
        self._tell(self.watch.neighbour(1), words)

    def _pledged(self, words: RingPledge) -> None:
        watch = self.watch
        pledge = Pledge.of(
            words.chunks,
            words.rows,
            words.usual,
            words.sizes,
            has_ended=words.has_ended,
            codec=words.codec,
        )
        pledge.check()
        if is_looser(words.codec, self._codec):
            raise WireError(f"a pledge by the codec {words.codec!r}, which this run does not use")
        at_end = words.by == watch.neighbour(1)  # it has been around
        if len(words.key) != (0 if at_end else _KEY_BYTES):
            raise WireError("a pledge without its key, or with one that has been taken off")
        if words.key and _digest(words.key) != words.lock:
            raise WireError("a pledge with a key that is not its own")
        self._pledges[words.by], self._locks[words.by] = pledge, words.lock
        if at_end:
            return
        if words.by == watch.neighbour(2):
            self._key_of_next = words.key
            words = structs.replace(words, key=b"")
        self._tell(watch.neighbour(1), words)

    @property
    def pledges(self) -> list[Pledge] | None:
        """Of all members in turn, once they are known: then the keys have come, too."""
        assert self._start is not None
        if len(self._pledges) < len(self._start.members):
            return None
        return [self._pledges[member] for member in self._start.members]

    def watches(self, tracks: Sequence[Watched], shares: Sequence[Sequence[float]]) -> Witness:
        """The exchange of chunks begins. The member behind this one is told on which terms."""
        assert self._start is not None
        assert self.pledges is not None
        keys = self._own_key, self._key_of_next
        self._witness = Witness(self.watch, tracks, shares, self.pledges, keys)
        if not self._are_two:
            said = [(by, self._pledges[by].said, self._locks[by]) for by in sorted(self._pledges)]
            terms = _digest(repr((self._start, said)).encode())
            self._terms[self._me] = terms
            words = RingTerms(ring=self._ring, round=self._start.round, terms=terms)
            self._tell(self.watch.neighbour(1), words)
        return self._witness

    def exchanged(self) -> None:
        """All chunks have come and gone: say what the next member was given to hand on."""
        assert self._start is not None
        assert self._witness is not None
        if not self._are_two:
            about = RingWitness(
                ring=self._ring,
                round=self._start.round,
                of=self.watch.neighbour(1),
                means=self._witness.given_means,
            )
            self._tell(self.watch.neighbour(-1), about)

    def heard(self, words: Words, source: int) -> None:
        start, watch = self._start, self.watch
        if start is None or start.round != words.round:
            return
        kind = type(words).__name__
        if source != watch.neighbour(1 if isinstance(words, RingWitness) else -1):
            raise WireError(f"a {kind} from the wrong side of the ring")
        match words:
            case RingTerms():
                whose, own = source, set()
            case RingWitness(of=whose):  # about the next one nobody else here has anything to say
                own = {self._me, source}
            case RingPledge(by=whose) | RingClear(by=whose):
                own = {self._me}
        if whose in own or whose not in start.members:
            raise WireError(f"a {kind} in the name of another member, or of one that is not there")
        if (kind, whose) in self._heard:
            raise WireError(f"a second {kind} of one member")
        match words:
            case RingPledge():
                self._pledged(words)
            case RingTerms():
                self._terms[watch.neighbour(-1)] = words.terms
            case RingWitness():
                if words.of == watch.neighbour(-1):
                    self._given_means = words.means
                else:
                    self._tell(watch.neighbour(-1), words)
            case RingClear():
                self._others_clear.add(words.by)
                if words.by != watch.neighbour(1):
                    self._tell(watch.neighbour(1), words)
        self._heard.add((kind, whose))

    # ---- the verdict ----

    @property
    def agree(self) -> bool | None:
        """Whether the member before this one has heard the same pledges and weights; None as long
        as it has not said so. It says so before its first chunk."""
        if self._start is not None and self._are_two:
            return True
        return None if len(self._terms) < 2 else len(set(self._terms.values())) == 1

    @property
    def has_terms(self) -> bool:
        """The member before this one has said on which terms it sends chunks."""
        return self._are_two or self.watch.neighbour(-1) in self._terms

    def verdict(self) -> str | None:
        """What the member before this one has done that it may not; empty if it is known that no
        member has anything to say against the one before it, and None as long as it is not."""
        assert self._start is not None
        assert self._witness is not None
        if self._are_two:
            return ""
        if not self._is_clear:
            if self._given_means is None:
                return None
            if self._given_means != self._witness.got_means:
                return "it has handed on another mean than it was given"
            self._is_clear = True
            clear = RingClear(ring=self._ring, round=self._start.round, by=self._me)
            self._tell(self.watch.neighbour(1), clear)
        everybody = len(self._others_clear) + 1 == len(self._start.members)
        return "" if everybody else None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=32).digest()
