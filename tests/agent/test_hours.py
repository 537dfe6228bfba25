import datetime

import pytest

from ravnest.agent.hours import is_open, seconds_to_change


def clock(text):
    return datetime.datetime.combine(datetime.date(2024, 5, 6), datetime.time.fromisoformat(text))


@pytest.mark.parametrize(
    ("hours", "now", "open_", "seconds"),
    [
        ("09:00-17:00", "08:59:59", False, 1),
        ("09:00-17:00", "09:00", True, 8 * 3600),
        ("09:00-17:00", "17:00", False, 16 * 3600),
        ("22:00-07:00", "23:00", True, 8 * 3600),
        ("22:00-07:00", "06:59", True, 60),
        ("22:00-07:00", "07:00", False, 15 * 3600),
        ("08:00-08:00", "03:00", True, None),
        (None, "03:00", True, None),
    ],
)
def test_hours_of_the_day(hours, now, open_, seconds):
    assert is_open(hours, clock(now)) == open_
    assert seconds_to_change(hours, clock(now)) == seconds
