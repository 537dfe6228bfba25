"""When a machine may be used: hours of the day such as 22:00-07:00, local time. Pure."""

import datetime

_DAY_S = 24 * 3600.0


def is_open(hours: str | None, now: datetime.datetime) -> bool:
    """Without hours, always. 08:00-08:00 is the whole day."""
    if hours is None:
        return True
    begins, ends = _bounds(hours)
    moment = _second_of_day(now)
    if begins < ends:
        return begins <= moment < ends
    return moment >= begins or moment < ends


def seconds_to_change(hours: str | None, now: datetime.datetime) -> float | None:
    """Until `is_open` is to be asked again; None if it never changes."""
    if hours is None:
        return None
    begins, ends = _bounds(hours)
    if begins == ends:
        return None
    moment = _second_of_day(now)
    return min((bound - moment) % _DAY_S or _DAY_S for bound in (begins, ends))


def _bounds(hours: str) -> tuple[float, float]:
    begins, ends = (_second(text) for text in hours.split("-"))
    return begins, ends


def _second(text: str) -> float:
    hour, minute = text.split(":")
    return int(hour) * 3600.0 + int(minute) * 60.0


def _second_of_day(now: datetime.datetime) -> float:
    return now.hour * 3600.0 + now.minute * 60.0 + now.second + now.microsecond / 1e6
