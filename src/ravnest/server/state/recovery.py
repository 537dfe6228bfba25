"""What becomes of the others when one provider's part of a run is lost.

For now a run does not outlive a loss. The cluster that has lost a stage cannot even save what it
has; other clusters hold the whole model and can, so they are stopped in good order, and the job
goes on from their weights in a new run. Whoever teaches runs to go on without a provider changes
`after_loss`, and nothing else has to know.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ravnest.server.state.records import Job, Killer, Part, Run
from ravnest.server.state.words import counted


@dataclass(frozen=True)
class Losses:
    stop: bool
    """Others are to save and end in good order."""
    drop: tuple[Part, ...]
    """To end at once."""


def after_loss(run: Run, parts: Iterable[Part], lost: Part) -> Losses:
    others = [part for part in parts if part.is_open and part is not lost]
    if run.state == "preparing":
        return Losses(stop=False, drop=tuple(others))
    mates = tuple(part for part in others if part.cluster == lost.cluster)
    return Losses(stop=len(mates) < len(others), drop=mates)


def brought_back(parts: Iterable[Part]) -> dict[int, list[Part]]:
    """The clusters of which every stage has come back, and their stages."""
    clusters: dict[int, list[Part]] = {}
    for part in parts:
        clusters.setdefault(part.cluster, []).append(part)
    return {
        id: stages for id, stages in clusters.items() if all(part.has_results for part in stages)
    }


def fusible(parts: Iterable[Part]) -> int | None:
    """The cluster whose stages have all been brought back; of several the one that the fewest
    others have seen to spoil a round, and of those the one that is furthest."""
    parts = list(parts)
    against = {
        (distrusted, part.cluster)
        for part in parts
        if part.end is not None
        for distrusted in part.end.distrusts
        if distrusted != part.cluster
    }
    accusers = Counter(distrusted for distrusted, _ in against)
    whole = brought_back(parts)
    return max(whole, key=lambda id: (-accusers[id], epochs_of(whole[id]), -id), default=None)


def epochs_of(parts: Iterable[Part]) -> int:
    """How often all of these have been through their rows. Clusters are not equally fast: what
    only the fastest has done has not been done with the others' rows."""
    return min((part.end.epochs_done if part.end else 0 for part in parts), default=0)


def is_done(parts: Iterable[Part]) -> bool:
    """Whether these have trained to the end."""
    return all(part.end is not None and part.end.outcome == "done" for part in parts)


def what_is_missing(run: Run, parts: Iterable[Part], kept: Collection[int]) -> str:
    """Of a job that is done: whose rows were not learned to the end, and why."""
    if run.unfusible:
        return f"the stages of cluster {run.unfusible[0]} could not be put together"
    lost = sorted({part.cluster for part in parts} - set(kept))
    if not lost:
        return ""
    names = ", ".join(map(str, lost))
    who = f"cluster {names} was" if len(lost) == 1 else f"clusters {names} were"
    return f"{who} lost on the way{f': {run.cause}' if run.cause else ''}"


_KILLED = 2


def why_dangerous(killer: Killer) -> str:
    """Of a graph that has killed workers on several machines: then it is not the machines. One may
    have had too little memory, or be broken. Nothing for all others."""
    if len(killer.workers) < _KILLED:
        return ""
    machines = counted(len(killer.workers), "machine")
    how = "; ".join(killer.workers.values())
    return f"it has killed its workers on {machines} and is sent to no other: {how}"


def gives_up(job: Job) -> bool:
    """Whether a job that has lost its run again is not tried any more."""
    return job.lost_runs >= job.max_runs
