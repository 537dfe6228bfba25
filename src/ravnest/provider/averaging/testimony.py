"""What the members of a ring say about each other, before any of them takes over a round.

    RingKey       2 ──► 3 ──► 0         by which key 2, which watches 1, hears what 1 is sent
    RingWitness   2 ◄── 3 ◄── 0         what 0 has sent to 1; all on the way say how far they move
    RingClear     2 ──► 3 ──► 0 ──► 1   2 has nothing to say against 1

Nothing of what is said about a member goes through it before it has reached all others, and words
that come from the other side are refused: so a member neither learns the key by which it is
watched, nor forges what is said about it. A round is taken over when all members are clear.
"""

from collections.abc import Callable, Sequence

import torch
from msgspec import structs

from ravnest.errors import WireError
from ravnest.provider.averaging.instructions import Start
from ravnest.provider.averaging.sketch import BUCKETS, TABLES
from ravnest.provider.averaging.vectors import numbered
from ravnest.provider.averaging.witness import Verdict, Watch, Witness
from ravnest.wire.codecs import Packed
from ravnest.wire.messages import RingClear, RingKey, RingWitness

Words = RingKey | RingWitness | RingClear


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
        self._about: tuple[torch.Tensor, torch.Tensor, tuple[tuple[float, ...], ...]] | None = None
        self._clear: set[int] = set()

    def begin(self, start: Start) -> None:
        self._start, self._witness, self._about, self._clear = start, None, None, set()
        self.watch.begin(start.members)
        if len(start.members) > 2:
            key = RingKey(
                ring=self._ring,
                round=start.round,
                by=self._me,
                key=self.watch.own.key,
                terms=_terms(start),
            )
            self._tell(self.watch.neighbour(1), key, ())

    def end(self) -> None:
        """The round is over, well or not."""
        self._start = None

    def exchanges(self, witness: Witness) -> None:
        """The exchange of chunks has begun."""
        self._witness = witness

    def exchanged(self) -> None:
        """All chunks have come and gone: say what the next member was sent."""
        assert self._start is not None
        assert self._witness is not None
        given, means = self._witness.statement()
        if len(self._start.members) == 2:
            self._about = given, means, ()
            return
        about = RingWitness(
            ring=self._ring,
            round=self._start.round,
            of=self.watch.neighbour(1),
            usual=(self._witness.usual(),),
        )
        self._tell(self.watch.neighbour(-1), about, (given, means))

    def heard(self, words: Words, tensors: Sequence[torch.Tensor | Packed], source: int) -> str:
        """Why the round cannot be made; empty if nothing speaks against it."""
        start, watch = self._start, self.watch
        if start is None or start.round != words.round:
            return ""
        if source != watch.neighbour(1 if isinstance(words, RingWitness) else -1):
            raise WireError(f"a {type(words).__name__} from the wrong side of the ring")
        match words:
            case RingKey():
                if words.terms != _terms(start):
                    return "the members were told different weights"
                if words.by == watch.neighbour(2):
                    watch.learn(words.key)
                else:
                    self._tell(watch.neighbour(1), words, ())
            case RingWitness():
                self._testified(words, *self._sketches(tensors))
            case RingClear():
                self._clear.add(words.by)
                if words.by != watch.neighbour(1):
                    self._tell(watch.neighbour(1), words, ())
        return ""

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

    def _testified(self, words: RingWitness, given: torch.Tensor, means: torch.Tensor) -> None:
        assert self._start is not None
        assert self._witness is not None
        most = len(self._start.members) - 2
        if len(words.usual) > most or any(
            len(some) != 1 + self._witness.vectors for some in words.usual
        ):
            raise WireError("a testimony of other members than those of the round")
        if words.of == self.watch.neighbour(-1):
            self._about = given, means, words.usual
            return
        onward = structs.replace(words, usual=(*words.usual, self._witness.usual()))
        self._tell(self.watch.neighbour(-1), onward, (given, means))

    def verdict(self) -> Verdict | None:
        """About the member before this one, and that no other has anything to say against the one
        before it; None as long as it is not known."""
        assert self._start is not None
        assert self._witness is not None
        if self._me not in self._clear:
            if self._about is None:
                return None
            found = self._witness.judge(*self._about)
            if found.reason:
                return found
            self._clear.add(self._me)
            if len(self._start.members) > 2:
                clear = RingClear(ring=self._ring, round=self._start.round, by=self._me)
                self._tell(self.watch.neighbour(1), clear, ())
        alone = len(self._start.members) == 2  # no other member watches one that is to be believed
        return Verdict() if alone or self._clear >= set(self._start.members) else None


def _terms(start: Start) -> int:
    """What the round is about, but for its number."""
    rest = (start.fragment, start.still, start.last, start.moments, start.changes)
    return numbered(start.members, start.weights, *rest)
