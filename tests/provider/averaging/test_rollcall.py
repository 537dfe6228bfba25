"""When rings make rounds: members of different speed, that die, that finish at different times."""

import heapq
import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ravnest.errors import WireError
from ravnest.provider.averaging.instructions import (
    Over,
    Release,
    Send,
    Skip,
    Start,
    TakeSnapshot,
)
from ravnest.provider.averaging.membership import Membership
from ravnest.provider.averaging.rollcall import RollCall
from ravnest.wire.messages import (
    RingBegin,
    RingCall,
    RingCancel,
    RingDone,
    RingGone,
    RingGot,
    RingShare,
    RingWish,
)

ROUND_S = 20.0


@dataclass
class World:
    """Members on a virtual clock. Messages take a random time, in order between any two."""

    members: int
    dice: random.Random
    exchange_s: float = 1.0
    now: float = 0.0
    dead: set = field(default_factory=set)
    broken: set = field(default_factory=set)
    """Pairs of members between whom nothing comes through."""
    started: dict = field(default_factory=dict)
    completed: list = field(default_factory=list)
    skipped: list = field(default_factory=list)
    over: dict = field(default_factory=dict)
    released: dict = field(default_factory=dict)
    met: set = field(default_factory=set)
    """They have had a round that was waited for."""
    layouts: dict = field(default_factory=dict)
    blocking: bool = False
    fragments: int = 1

    def __post_init__(self):
        self.calls = [
            RollCall(0, k, self.members, round_s=ROUND_S, fragments=self.fragments)
            for k in range(self.members)
        ]
        self.agenda, self.count, self.arrival, self.pace = [], 0, {}, {}

    def later(self, seconds, action):
        self.count += 1
        heapq.heappush(self.agenda, (self.now + seconds, self.count, action))

    def tell(self, member, event):
        """Let a member have an event, and carry out what it says."""
        if member not in self.dead:
            for instruction in event(self.calls[member]):
                self.obey(member, instruction)
            wake_at = self.calls[member].wake_at
            if wake_at is not None:
                wait = max(0.0, wake_at - self.now)
                self.later(wait, lambda: self.tell(member, lambda c: c.tick(self.now)))

    def obey(self, member, instruction):
        match instruction:
            case Send(to, message):
                assert to != member
                self.send(member, to, message)
            case TakeSnapshot(number, _):
                took = self.dice.uniform(0, 0.5)
                self.later(took, lambda: self.snapshot(member, number))
            case Start(round=number, members=members, weights=weights, still=still):
                assert len(members) == len(weights) == len(set(members))
                assert member in members
                assert self.started.setdefault((number, members[0]), members) == members
                self.later(self.exchange_s, lambda: self.end(member, number, members, still))
            case Skip(number, reason):
                self.skipped.append((number, member, reason))
            case Release(last, met):
                self.met |= {member} if met else set()
                if last:
                    assert member not in self.released
                    self.released[member] = self.now
                    # It saves, and is gone; others may have missed the round when somebody died.
                    self.later(30.0, lambda: self.tell(member, lambda c: c.leave(self.now)))
                else:
                    self.train(member, *self.pace[member])
            case Over(reason):
                assert member not in self.over
                self.over[member] = reason

    def snapshot(self, member, number):
        current = self.calls[member]._round
        if current is not None and current.call.round == number:
            layout = self.layouts.get(member, 1)
            share = RingShare(member=member, weight=1.0, rows=1.0, layout=layout, moments=0, base=0)
            self.tell(member, lambda c: c.snapshot_taken(share, self.now))

    def cut_off(self, members):
        """Some chunks cannot get around."""
        after = dict(zip(members, (*members[1:], members[0]), strict=True))
        return any(frozenset(pair) in self.broken for pair in after.items())

    def end(self, member, number, members, still):
        """Chunks have been exchanged, unless one of the members died meanwhile."""
        current = self.calls[member]._round
        if member in self.dead or current is None or current.call.round != number:
            return
        if not self.dead & set(members) and not self.cut_off(members):
            self.completed.append((number, member, members, still))
            self.tell(member, lambda c: c.completed(self.now))

    def send(self, source, to, message):
        at = max(self.arrival.get((source, to), 0.0), self.now + self.dice.uniform(0.0, 0.3))
        self.arrival[source, to] = at

        def arrive():
            if to in self.dead or frozenset((source, to)) in self.broken:
                self.later(1.0, lambda: self.tell(source, lambda c: c.lost(to, self.now)))
            else:
                self.tell(to, lambda c: c.heard(message, source, self.now))

        self.later(at - self.now, arrive)

    def die(self, member):
        """Those with a link to it notice."""
        if member in self.dead:
            return
        self.dead.add(member)
        for other in range(self.members):
            if other not in self.dead and member in self.calls[other].neighbours:
                self.later(
                    self.dice.uniform(0, 2),
                    lambda n=other: self.tell(n, lambda c: c.lost(member, self.now)),
                )

    def snap(self, one, other):
        """The link between two, for good. Both notice if they have one."""
        self.broken.add(frozenset((one, other)))
        for here, there in ((one, other), (other, one)):
            if here not in self.dead and there in self.calls[here].neighbours:
                self.later(
                    self.dice.uniform(0, 2),
                    lambda h=here, t=there: self.tell(h, lambda c: c.lost(t, self.now)),
                )

    def train(self, member, every_s, until_s):
        self.pace[member] = every_s, until_s
        if self.now >= until_s:
            self.tell(member, lambda c: c.ended(self.now))
        elif self.blocking:
            self.later(every_s, lambda: self.tell(member, lambda c: c.waits(self.now)))
        else:
            self.tell(member, lambda c: c.due(self.now))
            self.later(every_s, lambda: self.train(member, every_s, until_s))

    def run(self, until_s):
        while self.agenda and self.agenda[0][0] <= until_s:
            self.now, _, action = heapq.heappop(self.agenda)
            action()
        self.now = until_s

    def rounds(self, *members):
        return {number for number, _, present, _ in self.completed if present == members}


def test_one_that_is_due_is_enough_for_a_round_of_all():
    world = World(4, random.Random(0))
    world.later(0, lambda: world.train(2, 10, 100))
    world.run(90)
    assert len(world.rounds(0, 1, 2, 3)) == 9
    assert not world.skipped


def test_the_slow_take_part_without_being_waited_for():
    world = World(3, random.Random(1))
    for member, every_s in ((0, 95), (1, 10), (2, 10)):
        world.later(0, lambda m=member, s=every_s: world.train(m, s, 200))
    world.run(199)
    assert len(world.rounds(0, 1, 2)) >= 19


def test_when_all_have_finished_there_is_one_last_round():
    world = World(3, random.Random(2))
    for member, until_s in ((0, 50), (1, 120), (2, 80)):
        world.later(0, lambda m=member, s=until_s: world.train(m, 10, s))
    world.run(300)
    last = [members for _, _, members, still in world.completed if still]
    assert last == [(0, 1, 2)] * 3
    assert set(world.released) == {0, 1, 2}
    assert min(world.released.values()) > 120


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_death_costs_a_round_and_not_the_others(victim):
    world = World(4, random.Random(2), exchange_s=3.0)
    for member in range(4):
        world.later(0, lambda m=member: world.train(m, 10, 200))
    world.later(42.0, lambda: world.die(victim))
    world.run(500)
    survivors = tuple(k for k in range(4) if k != victim)
    assert len(world.rounds(0, 1, 2, 3)) >= 3
    assert len(world.rounds(*survivors)) >= 10
    assert set(world.released) == set(survivors)


def test_one_that_dies_in_the_last_round_does_not_keep_the_others_from_it():
    world = World(3, random.Random(5), exchange_s=5.0)
    for member in range(3):
        world.later(0, lambda m=member: world.train(m, 10, 50))
    world.later(53.0, lambda: world.die(1))
    world.run(300)
    assert [members for _, _, members, last in world.completed if last] == [(0, 2)] * 2


def test_the_last_one_left_does_not_wait():
    world = World(2, random.Random(3))
    world.later(1, lambda: world.die(0))
    world.later(5, lambda: world.train(1, 10, 50))
    world.run(200)
    assert not world.completed
    assert world.over == {1: "nobody else is left"}
    assert set(world.released) == {1}


def test_strange_messages_change_nothing():
    call = RollCall(0, 1, 3, round_s=ROUND_S)
    shares = tuple(
        RingShare(member=k, weight=1.0, rows=1.0, layout=1, moments=0, base=0) for k in range(3)
    )
    stray = RingCall(ring=0, round=3, leader=0, fragment=0, shares=(), still=False, last=False)
    strange = [
        replace(stray, **about)
        for about in (
            {"round": 4, "shares": shares[:1]},  # a round of another leader's
            {"shares": shares[:2]},
            {"shares": shares[1:]},
            {"shares": shares[:1] * 1000},
            {"shares": (replace(shares[0], weight=math.nan),)},
            {"shares": (replace(shares[0], rows=math.inf),)},
            {"shares": (replace(shares[0], member=-1),)},
        )
    ]
    wish = RingWish(
        ring=0, member=1, number=9, complete=0, settled=0, missed=0, due=True, stand="trains"
    )
    begin = RingBegin(
        ring=0,
        round=3,
        members=(0, 1),
        weights=(1.0, 1.0),
        rows=(1.0, 1.0),
        moments=False,
        changes=False,
    )
    strange += [
        replace(begin, weights=(1.0,)),
        replace(begin, rows=(1.0,)),
        replace(begin, round=4),
        replace(begin, round=4, members=(1, 0)),
        RingGone(ring=0, member=99, by=0, after=0),
        RingDone(ring=0, round=7, by=99),
        RingDone(ring=0, round=7, by=1),
        replace(wish, member=7),
        wish,
    ]
    for message in (stray, *strange):
        with pytest.raises(WireError, match="nobody here can have said"):
            call.heard(message, 0, 0.0)
    for message in (begin, RingGone(ring=0, member=1, by=1, after=0)):  # but they may come around
        assert call.heard(message, 0, 0.0) == []
    share = RingShare(member=1, weight=1.0, rows=1.0, layout=1, moments=0, base=0)
    assert call.snapshot_taken(share, 0.0) == []
    assert call.is_idle
    assert call.alive == [0, 1, 2]


@settings(max_examples=150, deadline=None)
@example(
    members=6, seed=1057, deaths=[(0, 0.0), (1, 203.0)], breaks=[], exchange_s=10.0, blocking=False
)
@given(
    st.integers(2, 6),
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 250)), max_size=3),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0, 250)), max_size=3),
    st.floats(0.1, 15.0),
    st.booleans(),
)
def test_nobody_is_stuck_whatever_happens(members, seed, deaths, breaks, exchange_s, blocking):
    dice = random.Random(seed)
    world = World(members, dice, exchange_s=exchange_s, blocking=blocking)
    for member in range(members):
        every_s, until_s = dice.uniform(3, 40), dice.uniform(100, 200)
        world.later(0, lambda m=member, s=every_s, u=until_s: world.train(m, s, u))
    for victim, at in deaths:
        if victim < members:
            world.later(at, lambda v=victim: world.die(v))
    for one, other, at in breaks:
        if one != other and max(one, other) < members:
            world.later(at, lambda o=one, t=other: world.snap(o, t))
    world.run(300 + 40 * ROUND_S)
    survivors = set(range(members)) - world.dead
    for member in survivors:
        assert world.calls[member].is_idle
        assert member in world.released
    last = {members for number, _, members, still in world.completed if still}
    if len(survivors) > 1 and not world.broken:
        assert last
    if not deaths and not world.broken:
        assert last == {tuple(range(members))}
        # Real chunks come over the link that the next call comes over, and so before it.
        assert {reason for _, _, reason in world.skipped} <= {"another round was called"}


def test_wishes_that_cross_do_not_make_two_rounds_of_one():
    world = World(3, random.Random(4), exchange_s=2.0)
    for member in range(3):
        world.later(10, lambda m=member: world.tell(m, lambda c: c.due(world.now)))
    world.run(100)
    assert len(world.rounds(0, 1, 2)) == 1


def test_in_blocking_rounds_nobody_trains_until_all_have_the_mean():
    world = World(3, random.Random(6), blocking=True)
    for member, (every_s, until_s) in enumerate(((5, 100), (9, 100), (7, 60))):
        world.later(0, lambda m=member, s=every_s, u=until_s: world.train(m, s, u))
    world.run(300)
    assert not world.skipped
    assert all(still for *_, still in world.completed)
    # The slowest decides while it trains; one that has ended early takes part in all that follow.
    assert 10 <= len(world.rounds(0, 1, 2)) <= 13
    assert len(world.released) == 3


def test_one_that_holds_other_tensors_is_noticed():
    world = World(2, random.Random(7), layouts={1: 2})
    world.later(0, lambda: world.tell(0, lambda c: c.due(world.now)))
    world.run(50)
    assert not world.completed
    assert all("do not average the same" in reason for *_, reason in world.skipped)
    assert set(world.over) == {0, 1}


def test_whoever_leaves_is_not_waited_for():
    world = World(3, random.Random(8))
    for member in range(3):
        world.later(0, lambda m=member: world.train(m, 10, 50))
    world.later(22, lambda: world.tell(1, lambda c: c.leave(world.now)))
    world.run(49)
    assert world.over == {1: "this member has left"}
    assert len(world.rounds(0, 2)) >= 2


def test_one_that_the_others_have_given_up_does_not_wait_for_them():
    world = World(3, random.Random(9))
    for member in (0, 1, 2):
        world.later(0, lambda m=member: world.train(m, 10, 50))
    world.later(22, lambda: world.tell(0, lambda c: c.lost(1, world.now)))
    world.run(100)
    assert world.over[1] == "the other members have given this one up"
    assert set(world.released) == {0, 1, 2}


@pytest.mark.parametrize("members", [3, 4, 6])
@pytest.mark.parametrize("seed", range(10))
def test_a_broken_link_costs_one_of_its_ends_and_not_both(members, seed):
    world = World(members, random.Random(seed))
    for member in range(members):
        world.later(0, lambda m=member: world.train(m, 10, 150))
    one = seed % members
    other = (one + 1) % members
    world.later(42.0, lambda: world.snap(one, other))
    world.run(400)
    survivors = tuple(k for k in range(members) if k != max(one, other))
    assert len(world.rounds(*survivors)) >= 8
    assert world.over[max(one, other)] == "the other members have given this one up"
    assert set(world.released) == set(range(members))


@pytest.mark.parametrize("seed", range(10))
def test_one_that_is_cut_off_does_not_take_its_neighbours_along(seed):
    world = World(5, random.Random(seed))
    for member in range(5):
        world.later(0, lambda m=member: world.train(m, 10, 150))
    for other in range(1, 5):
        world.later(42.0, lambda o=other: world.snap(0, o))
    world.run(400)
    assert len(world.rounds(1, 2, 3, 4)) >= 8
    assert set(world.released) == set(range(5))


@given(
    st.integers(2, 7),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12),
    st.randoms(use_true_random=False),
)
def test_who_is_gone_does_not_depend_on_the_order_of_the_news(members, news, dice):
    news = [(by % members, member % members) for by, member in news]
    shuffled = dice.sample(news, len(news))
    one, other = Membership(members), Membership(members)
    for by, member in news:
        one.gave_up(by, member)
    for by, member in shuffled:
        other.gave_up(by, member)
    assert one.gone == other.gone


def test_fragments_take_turns_and_the_last_round_has_all_of_them():
    seen = []
    world = World(2, random.Random(10), fragments=3)
    obey = world.obey

    def note(member, instruction):
        if isinstance(instruction, Start) and member == 0:
            seen.append(instruction.fragment)
        obey(member, instruction)

    world.obey = note
    for member in range(2):
        world.later(0, lambda m=member: world.train(m, 10, 65))
    world.run(200)
    assert seen[-1] == 0
    assert set(seen[:3]) == {1, 2, 3}
    assert seen[:3] == seen[3:6]


@dataclass
class WithLiar(World):
    """A member keeps the end of rounds from the others, or cancels them just then."""

    liar: int = 1
    cancels: bool = False

    def send(self, source, to, message):
        if source != self.liar or not isinstance(message, RingGot | RingDone):
            super().send(source, to, message)
        elif self.cancels:
            self.later(0, lambda: self.tell(source, lambda c: c.failed("x", self.now)))


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize("members", [2, 3, 4])
@pytest.mark.parametrize("blocking", [False, True])
def test_nobody_is_kept_in_a_round_that_is_complete_but_for_its_end(
    members, liar, cancels, blocking
):
    """It was made again and again, for ever."""
    world = WithLiar(
        members, random.Random(0), liar=liar, cancels=cancels, blocking=blocking, exchange_s=0.1
    )
    for member in range(members):
        world.later(0, lambda m=member: world.train(m, 10, 25))
    world.run(60)
    assert not world.released
    for member in range(members):  # as a ring does when its member may wait no longer
        for seconds in range(0, 1000, 20):
            world.later(seconds, lambda m=member: world.tell(m, lambda c: c.waited_long(world.now)))
    world.run(1000)
    assert set(world.released) == set(range(members))
    have_it = {member for _, member, _, is_still in world.completed if is_still}
    assert have_it <= world.met | {liar}, "what is complete is kept"


@pytest.mark.parametrize("members", [2, 3])
def test_a_round_that_is_never_complete_everywhere_is_not_made_for_ever(members):
    """Nor by those who may wait for ever."""
    world = WithLiar(members, random.Random(0), cancels=True, exchange_s=0.1)
    for member in range(members):
        world.later(0, lambda m=member: world.train(m, 10, 25))
    world.run(40 * ROUND_S)
    assert set(world.released) == set(range(members))


def test_words_in_the_name_of_a_member_that_is_gone_go_around_once():
    world = World(4, random.Random(0))
    world.tell(0, lambda c: c.leave(world.now))
    world.run(10)
    assert world.calls[2].alive == [1, 2, 3]
    told = []
    send = world.send
    world.send = lambda source, to, message: (told.append(message), send(source, to, message))
    done = RingDone(ring=0, round=7, by=0)
    world.tell(1, lambda c: c.heard(done, 3, world.now))
    world.run(100)
    assert told.count(done) < 3


@pytest.mark.parametrize("seed", range(20))
def test_one_that_leaves_after_a_round_does_not_spoil_it_for_the_others(seed):
    world = World(4, random.Random(seed), blocking=True)
    obey = world.obey

    def leave_at_once(member, instruction):
        if isinstance(instruction, Release):
            world.released[member] = world.now
            world.tell(member, lambda c: c.leave(world.now))
        else:
            obey(member, instruction)

    world.obey = leave_at_once
    for member in range(4):
        world.later(0, lambda m=member: world.tell(m, lambda c: c.waits(world.now)))
    world.run(100)
    assert set(world.released) == {0, 1, 2, 3}
    assert not world.skipped


def test_a_round_is_given_up_when_nothing_comes_and_not_for_its_length():
    call = RollCall(0, 1, 2, round_s=ROUND_S)
    share = RingShare(member=0, weight=1.0, rows=1.0, layout=1, moments=0, base=0)
    asked = RingCall(ring=0, round=2, leader=0, fragment=0, shares=(share,), still=True, last=True)
    call.ended(0.0)
    call.heard(asked, 0, 0.0)
    call.snapshot_taken(RingShare(member=1, weight=1.0, rows=1.0, layout=1, moments=0, base=0), 0.0)
    begin = RingBegin(
        ring=0,
        round=2,
        members=(0, 1),
        weights=(1.0, 1.0),
        rows=(1.0, 1.0),
        moments=False,
        changes=False,
    )
    call.heard(begin, 0, 0.0)
    for chunk in range(1, 50):
        now = 0.9 * ROUND_S * chunk
        assert call.tick(now) == []
        call.progressed(now)
    assert call.completed(now) == []  # the leader has to say so
    assert call.tick(1.9 * now) == []  # others may need as long again
    assert any(isinstance(each, Skip) for each in call.tick(2.1 * now))


@pytest.mark.parametrize("by_all", [True, False])
@pytest.mark.parametrize("members", [2, 3, 5])
def test_a_goodbye_after_a_round_that_is_still_under_way_ends_it(members, by_all):
    """Said of all others, it left a member alone in its round, whose next one was itself."""
    call = RollCall(0, 0, members, round_s=ROUND_S)
    (took,) = [each for each in call.due(0.0) if isinstance(each, TakeSnapshot)]
    found = []
    for member in range(1, members) if by_all else [1]:
        gone = RingGone(ring=0, member=member, by=member, after=2**60)
        found += call.heard(gone, members - 1, 0.0)
    assert any(isinstance(each, Skip) and each.round == took.round for each in found)
    assert call.is_over == (by_all or members == 2)
    found += call.snapshot_taken(
        RingShare(member=0, weight=1.0, rows=1.0, layout=1, moments=0, base=0), 0.0
    )
    assert not any(isinstance(each, Send) and each.to == 0 for each in found)


def test_who_is_gone_is_heard_no_more():
    """But where it says that it was given up wrongly."""
    call = RollCall(0, 2, 4, round_s=ROUND_S)
    caught = RingGone(ring=0, member=3, by=2, after=0, is_caught=True)
    assert call.lost(3, 0.0, is_caught=True)
    assert call.alive == [0, 1, 2]
    for words in (
        RingGone(ring=0, member=0, by=3, after=0),
        RingGone(ring=0, member=1, by=1, after=0),
        RingGone(ring=0, member=0, by=1, after=0),
        RingCancel(ring=0, round=4, reason="x"),
        RingWish(
            ring=0, member=0, number=9, complete=0, settled=0, missed=0, due=True, stand="trains"
        ),
    ):
        assert call.heard(words, 3, 0.0) == []
    call.heard(replace(caught, member=2, by=3, is_caught=False), 3, 0.0)
    assert call.alive == [0, 1, 2], "it was caught"
    other = RollCall(0, 2, 4, round_s=ROUND_S)
    other.lost(1, 0.0)
    assert other.alive == [0, 2, 3]
    other.heard(RingGone(ring=0, member=2, by=1, after=0), 1, 0.0)
    assert other.is_over, "of two that have given up each other the first one stays"
