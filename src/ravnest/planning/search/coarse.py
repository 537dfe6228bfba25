"""Fewer cut points for the search over large models.

The tables grow with the square of the cut points and every step of the search reads them, so
thousands of operators cannot be searched directly. Most cut points do not matter: a stage border
may as well move to a neighbour where fewer bytes cross. This file keeps the ones worth cutting at;
the winner is then refined on the full tables (`partition.refine`).

Knows nothing about providers.
"""

from dataclasses import dataclass

import numpy as np

from ravnest.planning.costing.costs import CutCosts, Floats, Ints


@dataclass(frozen=True)
class CoarseCosts:
    """Tables over a subset of cut points; `points[i]` is the original number of cut point i."""

    costs: CutCosts
    points: Ints


def coarsen(costs: CutCosts, limit: int) -> CoarseCosts:
    """At most `limit` cut points, evenly spread over the model and cheap to cut at.

    The model is measured by the mean of three shares that lie before a cut point: of compute, of
    weights and of activations. That scale is divided into equal buckets, as many as leave at most
    `limit` of them occupied, and each bucket keeps the point with the fewest crossing bytes.
    """
    total = costs.cut_points
    if total <= limit:
        return CoarseCosts(costs, np.arange(total))
    shares = [costs.compute_s, costs.weight_bytes[0], costs.activation_bytes[0]]
    measure = np.mean([share / max(share[-1], 1e-12) for share in shares], axis=0)[1:-1]
    crossing = (costs.forward_bytes + costs.backward_bytes)[1:-1]
    buckets = _finest_buckets(measure, max(limit, 3) - 2)
    cheapest_first = np.lexsort((crossing, buckets))
    _, first = np.unique(buckets[cheapest_first], return_index=True)
    inner = np.sort(cheapest_first[first]) + 1
    return _restrict(costs, np.concatenate([[0], inner, [total - 1]]).astype(np.int64))


def _finest_buckets(measure: Floats, limit: int) -> Ints:
    """Bucket number of each point, with as many buckets as keep at most `limit` occupied."""
    low, high = 1, 64 * limit
    while low < high:
        middle = (low + high + 1) // 2
        if len(np.unique(_buckets(measure, middle))) <= limit:
            low = middle
        else:
            high = middle - 1
    return _buckets(measure, low)


def _buckets(measure: Floats, count: int) -> Ints:
    return np.clip(np.floor(measure * count), 0, count - 1).astype(np.int64)


def _restrict(costs: CutCosts, points: Ints) -> CoarseCosts:
    block = np.ix_(points, points)
    return CoarseCosts(
        CutCosts(
            operator=costs.operator[points],
            compute_s=costs.compute_s[points],
            forward_s=costs.forward_s[points],
            calls=costs.calls[points],
            updates=costs.updates[points],
            flops=costs.flops[points],
            forward_bytes=costs.forward_bytes[points],
            entering_bytes=costs.entering_bytes[points],
            backward_bytes=costs.backward_bytes[points],
            weight_bytes=costs.weight_bytes[block],
            trainable_bytes=costs.trainable_bytes[block],
            activation_bytes=costs.activation_bytes[block],
            working_bytes=costs.working_bytes[block],
            updating_bytes=costs.updating_bytes[block],
            averaged_bytes=costs.averaged_bytes[block],
            tied_bytes=costs.tied_bytes[block],
            parameter_operators=costs.parameter_operators[points],
        ),
        points,
    )
