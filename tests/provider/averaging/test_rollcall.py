"""Who takes part in a round: members that are slow, that die, that were never there."""

import heapq
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.provider.averaging.rollcall import (
    Call,
    Patience,
    RollCall,
    Send,
    Skip,
    Start,
    TakeSnapshot,
)

PATIENCE = Patience(wait_s=5.0, final_wait_s=50.0, round_s=20.0)


@dataclass
class World:
    """Members on a virtual clock. Messages take a random time, in order between any two."""

    members: int
    dice: random.Random
    exchange_s: float = 1.0
    now: float = 0.0
    dead: set = field(default_factory=set)
    started: dict = field(default_factory=dict)
    finished: list = field(default_factory=list)
    skipped: list = field(default_factory=list)

    def __post_init__(self):
        self.calls = [RollCall(k, self.members, PATIENCE) for k in range(self.members)]
        self.agenda, self.count, self.arrival = [], 0, {}

    def later(self, seconds, action):
        self.count += 1
        heapq.heappush(self.agenda, (self.now + seconds, self.count, action))

    def tell(self, member, event):
        """Let a member have an event, and carry out what it says."""
        if member not in self.dead:
            self.obey(member, event(self.calls[member]))

    def obey(self, member, instructions):
        for instruction in instructions:
            match instruction:
                case Send(to, message):
                    self.send(member, to, message)
                case TakeSnapshot():
                    took = self.dice.uniform(0, 0.5)
                    self.later(
                        took,
                        lambda: self.tell(member, lambda c: c.snapshot_taken(1.0, self.now)),
                    )
                case Start(number, members, weights, _):
                    assert len(members) == len(weights) == len(set(members))
                    assert member in members
                    assert self.started.setdefault((number, members[0]), members) == members
                    self.later(self.exchange_s, lambda n=number, m=members: self.end(member, n, m))
                case Skip(number, reason):
                    self.skipped.append((number, member, reason))
        wake_at = self.calls[member].wake_at
        if wake_at is not None:
            self.later(
                max(0.0, wake_at - self.now),
                lambda: self.tell(member, lambda c: c.tick(self.now)),
            )

    def end(self, member, number, members):
        """Chunks have been exchanged, unless one of the members died meanwhile."""
        current = self.calls[member]._round
        if current is None or current.number != number or member in self.dead:
            return
        if not self.dead & set(members):
            self.finished.append((number, member, members))
            self.tell(member, lambda c: c.completed(self.now))

    def send(self, source, to, message):
        at = max(self.arrival.get((source, to), 0.0), self.now + self.dice.uniform(0.0, 0.3))
        self.arrival[source, to] = at

        def arrive():
            if to in self.dead:
                self.later(1.0, lambda: self.tell(source, lambda c: c.lost(to, self.now)))
            else:
                self.tell(to, lambda c: c.heard(message, self.now))

        self.later(at - self.now, arrive)

    def die(self, member):
        """Its neighbours in the ring have links to it, and notice."""
        self.dead.add(member)
        alive = [k for k in range(self.members) if k not in self.dead]
        for neighbour in {(member - 1) % self.members, (member + 1) % self.members} & set(alive):
            self.later(
                self.dice.uniform(0, 2),
                lambda n=neighbour: self.tell(n, lambda c: c.lost(member, self.now)),
            )

    def due(self, member, every_s, until_s):
        if self.now < until_s:
            self.tell(member, lambda c: c.due(self.now))
            self.later(every_s, lambda: self.due(member, every_s, until_s))

    def run(self, until_s):
        while self.agenda and self.agenda[0][0] <= until_s:
            self.now, _, action = heapq.heappop(self.agenda)
            action()
        self.now = until_s


def test_all_who_are_due_take_part():
    world = World(4, random.Random(0))
    for member in range(4):
        world.later(member, lambda m=member: world.due(m, 10, 100))
    world.run(300)
    assert all(members == (0, 1, 2, 3) for _, _, members in world.finished)
    assert len(world.finished) == 4 * 10


def test_the_slowest_is_waited_for_a_while_and_then_left_out():
    world = World(3, random.Random(1))
    for member, every_s in ((0, 10), (1, 10), (2, 95)):
        world.later(0, lambda m=member, s=every_s: world.due(m, s, 200))
    world.run(400)
    with_all = {n for n, _, members in world.finished if members == (0, 1, 2)}
    without = {n for n, _, members in world.finished if members == (0, 1)}
    assert len(with_all) >= 2
    assert len(without) >= 8


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_death_costs_a_round_and_not_the_others(victim):
    world = World(4, random.Random(2), exchange_s=3.0)
    for member in range(4):
        world.later(0, lambda m=member: world.due(m, 10, 200))
    world.later(42.0, lambda: world.die(victim))
    world.run(500)
    survivors = tuple(k for k in range(4) if k != victim)
    after = [members for n, _, members in world.finished if victim not in members]
    assert after.count(survivors) >= 3 * 5
    assert all(not world.calls[k].is_waiting for k in survivors)


def test_the_last_one_left_does_not_wait():
    world = World(2, random.Random(3))
    world.die(0)
    world.later(5, lambda: world.due(1, 10, 50))
    world.run(200)
    assert not world.finished
    assert all(reason == "nobody else is left" for _, _, reason in world.skipped)


def test_at_the_end_everybody_waits_for_the_last():
    world = World(3, random.Random(4))
    for member, at in ((0, 0.0), (1, 30.0), (2, 45.0)):
        world.later(at, lambda m=member: world.tell(m, lambda c: c.due(world.now, final=True)))
    world.run(300)
    assert [members for _, _, members in world.finished] == [(0, 1, 2)] * 3


def test_strange_messages_change_nothing():
    call = RollCall(1, 3, PATIENCE)
    assert call.heard(Call(7, 1, (1, 0), (1.0, 1.0), False), 0.0) == []
    assert call.snapshot_taken(1.0, 0.0) == []
    assert not call.is_waiting


@settings(max_examples=120, deadline=None)
@given(
    st.integers(2, 6),
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 150)), max_size=3),
    st.floats(0.1, 15.0),
)
def test_nobody_is_stuck_whatever_happens(members, seed, deaths, exchange_s):
    dice = random.Random(seed)
    world = World(members, dice, exchange_s=exchange_s)
    for member in range(members):
        every_s = dice.uniform(3, 40)
        world.later(dice.uniform(0, 20), lambda m=member, s=every_s: world.due(m, s, 200))
    for victim, at in deaths:
        if victim < members:
            world.later(at, lambda v=victim: v in world.dead or world.die(v))
    world.run(200)
    # Long enough for every deadline to pass.
    world.run(200 + members * PATIENCE.wait_s + 10 * PATIENCE.round_s + 1000)
    for member in set(range(members)) - world.dead:
        assert world.calls[member]._state == "idle"
        assert world.calls[member]._held is None
    alive = members - len(world.dead)
    if alive >= 2 and not deaths:
        assert world.finished
