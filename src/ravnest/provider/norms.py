"""The norm of the whole model's gradient, of which each stage knows its own share only.

Shares are added up on the way back to the first stage, each as the square of the norm of the mean
over the batches that the stage has accumulated. So the first stage knows the total and tells the
others. In a synchronous schedule they wait for it; otherwise they use their own share and what that
of the others was last time. Pure.
"""

import math


class GradientNorms:
    """Squared norms, as one stage knows them."""

    def __init__(self, *, is_first: bool, waits: bool) -> None:
        self._is_first = is_first
        self._waits = waits
        self._later = 0.0
        self._of_others = 0.0
        self._own: dict[int, float] = {}
        self._totals: dict[int, float] = {}

    def came_back(self, later: float) -> None:
        """The sum of the shares of all later stages, with the last part of a batch."""
        self._later = later

    def told(self, update: int, total: float) -> None:
        """The first stage knows the total of an update."""
        if self._waits:
            self._totals[update] = total
        own = self._own.pop(update, None)
        for older in [known for known in self._own if known < update]:
            del self._own[older]  # the first stage made one update of several
        if own is not None and math.isfinite(total):
            self._of_others = max(0.0, total - own)

    def total(self, update: int, own: float) -> float:
        """Of the gradient as it is applied, of which this stage's share is `own`."""
        if self._is_first:
            return own + self._later
        known = self._totals.pop(update, None)
        if known is not None:
            return known
        self._own[update] = own
        return own + self._of_others
