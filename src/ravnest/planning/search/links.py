"""How fast two providers can send to each other.

A speed that was measured between the two says more than what each of them states about its own
link; of the two directions the slower one counts. Without a measurement it is the slower of the
two links.

Knows nothing about who sends what: see `ringorder` for rings.
"""

from collections.abc import Sequence

import numpy as np

from ravnest.plan import ProviderSpec
from ravnest.planning.costing.costs import Floats


def measured_mbps(one: ProviderSpec, other: ProviderSpec) -> float | None:
    """The slower of the measurements between two providers; None if there is none."""
    known = [dict(a.links).get(b.id) for a, b in ((one, other), (other, one))]
    return min((speed for speed in known if speed is not None), default=None)


def speed_mbps(one: ProviderSpec, other: ProviderSpec) -> float:
    """Between two providers, the same in both directions."""
    measured = measured_mbps(one, other)
    return min(one.bandwidth_mbps, other.bandwidth_mbps) if measured is None else measured


def speeds_between(providers: Sequence[ProviderSpec]) -> Floats:
    """[i, j]: `speed_mbps` of each two of them; 0 on the diagonal."""
    own = np.array([provider.bandwidth_mbps for provider in providers], dtype=np.float64)
    place = {provider.id: at for at, provider in enumerate(providers)}
    measured: Floats = np.full((len(own), len(own)), np.inf)
    for at, provider in enumerate(providers):
        for other, speed in provider.links:
            if other in place:
                measured[at, place[other]] = speed
    measured = np.minimum(measured, measured.T)
    speeds: Floats = np.where(np.isfinite(measured), measured, np.minimum(own[:, None], own))
    np.fill_diagonal(speeds, 0.0)
    return speeds
