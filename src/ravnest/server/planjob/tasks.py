"""The three tasks: is this model acceptable, how is it divided, what has become of it."""

import os
import shutil
from pathlib import Path

import msgspec

from ravnest.api.jobs import Named
from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.api.views import PlanView, RingView
from ravnest.data.legend import as_metadata
from ravnest.errors import JobError
from ravnest.plan import Plan
from ravnest.planning.fusion import SAFETENSORS, STATE_DICT, fuse_cluster, owning_stages
from ravnest.planning.handover import study_package, take_model
from ravnest.planning.planned import PlanRequest, plan_only, write_planned
from ravnest.planning.report import render_report
from ravnest.recipes.optimizers import optimizer_memory
from ravnest.rundir import RunDir
from ravnest.server.folders import HELD_OUT
from ravnest.server.planjob.fitting import check_inputs, check_losses
from ravnest.server.planjob.outcome import (
    FRESH,
    MADE,
    NODE_DATA,
    ORDER,
    SPARE,
    PlanOrder,
    PlanOutcome,
)
from ravnest.server.planjob.packages import write_made
from ravnest.server.planjob.validating import stage_not_finite, validate
from ravnest.server.room import SPARE_BYTES, leave_room
from ravnest.server.state.records import PlanFacts, PlannedPart, Validation, node_name
from ravnest.stage.files import sha256_of
from ravnest.stage.package import GRAPH, WEIGHTS
from ravnest.whole import sync_files


def check(order: PlanOrder, folder: Path) -> PlanOutcome:
    """The files of the model, its operators, and whether the recipe feeds what it takes."""
    spec = order.spec
    assert spec is not None
    taken = take_model(Path(order.model))
    if spec.recipe is not None:
        datasets = [data for data in (spec.train, spec.validation) if data is not None]
        for data in datasets:
            check_inputs(spec.recipe, data, taken.graph)
        check_losses(spec.recipe, datasets, taken.graph, spec.training.batch_size)
    fixed = taken.graph.static_batch
    if fixed is not None and fixed != spec.training.batch_size:
        raise JobError(
            f"the model was captured for batches of exactly {fixed} rows, and batch_size is "
            f"{spec.training.batch_size}"
        )
    return PlanOutcome()


def plan(order: PlanOrder, folder: Path) -> PlanOutcome:
    spec = order.spec
    assert spec is not None
    wanted = spec.planning
    # A cluster without a whole batch would hold up the others.
    most = max(1, spec.train.rows // spec.training.batch_size)
    # What a script trains with is not known; most use Adam.
    optimizer = spec.recipe.optimizer if spec.recipe is not None else Named(name="adam")
    request = PlanRequest(
        min_cluster_size=wanted.min_cluster_size,
        max_clusters=min(wanted.max_clusters or most, most),
        idle_gain=wanted.idle_gain,
        micro_batches=wanted.micro_batches,
        optimizer_factor=optimizer_memory(optimizer),
    )
    # Before the long part: there is no plan that takes less.
    _leave_room(folder, _written_bytes(order, 1, folder) + order.reserve_bytes)
    weights = Path(order.weights) if order.weights else None
    # How many rows a script takes at a time is not known.
    rows = spec.training.batch_size if spec.recipe is not None else None
    studied = study_package(Path(order.model), weights=weights, rows=rows)
    run = RunDir(folder / NODE_DATA)
    made = plan_only(studied, order.pool, request)
    _leave_room(folder, _written_bytes(order, len(made.clusters), folder) + order.reserve_bytes)
    try:
        made, _ = write_planned(made, studied, request, run)
        write_made(made, run, folder)
        # The server records that there is a plan as soon as this has ended.
        sync_files(folder)
    except BaseException:
        # Whatever it was for, nobody has room for half a plan.
        shutil.rmtree(run.root, ignore_errors=True)
        (folder / MADE).unlink(missing_ok=True)
        raise
    return PlanOutcome(
        facts=_facts(order, made),
        view=_view(made, order.names),
        rings=_rings(made),
        warnings=made.warnings,
    )


def _leave_room(folder: Path, size: int) -> None:
    leave_room(folder, size, int(os.environ.get(SPARE, SPARE_BYTES)))


def _written_bytes(order: PlanOrder, clusters: int, folder: Path) -> int:
    """About: every cluster gets the whole model, and its ends get what the order says of data."""
    sizes = {path.name: path.stat().st_size for path in Path(order.model).iterdir()}
    model = sizes.get(WEIGHTS, 0) + 2 * sizes.get(GRAPH, 0)
    return clusters * model + 8 * (folder / ORDER).stat().st_size


def _facts(order: PlanOrder, made: Plan) -> PlanFacts:
    return PlanFacts(
        run=order.run,
        parts=tuple(
            PlannedPart(
                provider=stage.provider.id,
                node=node_name(stage.provider.id),
                cluster=cluster.id,
                stage=stage.index,
                role=stage.role,
                parameters=stage.parameters,
                memory_bytes=stage.memory.total,
                compute_s=stage.compute_s,
            )
            for cluster in made.clusters
            for stage in cluster.stages
        ),
        parameters=made.model.parameters,
        clusters=len(made.clusters),
        steps_per_s=made.steps_per_s,
    )


def _view(made: Plan, names: dict[int, str]) -> PlanView:
    return PlanView(
        steps_per_s=made.steps_per_s,
        single_machine_steps_per_s=1 / made.single_machine_s if made.single_machine_s > 0 else 0.0,
        batch_size=made.model.batch_size,
        parameters=made.model.parameters,
        model=made.model.name,
        clusters=len(made.clusters),
        providers=len(made.addresses),
        idle=tuple((idle.provider.id, idle.reason) for idle in made.idle),
        warnings=made.warnings,
        report=render_report(made, names),
    )


def _rings(made: Plan) -> tuple[RingView, ...]:
    if len(made.clusters) == 1:
        return ()
    return tuple(
        RingView(
            id=ring.id,
            first_parameter=ring.first_parameter,
            bytes=ring.bytes,
            providers=tuple(ring.owners[cluster] for cluster in ring.walk),
        )
        for ring in made.rings
    )


def fuse(order: PlanOrder, folder: Path) -> PlanOutcome:
    """What the providers of a cluster have brought back, as one model, and how good it is. The
    server puts it in place."""
    run, fresh = RunDir(order.model), folder / FRESH
    planned = _planned(run.root.parent / ORDER)
    legend = as_metadata(planned.spec.legend if planned.spec is not None else None)
    try:
        fuse_cluster(
            *(run.root, order.cluster, fresh, legend),
            before_writing=lambda size: _leave_room(folder, size),
        )
        for name in (SAFETENSORS, STATE_DICT):
            (fresh / f"{name}.sha256").write_text(sha256_of(fresh / name))
        validation = _validated(planned, run.root.parent, fresh, Path(order.output))
        stage = None
        if validation.not_finite:
            stage = stage_not_finite(fresh / SAFETENSORS, owning_stages(run.root, order.cluster))
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return PlanOutcome(validation=validation, stage=stage)


def _planned(path: Path) -> PlanOrder:
    """The order by which this run was planned, which holds the whole job."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=PlanOrder)
    except (OSError, *NOT_UNDERSTOOD):
        return PlanOrder(task="plan")  # weights are worth more than their legend


def _validated(planned: PlanOrder, run: Path, fresh: Path, output: Path) -> Validation:
    if not planned.model:
        return Validation(note="it is not known any more what was planned")
    last = output / SAFETENSORS
    return validate(
        planned.spec,
        Path(planned.model),
        run / HELD_OUT,
        fresh / SAFETENSORS,
        last if last.is_file() else None,
    )
