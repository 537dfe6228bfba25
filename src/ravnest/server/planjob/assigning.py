"""A plan and a job, taken apart: what each provider gets, as files and as words.

Reads what planning has written, and needs no torch for it.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ravnest.api.jobs import DataSpec, JobSpec
from ravnest.api.limits import FileRef
from ravnest.api.work import Assignment, DataPart, Neighbour
from ravnest.data.dividing import divide, rows_of_cluster
from ravnest.plan import ClusterPlan, Plan, StagePlan
from ravnest.recipes.checking import input_fields, target_fields
from ravnest.rundir import RunDir
from ravnest.server.planjob.outcome import PARTS, PLACES, PlanOrder
from ravnest.server.state.records import part_id
from ravnest.stage.files import entry_of


def write_assignments(order: PlanOrder, plan: Plan, run: RunDir, folder: Path) -> None:
    """`parts/<provider>.json` for everybody, and where in this folder their files are."""
    places: dict[str, str] = {}
    (folder / PARTS).mkdir()
    for cluster in plan.clusters:
        for stage in cluster.stages:
            assignment = _assignment(order, plan, cluster, stage, run, folder, places)
            path = folder / PARTS / f"{stage.provider.id}.json"
            path.write_bytes(msgspec.json.encode(assignment))
    (folder / PLACES).write_bytes(msgspec.json.encode(places))


def _assignment(
    order: PlanOrder,
    plan: Plan,
    cluster: ClusterPlan,
    stage: StagePlan,
    run: RunDir,
    folder: Path,
    places: dict[str, str],
) -> Assignment:
    spec, provider, clusters = order.spec, stage.provider.id, len(plan.clusters)
    assert spec is not None
    train = _part(spec, spec.train, cluster, stage, clusters)
    validates = spec.validation is not None and cluster.id == 0
    validation = None
    if spec.validation is not None and validates:
        # All of it: only one cluster judges.
        validation = _part(spec, spec.validation, cluster, stage, 1)
    files = list(_own_files(run, cluster, stage, folder, places))
    for part in (train, validation):
        if part is not None:
            files += [file for shard in part.data.shards for file in shard.files]
    if spec.script is not None:
        files.append(spec.script.file)
    return Assignment(
        id=part_id(order.job, order.run, provider),
        job=order.job,
        job_name=spec.name,
        run=order.run,
        provider=provider,
        node=f"node_{provider}",
        cluster=cluster.id,
        clusters=clusters,
        stage=stage.index,
        stages=len(cluster.stages),
        role=stage.role,
        memory_bytes=stage.memory.total,
        files=tuple(files),
        neighbours=tuple(_neighbours(plan, cluster, stage)),
        train=train,
        train_rows=len(rows_of_cluster(spec.train.rows, cluster.id, clusters)),
        validation=validation,
        validates=validates,
        recipe=spec.recipe,
        script=spec.script,
        training=spec.training,
        epochs_done=order.epochs_done,
    )


def _part(
    spec: JobSpec, data: DataSpec, cluster: ClusterPlan, stage: StagePlan, clusters: int
) -> DataPart | None:
    """What this stage needs of a dataset: inputs at the beginning, targets at the end."""
    needed: list[str] = []
    if stage.index == 0:
        needed += input_fields(spec.recipe) if spec.recipe else [f.name for f in data.fields]
    if stage.index == len(cluster.stages) - 1:
        needed += target_fields(spec.recipe) if spec.recipe else [f.name for f in data.fields]
    if not needed:
        return None
    number = cluster.id if clusters > 1 else 0
    return divide(data, number, clusters, list(dict.fromkeys(needed)))


def _own_files(
    run: RunDir, cluster: ClusterPlan, stage: StagePlan, folder: Path, places: dict[str, str]
) -> Iterator[FileRef]:
    package = run.package_dir(cluster.id, stage.provider.address)
    found = {"node.json": run.node_file(stage.provider.id)}
    found |= {f"package/{path.name}": path for path in sorted(package.iterdir())}
    for name, path in found.items():
        entry = entry_of(path)
        places[entry.sha256] = path.relative_to(folder).as_posix()
        yield FileRef(path=name, sha256=entry.sha256, size=entry.size)


def _neighbours(plan: Plan, cluster: ClusterPlan, stage: StagePlan) -> Iterator[Neighbour]:
    """Those before and after it, and everybody in its rings."""
    found = {other.provider.id for other in cluster.stages if abs(other.index - stage.index) == 1}
    for ring in plan.rings:
        if ring.owners[cluster.id] == stage.provider.id:
            found |= set(ring.owners)
    found.discard(stage.provider.id)
    addresses = plan.addresses
    for provider in sorted(found):
        yield Neighbour(
            provider=provider, node=f"node_{provider}", plan_address=addresses[provider]
        )
