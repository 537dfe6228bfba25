"""Members of a ring under every order of events that chance comes up with.

There is no time here: whatever may happen next happens in any order, messages of one link in
theirs. Members die, links are cut, everybody finishes in the end. Nobody may be left waiting, and
those who live have made the same last round.
"""

import random
from collections import defaultdict

import pytest

from ravnest.provider.averaging.instructions import Release, Send, Skip, Start, TakeSnapshot
from ravnest.provider.averaging.rollcall import RollCall
from ravnest.wire.messages import RingShare

ROUND_S = 600.0


class Ring:
    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.size = self.dice.choice([2, 3, 4, 5])
        self.members = [RollCall(0, k, self.size, round_s=ROUND_S) for k in range(self.size)]
        self.now = 0.0
        self.waits = 0
        """How often everybody had to wait until somebody gave a round up."""
        self.links = defaultdict(list)
        self.cut = set()
        self.dead, self.left = set(), set()
        self.to_notice = []
        self.snapshots, self.exchanging, self.began = [], {}, defaultdict(set)
        self.last_round, self.released = {}, set()
        self.rounds_wanted = [self.dice.randrange(3) for _ in self.members]
        self.ended = set()
        self.deaths = self.dice.choice([0, 0, 1, 1, 2])
        self.cuts = self.dice.choice([0, 0, 1]) if self.size > 2 else 0
        self.stragglers, self.frozen = set(), set()
        """Who never finishes; and of those, who does not answer either."""

    @property
    def alive(self):
        return [k for k in range(self.size) if k not in self.dead]

    def obey(self, member, instructions):
        for instruction in instructions:
            match instruction:
                case Send(to, message):
                    if frozenset((member, to)) not in self.cut:
                        self.links[member, to].append(message)
                case TakeSnapshot(number):
                    self.snapshots.append((member, number))
                case Start():
                    self.began[instruction.round, instruction.members].add(member)
                    self.exchanging[member] = instruction
                case Skip():
                    self.exchanging.pop(member, None)
                case Release():
                    self.released.add(member)

    def possible(self):
        """What may happen next, as calls."""
        for (source, to), waiting in self.links.items():
            reached = to not in self.dead | self.frozen
            if waiting and reached and frozenset((source, to)) not in self.cut:
                yield from [(self.deliver, source, to)] * 3
        yield from ((self.snapshot, *item) for item in self.snapshots if item[0] not in self.dead)
        for member, start in self.exchanging.items():
            if self.began[start.round, start.members] == set(start.members):
                yield self.complete, member, start
        for member in self.alive:
            if member not in self.ended | self.frozen and (
                self.rounds_wanted[member] or member not in self.stragglers
            ):
                yield (self.want if self.rounds_wanted[member] else self.end), member
            if member in self.released and member not in self.left:
                yield self.leave, member
        yield from (
            (self.notice, *item)
            for item in self.to_notice
            if item[0] not in self.dead | self.frozen
        )

    def deliver(self, source, to):
        message = self.links[source, to].pop(0)
        self.obey(to, self.members[to].heard(message, source, self.now))

    def snapshot(self, member, number):
        self.snapshots.remove((member, number))
        share = RingShare(member=member, weight=1.0, rows=1.0, layout=1, moments=0, base=0)
        current = self.members[member]._round
        if current is not None and current.call.round == number:
            self.obey(member, self.members[member].snapshot_taken(share, self.now))

    def complete(self, member, start):
        del self.exchanging[member]
        if start.last:
            self.last_round[member] = start.round, start.members
        self.obey(member, self.members[member].completed(self.now))

    def want(self, member):
        self.rounds_wanted[member] -= 1
        self.obey(member, self.members[member].due(self.now))

    def end(self, member):
        self.ended.add(member)
        self.obey(member, self.members[member].ended(self.now))

    def leave(self, member):
        self.left.add(member)
        self.obey(member, self.members[member].leave(self.now))
        self.to_notice += [(k, member) for k in self.alive if k != member]

    def notice(self, member, lost):
        """A link is closed: but what was sent before that comes first."""
        if (
            lost in self.left
            and self.links[lost, member]
            and frozenset((lost, member)) not in (self.cut)
        ):
            return
        self.to_notice.remove((member, lost))
        self.obey(member, self.members[member].lost(lost, self.now))

    def kill(self):
        self.deaths -= 1
        victim = self.dice.choice(self.alive)
        self.dead.add(victim)
        self.exchanging.pop(victim, None)
        self.to_notice += [(k, victim) for k in self.alive]

    def cut_a_link(self):
        self.cuts -= 1
        one, other = self.dice.sample(range(self.size), 2)
        self.cut.add(frozenset((one, other)))
        self.links[one, other].clear()
        self.links[other, one].clear()
        self.to_notice += [(one, other), (other, one)]

    def pass_time(self):
        """Nothing can happen before somebody gives up a round."""
        times = [self.members[k].wake_at for k in self.alive]
        times = [at for at in times if at is not None]
        waiting = [k for k in self.alive if k in self.ended - self.released]
        assert times or (self.stragglers and waiting), "everybody waits for ever"
        self.waits += 1
        assert self.waits < 6 + 6 * len(self.stragglers), "rounds are given up again and again"
        self.now = max(self.now, min(times, default=self.now))
        for member in self.alive:
            if member not in self.frozen:
                self.obey(member, self.members[member].tick(self.now))
        if self.stragglers:
            for member in waiting:
                self.obey(member, self.members[member].waited_long(self.now))

    def run(self):
        for _ in range(5000):
            if self.deaths and len(self.dead) < self.size - 1 and self.dice.random() < 0.03:
                self.kill()
            elif self.cuts and self.dice.random() < 0.03:
                self.cut_a_link()
            elif possible := list(self.possible()):
                act, *arguments = self.dice.choice(possible)
                act(*arguments)
            elif set(self.alive) - self.stragglers <= self.released:
                return
            else:
                self.pass_time()
        raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("first", range(0, 3000, 250))
def test_nobody_waits_for_ever_and_all_end_with_the_same(first):
    for seed in range(first, first + 250):
        ring = Ring(seed)
        try:
            ring.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        if not ring.cut and len(ring.alive) > 1:
            assert len({ring.last_round.get(k) for k in ring.alive}) == 1, f"seed {seed}"


@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_those_who_have_come_make_the_last_round_without_the_others(first):
    for seed in range(first, first + 250):
        ring = Ring(seed)
        ring.deaths = ring.cuts = 0
        count = ring.dice.randrange(1, ring.size)
        ring.stragglers = set(ring.dice.sample(range(ring.size), count))
        ring.frozen = {k for k in ring.stragglers if ring.dice.random() < 0.5}
        for member in ring.frozen:
            ring.rounds_wanted[member] = 0
        try:
            ring.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        came = set(range(ring.size)) - ring.stragglers
        if len(came) > 1:
            assert len({ring.last_round.get(k) for k in came}) == 1, f"seed {seed}"
            assert ring.last_round.get(min(came)) is not None, f"seed {seed}"
