"""Numbers in sentences for people, and what of a sentence is the server's own.

What others have said (a worker, a model, a process, an agent) follows after a colon and a space.
"""

_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))


def counted(number: float, what: str) -> str:
    """`1 provider`, `3 providers`; for what takes an s, or -es after tch."""
    many = f"{what}es" if what.endswith("tch") else f"{what}s"
    return f"{figure(number)} {what if number == 1 else many}"


def lasting(seconds: float) -> str:
    """`20 seconds`, `3 hours`: about, in the unit that people would choose."""
    unit, size = next(unit for unit in _UNITS if seconds >= unit[1] or unit[1] == 1)
    return counted(round(seconds / size, 1), unit)


def figure(number: float) -> str:
    """With three digits that count, and never as a power of ten."""
    if number != 0 and abs(number) < 0.001:
        return "less than 0.001"
    if abs(number) >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.3g}"


def own_words(text: str) -> str:
    """Without what others have said: that is for those whom it concerns."""
    return text.partition(": ")[0]
