"""The order of work on a stage: the documented table, and what must hold in every history."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.provider.schedule.pipeline import (
    Backward,
    BackwardReady,
    CommandReady,
    Evaluate,
    Forward,
    ForwardReady,
    Key,
    Obey,
    Rules,
    StageSchedule,
    Update,
    UpdateAllowed,
)
from ravnest.provider.schedule.window import InFlightWindow, Trip, WindowLimits


def ready(batch, part=0, parts=1, per_update=1):
    closes = part + 1 == parts and (batch + 1) % per_update == 0
    return ForwardReady(Key(batch, part), batch // per_update, closes, weight=1 / parts)


def names(instructions):
    """F0.1[0], B0.1, U→1 as in the module's own table."""
    found = []
    for item in instructions:
        match item:
            case Forward(key, version):
                found.append(f"F{key.batch}.{key.part}[{version}]")
            case Backward(key):
                found.append(f"B{key.batch}.{key.part}")
            case Update(version=version):
                found.append(f"U→{version}")
            case Evaluate(key):
                found.append(f"E{key.batch}.{key.part}")
            case Obey(command):
                found.append(command.name)
    return " ".join(found)


def drain(schedule):
    found = []
    while (item := schedule.next()) is not None:
        found.append(item)
    return found


def simulate(stages, batches, parts=1, per_update=1, schedule="async", **rules):
    """Lets every stage do one pass per tick; returns what each stage did."""
    plans = [
        StageSchedule(Rules(is_last=k == stages - 1, schedule=schedule, **rules), limit=stages - k)
        for k in range(stages)
    ]
    inputs = [ready(b, p, parts, per_update) for b in range(batches) for p in range(parts)]
    by_key = {event.key: event for event in inputs}
    for event in inputs:
        plans[0].handle(event)
    history = [[] for _ in range(stages)]
    busy = True
    while busy:
        busy, messages = False, []
        for k, plan in enumerate(plans):
            while (item := plan.next()) is not None:
                history[k].append(item)
                busy = True
                match item:
                    case Forward(key) if k + 1 < stages:
                        messages.append((k + 1, by_key[key]))
                    case Backward(key) if k > 0:
                        messages.append((k - 1, BackwardReady(key)))
                if not isinstance(item, Update):
                    break
        for target, event in messages:
            plans[target].handle(event)
    return history, plans


def test_the_table_in_the_documentation():
    """Stage 0 of 3, two micro-batches a batch."""
    schedule = StageSchedule(Rules(is_last=False), limit=3)
    for batch in range(4):
        for part in range(2):
            schedule.handle(ready(batch, part, 2))
    done = drain(schedule)
    for key in (Key(0, 0), Key(0, 1), Key(1, 0), Key(1, 1)):
        schedule.handle(BackwardReady(key))
        done += drain(schedule)
    assert names(done) == (
        "F0.0[0] F0.1[0] F1.0[0] B0.0 F1.1[0] B0.1 U→1 F2.0[1] B1.0 F2.1[1] B1.1 U→2 F3.0[2]"
    )


def test_an_update_tells_how_old_its_gradients_are():
    """In steps of this stage: the next batch is under way when a batch is applied."""
    schedule = StageSchedule(Rules(is_last=False), limit=3)
    for batch in range(4):
        for part in range(4):
            schedule.handle(ready(batch, part, 4))
    done = drain(schedule)
    for batch in range(3):
        for part in range(4):
            schedule.handle(BackwardReady(Key(batch, part)))
            done += drain(schedule)
    assert [item.lag for item in done if isinstance(item, Update)] == [0, 0.5, 0.5]


def test_a_synchronous_stage_waits_for_its_update():
    schedule = StageSchedule(Rules(is_last=False, schedule="sync"), limit=4)
    for batch in range(2):
        for part in range(2):
            schedule.handle(ready(batch, part, 2))
    assert names(drain(schedule)) == "F0.0[0] F0.1[0]"
    schedule.handle(BackwardReady(Key(0, 0)))
    assert names(drain(schedule)) == "B0.0"
    schedule.handle(BackwardReady(Key(0, 1)))
    assert names(drain(schedule)) == "B0.1 U→1 F1.0[1] F1.1[1]"


def test_the_last_stage_goes_back_at_once():
    schedule = StageSchedule(Rules(is_last=True), limit=1)
    for batch in range(3):
        schedule.handle(ready(batch))
    assert names(drain(schedule)) == "F0.0[0] B0.0 U→1 F1.0[1] B1.0 U→2 F2.0[2] B2.0 U→3"


def test_gradients_are_coalesced_when_no_version_is_free():
    """One micro-batch a batch, three in flight: with two versions the third update must wait."""
    schedule = StageSchedule(Rules(is_last=False, max_versions=2), limit=3)
    for batch in range(6):
        schedule.handle(ready(batch))
    done = drain(schedule)
    for batch in range(4):
        schedule.handle(BackwardReady(Key(batch, 0)))
        done += drain(schedule)
    assert (
        names(done) == "F0.0[0] F1.0[0] F2.0[0] B0.0 U→1 F3.0[1] B1.0 F4.0[1] B2.0 U→2 F5.0[2] B3.0"
    )
    assert [item.batches for item in done if isinstance(item, Update)] == [1, 2]


def test_the_first_updates_may_be_synchronous_in_any_schedule():
    """Nothing is computed for the next one until this one is allowed and made."""
    rules = Rules(is_last=False, waits_for_permission=True, synchronous_updates=1)
    stage = StageSchedule(rules, limit=3)
    for batch in range(3):
        stage.handle(ready(batch))
    assert names(drain(stage)) == "F0.0[0]"
    stage.handle(BackwardReady(Key(0, 0)))
    assert names(drain(stage)) == "B0.0"
    stage.handle(UpdateAllowed(0))
    assert names(drain(stage)) == "U→1 F1.0[1] F2.0[1]"
    stage.handle(BackwardReady(Key(1, 0)))
    assert names(drain(stage)) == "B1.0 U→2"


def test_plain_stashing_updates_after_every_batch():
    schedule = StageSchedule(Rules(is_last=False, max_versions=99), limit=3)
    for batch in range(5):
        schedule.handle(ready(batch))
    done = drain(schedule)
    for batch in range(3):
        schedule.handle(BackwardReady(Key(batch, 0)))
        done += drain(schedule)
    assert names(done) == "F0.0[0] F1.0[0] F2.0[0] B0.0 U→1 F3.0[1] B1.0 U→2 F4.0[2] B2.0 U→3"


def test_commands_wait_for_everything_before_them_and_finish_a_started_update():
    schedule = StageSchedule(Rules(is_last=False), limit=2)
    for batch in range(3):
        schedule.handle(ready(batch, per_update=2))
    schedule.handle(CommandReady("epoch", 1, ends_update=True))
    schedule.handle(ForwardReady(Key(3, 0), 2, False))
    done = drain(schedule)
    for batch in range(3):
        schedule.handle(BackwardReady(Key(batch, 0)))
        done += drain(schedule)
    assert names(done) == "F0.0[0] F1.0[0] B0.0 F2.0[0] B1.0 U→1 B2.0 U→2 epoch F3.0[2]"
    updates = [item for item in done if isinstance(item, Update)]
    assert [(item.batches, item.in_place) for item in updates] == [(2, False), (1, True)]


def test_other_commands_leave_a_started_update_as_it_is():
    """A validation or a save in the middle of an accumulation."""
    schedule = StageSchedule(Rules(is_last=True), limit=1)
    schedule.handle(ready(0, per_update=2))
    schedule.handle(CommandReady("validation", 1))
    schedule.handle(ready(1, per_update=2))
    assert names(drain(schedule)) == "F0.0[0] B0.0 validation F1.0[0] B1.0 U→1"


def test_a_command_waits_for_an_update_that_waits_for_permission():
    rules = Rules(is_last=True, schedule="sync", waits_for_permission=True)
    schedule = StageSchedule(rules, limit=1)
    schedule.handle(ready(0))
    schedule.handle(CommandReady("validation", 1))
    assert names(drain(schedule)) == "F0.0[0] B0.0"
    schedule.handle(UpdateAllowed(0))
    assert names(drain(schedule)) == "U→1 validation"


def test_evaluation_goes_in_line_without_a_backward():
    schedule = StageSchedule(Rules(is_last=False), limit=1)
    schedule.handle(ready(0))
    schedule.handle(ForwardReady(Key(1, 0), 1, False, trains=False))
    schedule.handle(ForwardReady(Key(2, 0), 1, False, trains=False))
    assert names(drain(schedule)) == "F0.0[0] E1.0 E2.0"
    assert schedule.in_flight == 1


def test_an_update_waits_for_permission():
    rules = Rules(is_last=True, schedule="sync", waits_for_permission=True)
    schedule = StageSchedule(rules, limit=1)
    schedule.handle(ready(0))
    schedule.handle(ready(1))
    assert names(drain(schedule)) == "F0.0[0] B0.0"
    schedule.handle(UpdateAllowed(0))
    assert names(drain(schedule)) == "U→1 F1.0[1] B1.0"


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (ForwardReady(Key(0, 0), 0, True), "comes after"),
        (BackwardReady(Key(7, 0)), "not in flight"),
    ],
)
def test_impossible_events_are_refused(event, message):
    schedule = StageSchedule(Rules(is_last=False), limit=2)
    schedule.handle(ready(0))
    schedule.next()
    with pytest.raises(ValueError, match=message):
        schedule.handle(event)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 8),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from(["async", "sync"]),
    st.integers(2, 4),
)
def test_what_holds_in_every_pipeline(stages, batches, parts, per_update, kind, versions):
    history, plans = simulate(
        stages, batches, parts, per_update, schedule=kind, max_versions=versions
    )
    for k, (done, plan) in enumerate(zip(history, plans, strict=True)):
        used = {}
        alive, most_alive = {0}, 1
        for item in done:
            match item:
                case Forward(key, version):
                    used[key] = version
                case Backward(key, version, staleness, frees):
                    assert used[key] == version, "forward and backward use the same weights"
                    assert kind == "async" or staleness == 0
                    if frees:
                        alive.discard(version)
                case Update(version=version, in_place=in_place, lag=lag):
                    assert lag >= 0
                    assert lag == 0 or (kind == "async" and k < stages - 1)
                    if in_place:
                        alive.discard(version - 1)
                    alive.add(version)
            most_alive = max(most_alive, len(alive))
        assert most_alive <= max(versions, 1)
        closed = set()
        for item in done:
            if (
                isinstance(item, Backward)
                and ready(item.key.batch, item.key.part, parts, per_update).closes_update
            ):
                closed.add(item.key.batch // per_update)
            if isinstance(item, Update):
                assert item.update in closed, "it has the number of what is complete in it"
        numbers = [item.update for item in done if isinstance(item, Update)]
        assert numbers == sorted(set(numbers)), "no number is used twice"
        assert len(used) == batches * parts
        assert sum(isinstance(i, Backward) for i in done) == batches * parts
        assert plan.in_flight == 0
        whole = batches // per_update
        applied = sum(item.batches for item in done if isinstance(item, Update))
        left = plan._gradients.batches
        assert applied + left == pytest.approx(batches)
        assert left < per_update
        if kind == "sync" or parts >= stages - 1 or k == stages - 1:
            steps = [item for item in done if isinstance(item, Update)]
            assert len(steps) == whole, "nothing was coalesced"
            assert all(item.batches == per_update for item in steps)


def test_enough_parts_keep_the_weights_nearly_fresh():
    """With S-1 parts or more, weights lack at most one update, and only for the first few parts."""
    stages, parts = 4, 8
    history, _ = simulate(stages, batches=10, parts=parts)
    for k, done in enumerate(history):
        stale = [item for item in done if isinstance(item, Backward) and item.staleness]
        assert all(item.staleness == 1 for item in stale)
        assert len(stale) <= 9 * (stages - 1 - k)


# ---- how many are in flight -------------------------------------------------------------------


def test_the_window_follows_the_way_ahead():
    """A way of 0.8 s that ends a micro-batch every 0.1 s holds eight; one more is here, and one to
    spare. Three quarters of the way are links, one quarter is computing."""
    window = InFlightWindow(WindowLimits(3, 100, spare=1))
    for number in range(64):
        window.returned(Trip(away_s=0.8, held_s=0.2, path_s=0.2), 0.1 * number)
    assert window.size == 10


def test_links_that_vary_widen_the_window_a_little():
    """16 links, stages of 0.1 s: half of the messages are 8 ms late, or a whole second."""
    sizes = []
    for late_s in (0.0, 0.008, 1.0):
        stages = [InFlightWindow(WindowLimits(1, 100)) for _ in range(16)]
        for number in range(128):
            path_s = slowest_s = 0.1
            for window in reversed(stages):
                window.served(0.1)
                late = late_s if number % 2 else 0.0
                window.returned(Trip(0.05 + late, 0.0, path_s, slowest_s), 0.1 * number)
                path_s, slowest_s = window.path_s, window.slowest_s
        sizes.append(stages[0].size)
    steady, jittery, queueing = sizes
    assert steady < jittery <= queueing <= steady + 2


def test_queues_do_not_widen_the_window():
    """Micro-batches that stood in line at later stages, or behind others on a link."""
    window = InFlightWindow(WindowLimits(2, 100, spare=1))
    for number in range(64):
        on_the_link = 0.1 if number % 10 == 0 else 1.0
        window.returned(Trip(away_s=3.0 + on_the_link, held_s=3.0, path_s=0.1), 0.1 * number)
    assert window.size == 4


def test_the_window_grows_towards_the_pace_of_the_slowest_stage():
    """A way of 2 s, stages that take 0.02 s, and far too few in flight at the beginning."""
    window = InFlightWindow(WindowLimits(4, 1000, spare=1))
    now, sizes = 0.0, []
    for _ in range(40):  # each round trip brings back what the window let go
        for _ in range(window.size):
            now += 2.0 / window.size if window.size < 100 else 0.02
            window.served(0.02)
            window.returned(Trip(away_s=2.0, held_s=0.0, path_s=0.0, slowest_s=0.015), now)
        sizes.append(window.size)
    assert sizes == sorted(sizes)
    assert sizes[12] >= 90
    assert sizes[-1] == 102


def test_a_narrow_link_is_not_flooded():
    window = InFlightWindow(WindowLimits(2, 1000))
    for number in range(200):
        window.returned(Trip(away_s=1.0, held_s=0.0, path_s=0.0, slowest_s=0.001), 0.1 * number)
    assert window.size == 16  # ten would do; half as many again are tried


def test_a_pause_does_not_narrow_the_window():
    window = InFlightWindow(WindowLimits(3, 100, spare=1))
    for start in (0.0, 100.0):
        for number in range(16):
            window.returned(Trip(away_s=0.8, held_s=0.0, path_s=0.0), start + 0.1 * number)
        assert window.size == 10
        window.paused()


def test_a_stage_adds_its_own_time_to_the_way():
    window = InFlightWindow(WindowLimits(2, 100, spare=1))
    for number in range(10):
        window.served(0.3)
        window.returned(Trip(away_s=0.7, held_s=0.5, path_s=0.4), number)
    assert window.path_s == pytest.approx(0.3 + 0.2 + 0.4)


def test_the_window_keeps_its_limits():
    window = InFlightWindow(WindowLimits(3, 5))
    sizes = {window.returned(Trip(10.0, 0.0, 0.0), 0.1 * number) for number in range(64)}
    assert sizes == {3, 5}
    with pytest.raises(ValueError, match="window of 3 to 2"):
        InFlightWindow(WindowLimits(3, 2))
