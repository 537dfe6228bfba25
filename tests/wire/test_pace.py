"""What a sender can tell of its link's speed."""

from hypothesis import given
from hypothesis import strategies as st

from ravnest.wire.pace import Pace

MB = 1 << 20


def play(pace, sizes, *, bytes_per_s, delay_s=0.0, pause_s=0.0):
    """Messages one after the other over a link of this speed, each acknowledged when it is there;
    the next departs as soon as the link is free, and after the pause."""
    now = free = 0.0
    arrivals = []
    for sequence, size in enumerate(sizes, 1):
        waits = free > now
        pace.submitted(others_wait=waits)
        departs = max(now, free)
        while arrivals and arrivals[0][0] <= departs:
            pace.arrived(arrivals[0][1], arrivals.pop(0)[0])
        pace.departed(sequence, size, departs)
        free = departs + size / bytes_per_s
        arrivals.append((free + delay_s, sequence))
        now += pause_s
    for at, sequence in arrivals:
        pace.arrived(sequence, at)


def test_nothing_is_known_at_first():
    pace = Pace()
    assert pace.bytes_per_s is None
    assert not pace.holds_up


@given(st.floats(1e5, 1e9), st.lists(st.integers(MB, 8 * MB), min_size=40, max_size=60))
def test_a_busy_link_shows_its_speed(bytes_per_s, sizes):
    pace = Pace()
    play(pace, sizes, bytes_per_s=bytes_per_s, delay_s=0.01 * MB / bytes_per_s)
    assert pace.holds_up
    assert 0.95 * bytes_per_s < pace.bytes_per_s < 1.05 * bytes_per_s


def test_a_link_with_little_to_do_does_not_hold_up():
    pace = Pace()
    play(pace, [64 << 10] * 50, bytes_per_s=1e8, delay_s=0.05, pause_s=0.2)
    assert not pace.holds_up


def test_small_messages_say_nothing_about_speed():
    pace = Pace()
    play(pace, [100] * 50, bytes_per_s=1e8, delay_s=0.05)
    assert pace.bytes_per_s is None


def test_what_is_sent_again_after_a_break_counts_once():
    pace = Pace()
    pace.departed(1, MB, 0.0)
    pace.broke()
    pace.departed(1, MB, 5.0)
    pace.arrived(1, 6.0)
    assert pace.bytes_per_s == MB


def through_the_kernel(pace, sizes, *, bytes_per_s, delay_s, every_s):
    """As above, but the kernel takes every message at once, however slow the line is."""
    events, free = [], 0.0
    for sequence, size in enumerate(sizes, 1):
        departs = every_s * sequence
        free = max(departs, free) + size / bytes_per_s
        events += [(departs, 0, sequence, size), (free + delay_s, 1, sequence, size)]
    for at, has_arrived, sequence, size in sorted(events):
        if has_arrived:
            pace.arrived(sequence, at)
        else:
            pace.submitted(others_wait=False)
            pace.departed(sequence, size, at)


def test_what_waits_in_the_kernel_waits_too():
    pace = Pace()
    through_the_kernel(pace, [MB] * 30, bytes_per_s=10 * MB, delay_s=0.025, every_s=0.06)
    assert pace.holds_up
    assert 9 * MB < pace.bytes_per_s < 11 * MB


def test_a_long_way_alone_does_not_hold_up():
    pace = Pace()
    through_the_kernel(pace, [MB] * 60, bytes_per_s=1000 * MB, delay_s=0.2, every_s=0.01)
    assert not pace.holds_up


def test_a_fast_line_with_jitter_does_not_hold_up():
    pace = Pace()
    now = 0.0
    for sequence in range(1, 60):
        now += 0.1
        pace.submitted(others_wait=False)
        pace.departed(sequence, MB, now)
        pace.arrived(sequence, now + (0.001 if sequence % 7 == 0 else 0.01))
    assert not pace.holds_up
