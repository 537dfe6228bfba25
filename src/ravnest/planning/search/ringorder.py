"""In which order a ring is walked, so that its slowest link is as fast as possible.

Every member of a ring sends to the next one all the time, and a round takes as long as the slowest
of these links needs. With m members there are (m - 1)! / 2 different rings. A few members are
solved by looking at all of them. Beyond that, some orders that suggest themselves are improved:

1. Take out the slowest link; a path from one of its ends to the other remains. Turning a part of
   the path around gives it another end, at the price of one link for another. Try all ends that
   faster links lead to, until one can be joined to the beginning by a faster link as well.
2. When that fails, the slowest link is what it is. Turn parts around as long as that makes the sum
   of the speeds larger, without a link that is slower than the slowest.

The same speeds give the same order, and never one that is worse than 0, 1, 2, …

Knows nothing about providers: a table of speeds in, an order out.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import permutations

import numpy as np

from ravnest.planning.costing.costs import Floats, Ints

EXACT_UP_TO = 8
"""Members for which all orders are looked at: 2,520 of them."""

SWEEPS = 2
"""How often every link is looked at for a larger sum, at most."""

ROUNDING = 1e-9
"""Relative gain that counts as one."""


def ring_order(speeds: Floats) -> tuple[int, ...]:
    """The members in ring order, from 0 on. `speeds[i, j] == speeds[j, i]`, between two members.

    The slowest link is as fast as possible; then the sum of the speeds as large as possible; then
    the lower numbers come first. With more than `EXACT_UP_TO` members, as far as it is found.
    """
    members = len(speeds)
    if members <= 3:
        return tuple(range(members))
    order = _best_of_all(speeds) if members <= EXACT_UP_TO else _searched(speeds)
    return tuple(_from_zero(order).tolist())


def _links(order: Ints, speeds: Floats) -> Floats:
    """[..., k]: speed from the k-th member of an order to the one after it."""
    found: Floats = speeds[order, np.roll(order, -1, axis=-1)]
    return found


def _worth(order: Ints, speeds: Floats) -> tuple[float, float]:
    # Sorted first: the same links in another order shall have the same sum to the last digit.
    links = np.sort(_links(order, speeds))
    return float(links[0]), float(links.sum())


def _from_zero(order: Ints) -> Ints:
    """The same ring from member 0 on, towards the lower one of its neighbours."""
    order = np.roll(order, -int(np.flatnonzero(order == 0)[0]))
    return order if len(order) < 3 or order[1] < order[-1] else np.roll(order[::-1], 1)


# -- few members -----------------------------------------------------------------------------------


@lru_cache
def _all_orders(members: int) -> Ints:
    """Every ring once, the lower numbers first."""
    rest = permutations(range(1, members))
    return np.array([(0, *order) for order in rest if order[0] < order[-1]], dtype=np.int64)


def _best_of_all(speeds: Floats) -> Ints:
    orders = _all_orders(len(speeds))
    links = np.sort(_links(orders, speeds), axis=1)
    slowest, sums = links[:, 0], links.sum(axis=1)
    best: Ints = orders[np.where(slowest == slowest.max(), sums, -np.inf).argmax()]
    return best


# -- many members----------------------------------------------------------------------------------


def _searched(speeds: Floats) -> Ints:
    """The best that comes of any start, and of the order as numbered."""
    limit = float(np.partition(speeds, -2, axis=1)[:, -2].min())  # everybody has two links
    found: list[Ints] = [np.arange(len(speeds))]
    for start in _starts(speeds):
        found.append(_with_faster_links(start, speeds))
        if _worth(found[-1], speeds)[0] >= limit:
            break
    return _with_larger_sum(max(found, key=lambda order: _worth(order, speeds)), speeds)


def _starts(speeds: Floats) -> Iterator[Ints]:
    """The best connected first; and always on to whoever is reached fastest."""
    yield np.argsort(-speeds.sum(axis=1), kind="stable")
    yield _nearest(speeds)


def _nearest(speeds: Floats) -> Ints:
    """From the worst connected member on: the later ones have fewer to choose from."""
    free = speeds.copy()
    order = [int(speeds.sum(axis=1).argmin())]
    for _ in range(len(speeds) - 1):
        free[:, order[-1]] = -1.0
        order.append(int(free[order[-1]].argmax()))
    return np.array(order, dtype=np.int64)


def _with_faster_links(order: Ints, speeds: Floats) -> Ints:
    """Replace the slowest link again and again, for as long as there is something faster."""
    for _ in range(2 * len(order)):
        links = _links(order, speeds)
        at = int(links.argmin())
        path, slowest = np.roll(order, -at - 1), float(links[at])
        closed = _closed(path, speeds, slowest)
        if closed is None:
            closed = _closed(path[::-1], speeds, slowest)
        if closed is None:
            break
        order = closed
    return order


def _closed(path: Ints, speeds: Floats, slowest: float) -> Ints | None:
    """The members of a path as a ring whose new links are all faster than `slowest`.

    Breadth first over the ends that the path can be given, each of them once.
    """
    begin = int(path[0])
    joins = speeds[begin] > slowest
    seen = np.zeros(len(path), dtype=bool)
    seen[path[-1]] = True
    paths = [path]
    for known in paths:
        # Joining the end to known[k] frees the one behind it, which is the new end.
        reached = np.flatnonzero(speeds[known[-1], known[:-2]] > slowest)
        reached = reached[~seen[known[reached + 1]]]
        ends = known[reached + 1]
        seen[ends] = True
        if (joining := reached[joins[ends]]).size:
            return _turned(known, int(joining[0]))
        paths += [_turned(known, k) for k in reached.tolist()]
    return None


def _turned(path: Ints, k: int) -> Ints:
    """The path with everything behind its k-th member turned around."""
    return np.concatenate([path[: k + 1], path[:k:-1]])


def _with_larger_sum(order: Ints, speeds: Floats) -> Ints:
    """Turn parts around where that replaces two links by two with a larger sum, none of them
    slower than the slowest of all."""
    slowest = float(_links(order, speeds).min())
    in_vain = 0
    for _ in range(SWEEPS * len(order)):
        if in_vain == len(order):
            break
        order = np.concatenate([order[1:], order[:1]])
        # The link from the last member to the first is replaced, and that from k to k + 1.
        ends, starts = order[:-1], order[1:]
        first, second = speeds[order[-1], ends], speeds[order[0], starts]
        gain = first + second - speeds[ends, starts] - speeds[order[-1], order[0]]
        gain[np.minimum(first, second) < slowest] = 0.0
        k = int(gain.argmax())
        in_vain += 1
        if gain[k] > ROUNDING * (first[k] + second[k]):
            order = np.concatenate([order[k::-1], order[k + 1 :]])
            in_vain = 0
    return order
