"""Put the trained stages of a cluster back together as one state_dict of the original model.

Every key of the original state_dict comes from the one stage that owns its tensor; tied names share
it. Stages that are missing, untrained, damaged, of another plan or of another save are named, not
papered over. If the last save was interrupted the one before, which all stages have, is used.
"""

import contextlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.errors import FusionError, PackageError
from ravnest.plan import PLAN_FORMAT, ClusterPlan, Plan
from ravnest.rundir import ModelIndex, RunDir
from ravnest.stage.checking import tensor_bytes
from ravnest.stage.graph import Versioned
from ravnest.stage.package import (
    TRAINED_MANIFEST,
    StagePackage,
    check_trained,
    load_package,
    load_weights,
    trained_saves,
)

logger = logging.getLogger("ravnest")

STATE_DICT = "trained_state_dict.pt"
SAFETENSORS = "trained_state_dict.safetensors"

_NAME_BYTES = 1000
"""What a name takes in both files together."""
_SAVES_OF_ONE_RUN_S = 600.0
"""Clusters of one run save right after their last round; a slow disk or a copy takes its time."""


def fuse_cluster(
    root: Path | str = "node_data",
    cluster_id: int = 0,
    output: Path | str = "trained",
    metadata: Mapping[str, str] | None = None,
    *,
    before_writing: Callable[[int], None] = lambda size: None,
) -> Path:
    """Write the fused state_dict, also as safetensors, and return the path of the former.

    `metadata` goes into the latter. `before_writing` is told about how many bytes there will be,
    before any weights are read, and may refuse.
    """
    run = RunDir(root)
    run.settle()
    plan, index = _read_plan(run)
    cluster = _cluster(plan, cluster_id)
    packages = _open_stages(run, plan, cluster)
    saves = _same_save(cluster, packages)
    sizes = {
        spec.name: tensor_bytes(spec)
        for package in packages
        for spec in package.graph.tensors
        if spec.owner
    }
    missing = [entry.tensor for entry in index.state if entry.tensor not in sizes]
    if missing:
        raise FusionError(f"no stage of cluster {cluster_id} owns the tensor {missing[0]!r}")
    before_writing(_written_bytes(index, sizes))
    owned = _owned_tensors(packages, saves)
    _warn_of_later_saves(run, plan, cluster)
    state = assemble(index, owned)
    return _write(state, Path(output), dict(metadata or {}))


def owning_stages(root: Path | str, cluster_id: int) -> dict[str, int]:
    """Every key of the original state_dict, and the stage of this cluster that owns its tensor."""
    run = RunDir(root)
    plan, index = _read_plan(run)
    packages = _open_stages(run, plan, _cluster(plan, cluster_id))
    owner = {
        spec.name: number
        for number, package in enumerate(packages)
        for spec in package.graph.tensors
        if spec.owner
    }
    return {entry.key: owner[entry.tensor] for entry in index.state if entry.tensor in owner}


@contextlib.contextmanager
def _naming(stage: int) -> Iterator[None]:
    """A `FusionError` is about this stage."""
    try:
        yield
    except FusionError as error:
        error.stage = stage
        raise


def _open_stages(run: RunDir, plan: Plan, cluster: ClusterPlan) -> list[StagePackage]:
    packages = []
    for number in range(len(cluster.stages)):
        with _naming(number):
            packages.append(_open_stage(run, plan, cluster, number))
    return packages


def _written_bytes(index: ModelIndex, sizes: Mapping[str, int]) -> int:
    """One file has tied tensors once, the other under every name."""
    named = sum(sizes[entry.tensor] + _NAME_BYTES for entry in index.state)
    return named + sum(sizes[tensor] for tensor in {entry.tensor for entry in index.state})


def assemble(
    index: ModelIndex, tensors: Mapping[str, torch.Tensor]
) -> "OrderedDict[str, torch.Tensor]":
    """A state_dict like the original's, format versions included."""
    state = OrderedDict((entry.key, tensors[entry.tensor]) for entry in index.state)
    versions = {path: {"version": version} for path, version in index.versions.items()}
    state._metadata = versions  # type: ignore[attr-defined]
    return state


def _read_plan(run: RunDir) -> tuple[Plan, ModelIndex]:
    try:
        content = run.plan_file.read_bytes()
        found = msgspec.json.decode(content, type=Versioned).format
        if found != PLAN_FORMAT:
            raise FusionError(
                f"the plan in {run.root} has format {found}; this release reads {PLAN_FORMAT}"
            )
        plan = msgspec.json.decode(content, type=Plan)
        index = msgspec.json.decode(run.model_file.read_bytes(), type=ModelIndex)
    except FileNotFoundError as error:
        raise FusionError(
            f"there is no plan in {run.root} ({Path(error.filename).name} is missing); "
            "run clusterize first, or name the folder it wrote to "
            "(node_data=…, ravnest fuse --node-data DIR)"
        ) from None
    except (OSError, *NOT_UNDERSTOOD) as error:
        raise FusionError(f"the plan in {run.root} cannot be read: {error}") from error
    if plan.plan_id != index.plan_id:
        raise FusionError(f"plan.json and model.json in {run.root} belong to different plans")
    return plan, index


def _cluster(plan: Plan, cluster_id: int) -> ClusterPlan:
    for cluster in plan.clusters:
        if cluster.id == cluster_id:
            return cluster
    known = ", ".join(str(cluster.id) for cluster in plan.clusters)
    raise FusionError(
        f"there is no cluster {cluster_id}; this plan has: {known} "
        "(cluster_id=…, ravnest fuse --cluster ID)"
    )


def _open_stage(run: RunDir, plan: Plan, cluster: ClusterPlan, number: int) -> StagePackage:
    stage = cluster.stages[number]
    who = f"stage {number} (node_{stage.provider.id}, {stage.provider.address})"
    path = run.package_dir(cluster.id, stage.provider.address)
    if not (path / TRAINED_MANIFEST).is_file():
        raise FusionError(
            f"{who} has no trained weights in {path}. Train with Trainer(save=True); if providers "
            "ran on other machines, copy their trained.json and trained-*.safetensors here first."
        )
    try:
        package = load_package(path)
    except PackageError as error:
        raise FusionError(f"{who} cannot be used: {error}") from error
    found = package.manifest
    if (found.plan_id, found.cluster, found.stage) != (plan.plan_id, cluster.id, number):
        raise FusionError(
            f"{path} holds stage {found.stage} of cluster {found.cluster}, plan {found.plan_id}; "
            f"expected {who} of cluster {cluster.id}, plan {plan.plan_id}"
        )
    try:
        check_trained(package)
    except PackageError as error:
        raise FusionError(f"{who} cannot be used: {error}") from error
    return package


def _same_save(cluster: ClusterPlan, packages: list[StagePackage]) -> list[Path]:
    """The trained files of all stages, of the last save that every stage has."""
    saves = [trained_saves(package) for package in packages]
    common = next((save for save in saves[0] if all(save in found for found in saves)), None)
    newest = [next(iter(found)) for found in saves]
    behind = [
        f"node_{stage.provider.id}"
        for stage, save in zip(cluster.stages, newest, strict=True)
        if save != newest[0]
    ]
    if common is None:
        error = FusionError(
            f"the trained stages are of different saves: {', '.join(behind)} and "
            f"node_{cluster.stages[0].provider.id} have none in common. Train and save again, or "
            "copy trained.json and trained-*.safetensors of one run from every provider."
        )
        error.stage = _odd_one_out(saves)
        raise error
    if behind:
        logger.warning(
            "the last save is not complete (%s and node_%s differ); the one before is fused",
            ", ".join(behind),
            cluster.stages[0].provider.id,
        )
    return [found[common] for found in saves]


def _odd_one_out(saves: list[dict[str, Path]]) -> int | None:
    """The stage without the save that all others have, if there are two others at least."""
    counted = Counter(save for found in saves for save in found)
    for save, times in counted.items():
        if times == len(saves) - 1 >= 2:
            return next(number for number, found in enumerate(saves) if save not in found)
    return None


def _warn_of_later_saves(run: RunDir, plan: Plan, fused: ClusterPlan) -> None:
    """Clusters that end together save together. One that saved long before another did not take
    part in what the other one trained last."""
    saved = {cluster.id: _saved_at(run, cluster) for cluster in plan.clusters}
    newest = max(saved, key=lambda cluster: saved[cluster])
    if saved[newest] - saved[fused.id] > _SAVES_OF_ONE_RUN_S:
        logger.warning(
            "cluster %d was last saved on %s, cluster %d on %s: it has trained without the other "
            "since. To have the newer weights, fuse cluster %d.",
            fused.id,
            _moment(saved[fused.id]),
            newest,
            _moment(saved[newest]),
            newest,
        )


def _saved_at(run: RunDir, cluster: ClusterPlan) -> float:
    """When the last save of this cluster was complete; 0 if it is not."""
    folders = [run.package_dir(cluster.id, stage.provider.address) for stage in cluster.stages]
    try:
        return max((folder / TRAINED_MANIFEST).stat().st_mtime for folder in folders)
    except OSError:
        return 0.0


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d at %H:%M", time.localtime(at))


def _owned_tensors(packages: list[StagePackage], files: list[Path]) -> dict[str, torch.Tensor]:
    owned: dict[str, torch.Tensor] = {}
    for number, (package, file) in enumerate(zip(packages, files, strict=True)):
        with _naming(number):
            try:
                weights = load_weights(file, package.graph)
            except PackageError as error:
                raise FusionError(str(error)) from error
        for spec in package.graph.tensors:
            if spec.owner:
                if spec.name in owned:
                    raise FusionError(f"two stages claim to own the tensor {spec.name!r}")
                owned[spec.name] = weights[spec.name]
    return owned


def _write(state: dict[str, torch.Tensor], folder: Path, metadata: dict[str, str]) -> Path:
    """Each file is complete before it takes the place of the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    pending = {name: folder / (name + ".new") for name in (SAFETENSORS, STATE_DICT)}
    try:
        torch.save(state, pending[STATE_DICT])
        save_file(_without_sharing(state), pending[SAFETENSORS], metadata or None)
        for name, path in pending.items():
            path.replace(folder / name)
    finally:
        for path in pending.values():
            path.unlink(missing_ok=True)
    return folder / STATE_DICT


def _without_sharing(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """safetensors wants every name to have memory of its own; tied names get a copy."""
    seen: set[int] = set()
    separate = {}
    for key, tensor in state.items():
        separate[key] = tensor.clone() if id(tensor) in seen else tensor
        seen.add(id(tensor))
    return separate
