"""How many micro-batches are computed with old weights, where a plan divides batches.

Real schedules and windows of a pipeline of equal stages, on a clock of their own.
"""

import heapq
import itertools

import pytest

from ravnest.planning.costing.costs import Division, TrainingMemory
from ravnest.provider.assembly import StageSettings, _window
from ravnest.provider.schedule.pipeline import (
    Backward,
    BackwardReady,
    Forward,
    ForwardReady,
    Key,
    Rules,
    StageSchedule,
)
from ravnest.provider.schedule.window import InFlightWindow, Trip

FORWARD_S, BACKWARD_S = 1.0, 2.0
BATCHES, WARM = 60, 20


class VirtualStage:
    """One stage that is busy for as long as its passes take."""

    def __init__(self, stage, stages, settings):
        limits = _window(stage, stages, settings)
        self.window = InFlightWindow(limits)
        self.schedule = StageSchedule(Rules(is_last=stage == stages - 1), limits.least)
        self.busy_until = 0.0
        self.sent_at, self.arrived_at = {}, {}
        self.stale = []
        """Of each backward, the updates that its weights lacked."""
        self.most_in_flight = 0

    def came_back(self, key, trip, now):
        self.schedule.limit = self.window.returned(trip, now)
        self.schedule.handle(BackwardReady(key))


def pipeline_of(stages, parts):
    """What every stage of a pipeline did over some batches, without delay between them."""
    settings = StageSettings(micro_batches=parts)
    found = [VirtualStage(k, stages, settings) for k in range(stages)]
    batches = [
        ForwardReady(Key(batch, part), batch, part + 1 == parts, weight=1 / parts)
        for batch in range(BATCHES)
        for part in range(parts)
    ]
    events = {event.key: event for event in batches}
    for event in batches:
        found[0].schedule.handle(event)
    numbers, queue, now = itertools.count(), [], 0.0

    def at(when, act):
        heapq.heappush(queue, (when, next(numbers), act))

    def enter(stage, key):
        stage.arrived_at[key] = now
        stage.schedule.handle(events[key])

    def work(k):
        stage = found[k]
        while stage.busy_until <= now and (item := stage.schedule.next()) is not None:
            match item:
                case Forward(key):
                    stage.most_in_flight = max(stage.most_in_flight, stage.schedule.in_flight)
                    stage.busy_until = now + FORWARD_S
                    stage.sent_at[key] = stage.busy_until
                    if k + 1 < stages:
                        at(stage.busy_until, lambda key=key: enter(found[k + 1], key))
                case Backward(key):
                    stage.busy_until = now + BACKWARD_S
                    stage.window.served(FORWARD_S + BACKWARD_S)
                    if key.batch >= WARM:
                        stage.stale.append(item.staleness)
                    if k:
                        at(stage.busy_until, lambda key=key: hand_back(k, key))
            at(stage.busy_until, lambda: None)

    def hand_back(k, key):
        before, after = found[k - 1], found[k]
        trip = Trip(
            now - before.sent_at[key],
            now - after.arrived_at.get(key, now),
            after.window.path_s,
            after.window.slowest_s,
        )
        before.came_back(key, trip, now)

    for k in range(stages):
        work(k)
    while queue:
        now = queue[0][0]
        while queue and queue[0][0] <= now:
            heapq.heappop(queue)[2]()
        for k in range(stages):
            work(k)
    return found


@pytest.mark.parametrize("stages", [2, 3, 4, 6, 8])
def test_no_more_than_every_other_micro_batch_lacks_an_update(stages):
    division = Division(batch_rows=64, least_rows=1)
    parts = division.parts(stages)
    ran = pipeline_of(stages, parts)
    shares = [sum(stage.stale) / len(stage.stale) for stage in ran]
    assert all(set(stage.stale) <= {0, 1} for stage in ran)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] <= 0.5
    assert shares[-1] == 0.0
    planned = TrainingMemory(division=division)
    for k, stage in enumerate(ran):
        assert stage.most_in_flight == planned.in_flight(k, stages)
