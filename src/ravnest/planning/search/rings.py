"""Rings: which tensors are averaged among which providers.

Clusters cut the model in different places. Walking through the model's tensors in order, the owners
change whenever any cluster changes stage; every run of tensors between two changes has one owner
per cluster, and those owners form a ring. So each tensor is in exactly one ring, once per cluster.

Pure bookkeeping: no torch, no addresses, no sizes.
"""

from collections.abc import Container, Mapping, Sequence
from itertools import groupby

from ravnest.plan import RingPlan


def form_rings(
    names: Sequence[str],
    owners: Sequence[Mapping[str, int]],
    parameters: Container[str] | None = None,
) -> tuple[RingPlan, ...]:
    """`owners[c][name]` is the provider that owns the tensor in cluster c.

    `parameters` tells parameters from buffers, so that each ring can be called by a parameter.
    """
    runs = groupby(names, key=lambda name: tuple(cluster[name] for cluster in owners))
    rings = []
    for number, (holders, run) in enumerate(runs):
        members = tuple(run)
        known = (name for name in members if parameters is None or name in parameters)
        rings.append(
            RingPlan(
                id=number,
                names=members,
                owners=holders,
                first_parameter=next(known, members[0]),
            )
        )
    return tuple(rings)
