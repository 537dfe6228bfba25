"""By how much a loss is multiplied, so that its gradients survive half precision.

The rule is that of torch.amp.GradScaler: half as much after an update in which anything did not
fit, twice as much after many in which everything did. The last stage of a cluster decides, because
that is where losses are; every gradient that travels says what it has been multiplied by. A cluster
begins anew with every run, and nothing of this is averaged: what is averaged is divided again.
Pure.
"""

GROWS_AFTER = 2000
"""Updates."""
_LEAST = 2.0**-20
"""Nothing but a loss that is no number itself brings it so low."""


class LossScale:
    """Of one cluster."""

    def __init__(self, value: float, *, adapts: bool) -> None:
        self.value = value
        self._adapts = adapts
        self._good_updates = 0

    def heard(self, scale: float, *, finite: bool) -> None:
        """How an update went whose gradients were multiplied by `scale`. Of a scale of the past it
        says nothing new: several updates may have been under way with the one that overflowed."""
        if not self._adapts or scale != self.value:
            return
        self._good_updates = self._good_updates + 1 if finite else 0
        if not finite:
            self.value = max(0.5 * self.value, _LEAST)
        elif self._good_updates == GROWS_AFTER:
            self.value, self._good_updates = 2.0 * self.value, 0
