"""A model on its way from its owner to whoever plans it, for the tests of the handover."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pools import pool_entry
from torch import nn

from ravnest.plan import Plan, ProviderSpec
from ravnest.planning.handover import ModelCard, study_package, write_model
from ravnest.planning.handover.card import CARD
from ravnest.planning.planned import PlanRequest, plan_only, write_planned
from ravnest.planning.pool import parse_pool
from ravnest.planning.study import Study, study
from ravnest.rundir import RunDir
from ravnest.stage.files import entry_of
from ravnest.stage.local import LocalPipeline
from ravnest.stage.package import load_package

UNEQUAL = ({"gflops": 0.03}, {"gflops": 0.01}, {"gflops": 0.02, "bandwidth": 5_000}, {})


@dataclass(frozen=True)
class Handed:
    """Both ends of the way."""

    owners: Study
    card: ModelCard
    folder: Path
    taken: Study


def hand_over(
    model: nn.Module,
    args: Sequence[Any],
    folder: Path,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Handed:
    owners = study(model, args, kwargs)
    card = write_model(folder, owners, **options)
    return Handed(owners, card, folder, study_package(folder))


def pool(*figures: Mapping[str, Any]) -> list[ProviderSpec]:
    entries = {str(i): pool_entry(i, **dict(given)) for i, given in enumerate(figures or UNEQUAL)}
    return parse_pool(entries, "the pool of the test")


def plan_study(
    studied: Study, pool: Sequence[ProviderSpec], request: PlanRequest, run: RunDir
) -> Plan:
    """Found and written."""
    plan, _ = write_planned(plan_only(studied, pool, request), studied, request, run)
    return plan


def packages(studied: Study, folder: Path, **wishes: Any) -> tuple[Plan, LocalPipeline]:
    """The plan for four unequal machines and its first cluster, loaded from its files."""
    request = PlanRequest(max_clusters=1, idle_gain=1e6, **wishes)
    run = RunDir(folder)
    plan = plan_study(studied, pool(), request, run)
    cluster = plan.clusters[0]
    paths = [run.package_dir(cluster.id, stage.provider.address) for stage in cluster.stages]
    return plan, LocalPipeline([load_package(path).module() for path in paths])


def cut_everywhere(studied: Study) -> list[int]:
    return [at for at, place in enumerate(studied.places) if place is not None][1:-1]


def assert_same(owners: Study, taken: Study) -> None:
    """Everything that a plan, its packages and fusion are made from."""
    assert taken.places == owners.places
    assert list(taken.homes.items()) == list(owners.homes.items())
    assert (taken.train.rows, taken.evaluation.rows) == (owners.train.rows, owners.evaluation.rows)
    assert taken.names_of == owners.names_of
    assert taken.changing == owners.changing
    for cuts in ([], cut_everywhere(owners)):
        assert taken.stages(cuts) == owners.stages(cuts)
    for name, expected in vars(owners.costs).items():
        found = getattr(taken.costs, name)
        np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=name)
    for name, held in owners.held.items():
        if name in owners.homes:
            assert torch.equal(taken.held[name].tensor, held.tensor), name


def edit(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Falsify one JSON file, and make the manifest and the card fit it as its writer would."""
    path = folder / name
    document = json.loads(path.read_text())
    changed = change(document)
    path.write_text(json.dumps(document if changed is None else changed))
    restate(folder)


def restate(folder: Path) -> None:
    """Sizes and hashes of whatever lies there now."""
    for lists in ("manifest.json", CARD):
        document = json.loads((folder / lists).read_text())
        for entry in document["files"]:
            if (folder / entry["name"]).is_file():
                found = entry_of(folder / entry["name"])
                entry.update(size=found.size, sha256=found.sha256)
        (folder / lists).write_text(json.dumps(document))
