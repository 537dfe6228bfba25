"""What the clusters of a finished layout average, among whom, and in which order.

Pure bookkeeping over what others decide: `study` knows what training changes, `rings` who shares
it, `ringorder` how a ring is walked.
"""

import bisect
import hashlib
from collections.abc import Sequence

import msgspec

from ravnest.plan import ClusterPlan, RingPlan
from ravnest.planning.search.links import speeds_between
from ravnest.planning.search.ringorder import ring_order
from ravnest.planning.search.rings import form_rings
from ravnest.planning.study import Study


def plan_rings(study: Study, clusters: Sequence[ClusterPlan]) -> tuple[RingPlan, ...]:
    """What training changes, in the order the model uses it; the rest is equal everywhere."""
    held, names = study.held, study.changing
    parameters = {name for name in names if held[name].kind == "parameter"}
    rings = form_rings(names, [_owners(cluster, study, names) for cluster in clusters], parameters)
    sizes = {name: held[name].tensor.nbytes for name in names}
    orders = _orders(rings, clusters)
    return tuple(
        msgspec.structs.replace(ring, bytes=sum(sizes[name] for name in ring.names), order=order)
        for ring, order in zip(rings, orders, strict=True)
    )


def _owners(cluster: ClusterPlan, study: Study, names: Sequence[str]) -> dict[str, int]:
    stops = [stage.stop for stage in cluster.stages]
    return {
        name: cluster.stages[bisect.bisect_right(stops, study.homes[name])].provider.id
        for name in names
    }


def _orders(rings: Sequence[RingPlan], clusters: Sequence[ClusterPlan]) -> list[tuple[int, ...]]:
    """In which order each ring is walked; () where it is that of the clusters.

    Owners with equal speeds between them are met again and again in pools of equal machines.
    """
    providers = [stage.provider for cluster in clusters for stage in cluster.stages]
    place = {provider.id: at for at, provider in enumerate(providers)}
    speeds = speeds_between(providers)
    plain = tuple(range(len(clusters)))
    known: dict[bytes, tuple[int, ...]] = {}
    orders = []
    for ring in rings:
        at = [place[owner] for owner in ring.owners]
        between = speeds[at][:, at]
        key = hashlib.blake2b(between.tobytes()).digest()
        if key not in known:
            known[key] = ring_order(between)
        orders.append(() if known[key] == plain else known[key])
    return orders
