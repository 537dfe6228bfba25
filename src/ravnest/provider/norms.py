"""The norm of the whole model's gradient, of which each stage knows its own share only.

Shares are added up on the way back to the first stage, each as the square of the norm of the mean
over the batches that the stage has accumulated. So a stage knows its own share and that of all
later ones, and the first stage knows the total, which it tells the others. Where updates are
synchronous they wait for it. Otherwise they take the total to be as many times what they know as it
was the last time they heard of it: a batch with large gradients has them everywhere. The first
update of a run is synchronous for that.

A share that is not finite makes a total that is not, whichever stage it came from. Pure.
"""

import math


class GradientNorms:
    """Squared norms, as one stage knows them."""

    def __init__(self, *, is_first: bool) -> None:
        self._is_first = is_first
        self._later = 0.0
        self._ratio = 1.0
        """Of the total to what this stage knows of it."""
        self._known: dict[int, float] = {}
        self._totals: dict[int, float] = {}

    def came_back(self, later: float) -> None:
        """The sum of the shares of all later stages, with the last part of a batch."""
        self._later = later

    def told(self, update: int, total: float) -> None:
        """The first stage knows the total of an update."""
        known = self._known.pop(update, None)
        if known is None:
            self._totals[update] = total
        elif known > 0 and math.isfinite(total):
            self._ratio = max(1.0, total / known)
        # The first stage may have made one update of several.
        self._known = {number: value for number, value in self._known.items() if number > update}

    def total(self, update: int, own: float) -> float:
        """Of the gradient as it is applied, of which this stage's share is `own`."""
        known = own + self._later
        if self._is_first:
            return known
        told = self._totals.pop(update, None)
        self._totals = {number: value for number, value in self._totals.items() if number > update}
        self._known[update] = known
        if told is None:
            return known * self._ratio
        self.told(update, told)
        return told
