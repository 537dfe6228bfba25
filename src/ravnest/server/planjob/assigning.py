"""What each provider gets, as words: its job and what is planned, taken apart.

The server makes assignments itself. A foreign graph was at work in the process that planned: only
figures and names of files are taken over from it, as far as they fit what it was asked.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from ravnest.api.jobs import DataSpec, JobSpec
from ravnest.api.limits import FileRef
from ravnest.api.views import RingView
from ravnest.api.work import Assignment, DataPart, Neighbour
from ravnest.data.dividing import divide, rows_of_cluster
from ravnest.errors import JobError
from ravnest.recipes.checking import input_fields, target_fields
from ravnest.server.planjob.outcome import MadeFile, PlanOrder, PlanOutcome
from ravnest.server.state.records import PlanFacts, PlannedPart, node_name, part_id

NODE = "node.json"
PACKAGE = "package/"


def must_fit(
    order: PlanOrder, outcome: PlanOutcome, made: Mapping[int, Iterable[MadeFile]]
) -> None:
    """A `JobError` if a plan is none for this order."""
    facts = outcome.facts
    if facts is None:
        raise JobError("planning left no plan behind")
    providers = [part.provider for part in facts.parts]
    wrong = _what_is_wrong(order, facts)
    if not wrong and made.keys() != set(providers):
        wrong = "files for others than the providers of its parts"
    if not wrong and any(not _are_of_a_part(files) for files in made.values()):
        wrong = "files of a part that are called as none is"
    if not wrong and any(not set(ring.providers) <= set(providers) for ring in outcome.rings):
        wrong = "a ring with others than its providers"
    if wrong:
        raise JobError(f"planning left behind what is no plan for this: {wrong}")


def _what_is_wrong(order: PlanOrder, facts: PlanFacts) -> str:
    """Nothing, if these are the parts of a plan for the pool."""
    by_cluster: dict[int, list[PlannedPart]] = {}
    for part in facts.parts:
        by_cluster.setdefault(part.cluster, []).append(part)
    if facts.run != order.run:
        return f"it is for run {facts.run}"
    if not facts.parts:
        return "there are no parts"
    if max(Counter(part.provider for part in facts.parts).values()) > 1:
        return "a provider has two parts"
    if not {part.provider for part in facts.parts} <= {one.id for one in order.pool}:
        return "a provider is not in the pool"
    if sorted(by_cluster) != list(range(facts.clusters)):
        return "the clusters are not numbered one by one"
    for parts in by_cluster.values():
        if sorted(part.stage for part in parts) != list(range(len(parts))):
            return "the stages of a cluster are not numbered one by one"
        if any(part.role != _role(part.stage, len(parts)) for part in parts):
            return "a stage has the role of another"
    if any(part.node != node_name(part.provider) for part in facts.parts):
        return "a node has the name of another"
    return ""


def _role(stage: int, stages: int) -> str:
    if stage == 0:
        return "Root"
    return "Leaf" if stage == stages - 1 else "Stem"


def _are_of_a_part(made: Iterable[MadeFile]) -> bool:
    names = [each.file.path for each in made]
    return len(set(names)) == len(names) and all(
        name == NODE or name.startswith(PACKAGE) for name in names
    )


def assignments(
    order: PlanOrder, outcome: PlanOutcome, made: Mapping[int, Iterable[MadeFile]]
) -> Iterator[Assignment]:
    """Of a plan that fits. Each provider's files are those of its part, and all shards in which its
    cluster has rows."""
    assert outcome.facts is not None
    parts = sorted(outcome.facts.parts, key=lambda part: (part.cluster, part.stage))
    for _, group in groupby(parts, key=lambda part: part.cluster):
        cluster = tuple(group)
        for part in cluster:
            own = [each.file for each in made[part.provider]]
            yield _assignment(order, outcome, cluster, part, own)


def _assignment(
    order: PlanOrder,
    outcome: PlanOutcome,
    cluster: tuple[PlannedPart, ...],
    part: PlannedPart,
    files: list[FileRef],
) -> Assignment:
    spec, facts = order.spec, outcome.facts
    assert spec is not None
    assert facts is not None
    clusters, stages = facts.clusters, len(cluster)
    train = _part(spec, spec.train, part, stages, clusters)
    validates = spec.validation is not None and part.cluster == 0
    validation = None
    if spec.validation is not None and validates:
        # All of it: only one cluster judges.
        validation = _part(spec, spec.validation, part, stages, 1)
    for rows in (train, validation):
        if rows is not None:
            files += [file for shard in rows.data.shards for file in shard.files]
    if spec.script is not None:
        files.append(spec.script.file)
    return Assignment(
        id=part_id(order.job, order.run, part.provider),
        job=order.job,
        job_name=spec.name,
        run=order.run,
        provider=part.provider,
        node=part.node,
        cluster=part.cluster,
        clusters=clusters,
        stage=part.stage,
        stages=stages,
        role=part.role,
        memory_bytes=part.memory_bytes,
        files=tuple(files),
        neighbours=tuple(_neighbours(order, cluster, part, outcome.rings)),
        train=train,
        train_rows=len(rows_of_cluster(spec.train.rows, part.cluster, clusters)),
        validation=validation,
        validates=validates,
        recipe=spec.recipe,
        script=spec.script,
        training=spec.training,
        epochs_done=order.epochs_done,
    )


def _part(
    spec: JobSpec, data: DataSpec, part: PlannedPart, stages: int, clusters: int
) -> DataPart | None:
    """What this stage needs of a dataset: inputs at the beginning, targets at the end."""
    needed: list[str] = []
    if part.stage == 0:
        needed += input_fields(spec.recipe) if spec.recipe else [f.name for f in data.fields]
    if part.stage == stages - 1:
        needed += target_fields(spec.recipe) if spec.recipe else [f.name for f in data.fields]
    if not needed:
        return None
    number = part.cluster if clusters > 1 else 0
    return divide(data, number, clusters, list(dict.fromkeys(needed)))


def _neighbours(
    order: PlanOrder,
    cluster: tuple[PlannedPart, ...],
    part: PlannedPart,
    rings: tuple[RingView, ...],
) -> Iterator[Neighbour]:
    """Those before and after it, and everybody in its rings."""
    found = {other.provider for other in cluster if abs(other.stage - part.stage) == 1}
    for ring in rings:
        if part.provider in ring.providers:
            found |= set(ring.providers)
    found.discard(part.provider)
    addresses = {one.id: one.address for one in order.pool}
    for provider in sorted(found):
        yield Neighbour(
            provider=provider, node=node_name(provider), plan_address=addresses[provider]
        )
