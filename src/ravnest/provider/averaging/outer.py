"""An optimizer over rounds: the mean change of a round is its gradient.

Clusters that average rarely go far between rounds, and their mean is a cautious guess of where they
are heading. Nesterov's momentum over rounds goes further in the direction that rounds agree upon.
"""

import math
from dataclasses import dataclass

import torch

from ravnest.errors import NodeError
from ravnest.provider.options import is_number


@dataclass(frozen=True)
class Nesterov:
    """Momentum over rounds. With momentum 0 and a rate of 1 it is the plain mean."""

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        numbers = is_number(self.lr) and is_number(self.momentum)
        if not numbers or not 0 < self.lr < math.inf or not 0 <= self.momentum < 1:
            raise NodeError(
                f"Nesterov(lr={self.lr!r}, momentum={self.momentum!r}): the rate must be a finite "
                "number above 0, the momentum one from 0 to below 1"
            )


class Momentum:
    """Of the part of a vector for which this member makes the means.

    Every mean is made by one member and sent to the others, so its momentum is needed there only.
    When other members make up the ring, other parts fall to each, and momentum begins anew.
    """

    def __init__(self, rule: Nesterov) -> None:
        self.rule = rule
        self._members: tuple[int, ...] = ()
        self._first = 0
        self._values = torch.empty(0)

    def begin(self, members: tuple[int, ...], first: int, stop: int, dtype: torch.dtype) -> None:
        """A round of these members, in which elements first … stop are made here."""
        same = members == self._members and first == self._first
        if not (same and self._values.numel() == stop - first):
            self._members, self._first = members, first
            self._values = torch.zeros(stop - first, dtype=dtype)

    def forget(self) -> None:
        """The next round has another beginning than the last one ended with."""
        self._members = ()

    def step(self, start: int, change: torch.Tensor) -> None:
        """Turn the mean change from element `start` on into the step to take, where it is."""
        rule = self.rule
        velocity = self._values[start - self._first : start - self._first + change.numel()]
        velocity.mul_(rule.momentum).add_(change)
        change.add_(velocity, alpha=rule.momentum).mul_(rule.lr)
