"""Figures as a person reads them: three digits that matter, a unit that fits, no exponent.

    8 GB   432 kB   6,112 batches/s   24 GFLOP   12.5 ms

Everything that planning says to a person, in the report, in a reason or in an error, takes its
figures from here, so that one quantity looks the same wherever it is met.
"""

import math

_BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_THINGS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_FLOP = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))
_BEYOND = 1e15
"""More than that is a mistake, or a loss that has run away: shown short, with an exponent."""
_TIMES = ((1.0, "s"), (1e-3, "ms"))


def plain(value: float, digits: int = 3) -> str:
    """So many significant digits, commas between thousands, no zeros that say nothing."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    if abs(value) >= _BEYOND:
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    if decimals <= 0:
        return f"{value:,.0f}"
    return f"{value:,.{decimals}f}".rstrip("0").rstrip(".")


def passed(epochs: float) -> str:
    """Epochs so far, to the hundredth; never rounded up to one that has not ended."""
    return plain(math.floor(epochs * 100 + 1e-6) / 100 if epochs < _BEYOND else epochs, 9)


def size(number: float, digits: int = 3) -> str:
    return _scaled(number, _BYTES, "B", digits)


def sizes_apart(first: float, second: float) -> tuple[str, str]:
    """Both sizes with as many digits as it takes to tell them apart."""
    for digits in range(3, 12):
        texts = size(first, digits), size(second, digits)
        if texts[0] != texts[1]:
            break
    return texts


def count(number: float) -> str:
    """Parameters and the like: 25.6 M."""
    return _scaled(number, _THINGS, "", 3).rstrip()


def flop(number: float) -> str:
    return _scaled(number, _FLOP, "FLOP", 3)


def duration(seconds: float) -> str:
    return _scaled(seconds, _TIMES, "µs", 3, smallest=1e-6)


def rate(per_s: float) -> str:
    """Batches per second; per hour where a batch takes minutes."""
    if per_s * 60 < 1:
        return f"{plain(per_s * 3600)} batches/h"
    return f"{plain(per_s)} batches/s"


def quantity(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _scaled(
    number: float,
    units: tuple[tuple[float, str], ...],
    rest: str,
    digits: int,
    smallest: float = 1.0,
) -> str:
    for scale, name in units:
        if number >= scale:
            return f"{plain(number / scale, digits)} {name}"
    return f"{plain(number / smallest, digits)} {rest}"
