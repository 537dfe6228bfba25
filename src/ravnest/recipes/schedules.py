"""How the learning rate changes: a factor of it for every step, as a function of the step alone.

A step is an epoch or an update, as the recipe says. Because nothing is remembered from one step to
the next, a run that takes up the work of an earlier one goes on at the right place.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ravnest.api.jobs import Named
from ravnest.errors import JobError
from ravnest.recipes.parameters import Entry, Param, Registry, Values

Factor = Callable[[int], float]
"""From the number of steps that were made to what the learning rate is multiplied with."""


@dataclass(frozen=True)
class _Schedule(Entry):
    make: Callable[[Values, int], Factor] = lambda values, steps: lambda step: 1.0
    """`steps` is how many there are from the first to the last."""


def _whole_length(says: str = "until it has come to its end; all steps if not given") -> Param:
    return Param("integer", None, says, low=1)


_GAMMA = Param("number", 0.1, "factor at each of these steps", above=0.0)
_WARMUP = Param("integer", says="steps over which the rate rises to its full value", low=1)
_MINIMUM = Param("number", 0.0, "share of the rate at the end", low=0.0, high=1.0)


def _between(first: float, last: float, share: float) -> float:
    """Along half a wave of a cosine."""
    return last + (first - last) * (1.0 + math.cos(math.pi * share)) / 2.0


def _part(step: int, steps: int) -> float:
    return min(step, steps) / max(steps, 1)


def _cosine(values: Values, steps: int) -> Factor:
    length = values["steps"] or steps
    return lambda step: _between(1.0, values["minimum"], _part(step, length))


def _restarting(values: Values, steps: int) -> Factor:
    def factor(step: int) -> float:
        period = values["period"]
        if values["growth"] == 1:
            step %= period  # of a million updates, nobody wants to count the waves
        while step >= period:
            step -= period
            period *= values["growth"]
        return _between(1.0, values["minimum"], step / period)

    return factor


def _polynomial(values: Values, steps: int) -> Factor:
    length, end = values["steps"] or steps, values["minimum"]
    return lambda step: end + (1.0 - end) * (1.0 - _part(step, length)) ** values["power"]


def _linear(values: Values, steps: int) -> Factor:
    length, start, end = values["steps"] or steps, values["start"], values["end"]
    return lambda step: start + (end - start) * _part(step, length)


def _one_cycle(values: Values, steps: int) -> Factor:
    length = values["steps"] or steps
    top = values["rise"] * length - 1.0
    start = 1.0 / values["start_divisor"]
    end = start / values["end_divisor"]

    def factor(step: int) -> float:
        if step < top:
            return _between(start, 1.0, step / top)
        rest = max(length - 1.0 - top, 1e-9)
        return _between(1.0, end, min((step - top) / rest, 1.0))

    return factor


def _warm(values: Values, then: Callable[[int, int], float], steps: int) -> Factor:
    """Rise in equal steps, the first not 0; `then` gets the steps since, and how many there are."""
    warmup = values["warmup"]

    def factor(step: int) -> float:
        if step < warmup:
            return float((step + 1) / warmup)
        return then(step - warmup, max(steps - warmup, 1))

    return factor


def _warmup_cosine(values: Values, steps: int) -> Factor:
    length, end = values["steps"] or steps, values["minimum"]
    return _warm(values, lambda step, rest: _between(1.0, end, _part(step, rest)), length)


def _warmup_linear(values: Values, steps: int) -> Factor:
    length, end = values["steps"] or steps, values["minimum"]
    return _warm(values, lambda step, rest: 1.0 + (end - 1.0) * _part(step, rest), length)


def _inverse_sqrt(values: Values, steps: int) -> Factor:
    warmup = values["warmup"]
    return _warm(values, lambda step, rest: math.sqrt(warmup / (warmup + step)), steps)


def _multistep(values: Values, steps: int) -> Factor:
    marks = values["milestones"]
    return lambda step: float(values["gamma"] ** sum(step >= mark for mark in marks))


SCHEDULES = Registry(
    "schedule",
    {
        "constant": _Schedule("The same rate all the time."),
        "step": _Schedule(
            "The rate times `gamma`, every `step_size` steps.",
            {"step_size": Param("integer", says="steps between changes", low=1), "gamma": _GAMMA},
            make=lambda values, steps: (
                lambda step: float(values["gamma"] ** (step // values["step_size"]))
            ),
        ),
        "multistep": _Schedule(
            "The rate times `gamma` at each milestone.",
            {"milestones": Param("integers", says="steps of changes", low=0), "gamma": _GAMMA},
            make=_multistep,
        ),
        "exponential": _Schedule(
            "The rate times `gamma` at every step.",
            {"gamma": Param("number", says="factor at every step", above=0.0)},
            make=lambda values, steps: lambda step: float(values["gamma"] ** step),
        ),
        "cosine": _Schedule(
            "Down along half a cosine wave.",
            {"steps": _whole_length(), "minimum": _MINIMUM},
            make=_cosine,
        ),
        "cosine_restarts": _Schedule(
            "Down along half a cosine wave, again and again.",
            {
                "period": Param("integer", says="steps of the first wave", low=1),
                "growth": Param("integer", 1, "each wave is so many times as long", low=1),
                "minimum": _MINIMUM,
            },
            make=_restarting,
        ),
        "linear": _Schedule(
            "In a straight line from one share of the rate to another.",
            {
                "start": Param("number", 1.0, "share at the beginning", low=0.0),
                "end": Param("number", 0.0, "share at the end", low=0.0),
                "steps": _whole_length(),
            },
            make=_linear,
        ),
        "polynomial": _Schedule(
            "Down by a power of the steps that are left.",
            {
                "power": Param("number", 1.0, "of the share that is left", above=0.0),
                "steps": _whole_length(),
                "minimum": _MINIMUM,
            },
            make=_polynomial,
        ),
        "one_cycle": _Schedule(
            "Up to the full rate and down again to almost nothing; for `schedule_per: update`.",
            {
                "steps": _whole_length(),
                "rise": Param("number", 0.3, "share of the steps", low=0.0, high=1.0),
                "start_divisor": Param("number", 25.0, "full rate to first", above=0.0),
                "end_divisor": Param("number", 1e4, "first rate to last", above=0.0),
            },
            make=_one_cycle,
        ),
        "warmup_constant": _Schedule(
            "Up in equal steps, then the same rate.",
            {"warmup": _WARMUP},
            make=lambda values, steps: _warm(values, lambda step, rest: 1.0, steps),
        ),
        "warmup_cosine": _Schedule(
            "Up in equal steps, then down along half a cosine wave.",
            {"warmup": _WARMUP, "steps": _whole_length(), "minimum": _MINIMUM},
            make=_warmup_cosine,
        ),
        "warmup_linear": _Schedule(
            "Up in equal steps, then down in a straight line.",
            {"warmup": _WARMUP, "steps": _whole_length(), "minimum": _MINIMUM},
            make=_warmup_linear,
        ),
        "inverse_sqrt": _Schedule(
            "Up in equal steps, then down with the square root of the steps.",
            {"warmup": _WARMUP},
            make=_inverse_sqrt,
        ),
    },
)


def factors(named: Named, steps: int) -> Factor:
    """The schedule itself: from the steps made so far to the factor of the learning rate."""
    if steps < 1:
        raise JobError(f"a schedule over {steps} steps: there must be at least one")
    return SCHEDULES[named.name].make(SCHEDULES.values(named), steps)


def build_schedule(named: Named, *, steps: int, done: int = 0) -> Callable[..., Any]:
    """What `Node(lr_scheduler=…)` takes, of a run that begins after `done` steps of `steps`."""
    factor = factors(named, steps)
    from torch.optim.lr_scheduler import LambdaLR

    return lambda optimizer: LambdaLR(optimizer, lambda step: factor(step + done))
