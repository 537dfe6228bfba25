"""Held-out loss over steps and time."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

LEVELS = (2.4, 2.3, 2.2, 2.1)
_PATIENCE = 0.3
"""A run that has not come to the first level in this part of its steps is given up."""


@dataclass
class Curve:
    steps: list[int] = field(default_factory=list)
    """Updates of one cluster."""
    times: list[float] = field(default_factory=list)
    """Virtual seconds."""
    losses: list[float] = field(default_factory=list)
    rounds: float = 0.0
    busy: float = 0.0
    staleness: list[float] = field(default_factory=list)

    def note(self, step: int, at: float, loss: float) -> None:
        self.steps.append(step)
        self.times.append(at)
        self.losses.append(loss)

    def goes_on(self, most_steps: int, levels: Sequence[float] = LEVELS) -> bool:
        """Whether there is more to learn."""
        smooth = self.smooth
        if self.steps[-1] >= _PATIENCE * most_steps and min(smooth) > levels[0]:
            return False
        # The last look but one is the last with a neighbour on either side.
        return smooth[-2:][0] > levels[-1]

    @property
    def smooth(self) -> list[float]:
        """The mean of three looks each, or a lucky one would count as arrival."""
        around = [self.losses[max(0, k - 1) : k + 2] for k in range(len(self.losses))]
        return [sum(some) / len(some) for some in around]

    def reached(self, wanted: float) -> tuple[float, float] | None:
        """Steps and time to a loss: between two looks, on a straight line."""
        looks = list(zip(self.steps, self.times, self.smooth, strict=True))
        for before, after in itertools.pairwise(looks):
            if after[2] <= wanted:
                part = min(1.0, (before[2] - wanted) / (before[2] - after[2]))
                return (
                    before[0] + part * (after[0] - before[0]),
                    before[1] + part * (after[1] - before[1]),
                )
        return None
