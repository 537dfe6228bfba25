"""Who is still in a ring, from what members have said about each other. Pure.

Members give each other up: because a link stays broken, because what came over it was unusable. If
a link is broken both ends of it give up the other one, and others hear of it in any order. So what
is kept is who has given up whom; and who is gone follows from that alone, the same for everybody
who has heard the same.

Of two that have given up each other one stays: the one whom fewer have given up, else the one that
comes first in the ring. So a link that breaks for good costs the ring one member and not two. A
member that was caught at a lie does not stay by giving up the one that has caught it: if it says
that it has caught that one, too, both go.
"""

from collections.abc import Iterator


class Membership:
    """Of one ring, as one member knows it."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._given_up_by: dict[int, set[int]] = {}
        self._caught_by: dict[int, set[int]] = {}
        self.gone: frozenset[int] = frozenset()

    @property
    def alive(self) -> list[int]:
        return [member for member in range(self._members) if member not in self.gone]

    def knows(self, member: int) -> bool:
        return 0 <= member < self._members

    def gave_up(self, by: int, member: int, *, is_caught: bool = False) -> bool:
        """Whether that is news. Who gives up itself has left."""
        givers = self._given_up_by.setdefault(member, set())
        catchers = self._caught_by.setdefault(member, set())
        if by in givers and (by in catchers or not is_caught):
            return False
        givers.add(by)
        if is_caught:
            catchers.add(by)
        self.gone = frozenset(filter(self._is_gone, self._given_up_by))
        return True

    def has_given_up(self, by: int, member: int) -> bool:
        return by in self._given_up_by.get(member, ())

    def around(self, member: int, step: int) -> Iterator[int]:
        """Those who are there, from the next one on in that direction; oneself at the end."""
        for count in range(1, self._members + 1):
            other = (member + step * count) % self._members
            if other not in self.gone or other == member:
                yield other

    def _is_gone(self, member: int) -> bool:
        return any(self._yields(member, giver) for giver in self._given_up_by[member])

    def _yields(self, member: int, giver: int) -> bool:
        """Whether a member goes because this one has given it up."""
        if member == giver or member not in self._given_up_by.get(giver, ()):
            return True
        if giver in self._caught_by[member]:
            return True
        if member in self._caught_by[giver]:
            return False
        return self._standing(member) > self._standing(giver)

    def _standing(self, member: int) -> tuple[int, int]:
        return len(self._given_up_by[member]), member
