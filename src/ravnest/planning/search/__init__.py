"""Who works with whom, in which order, with which cuts: tables and providers in, a layout out.

    clusters.py                 the whole answer: layout, who is idle and why
    solve.py exact.py           the best grouping of one pool; by looking at all of a small one
    improve.py neighbours.py    local search for larger pools, and what a change is worth
    grouping.py seating.py      groupings: from a sequence of providers, and one that can change
    pricing.py scan.py          seconds per batch of a cluster, many thousand times over
    partition.py coarse.py      the best cuts for a given order; fewer cut points for the search
    reasons.py squeeze.py       why somebody is idle, or why nothing fits
    rings.py                    which tensors are averaged among whom
    ringorder.py links.py       in which order a ring is walked; how fast two providers are linked
    options.py                  what the requester may decide

Knows nothing about models, torch or files.
"""
