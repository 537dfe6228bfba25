"""How many micro-batches a pipeline keeps between their forward and their backward.

Planning finds room for as many as providers will keep, and divides batches by how many those are:
what both of them count by is here, once.
"""


def least_in_flight(stage: int, stages: int, *, divided: bool) -> int:
    """With links that take no time: one on this stage and on each behind it.

    Where batches are divided there is one to spare, because times vary. Whole batches in flight are
    old, and take much memory: none to spare of those.
    """
    if stage == stages - 1:
        return 1
    return stages - stage + (1 if divided else 0)


def parts_for(stages: int) -> int:
    """Into how many a batch is divided, so that no more than half of it lacks an update.

    When the last gradients of a batch come back to the first stage, all others that it has in
    flight are of the next batch, and were computed without the update that is made now.
    """
    if stages == 1:
        return 1
    return 2 * (least_in_flight(0, stages, divided=True) - 1)
