"""A stage package and the user's settings, put together into a stage that can work."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from ravnest.in_flight import least_in_flight
from ravnest.provider.averaging.share import Rules as AveragingRules
from ravnest.provider.averaging.share import Share
from ravnest.provider.compression import Compression
from ravnest.provider.compute.copies import copies_for
from ravnest.provider.compute.passes import Precision, StagePasses
from ravnest.provider.compute.randomness import StageRandomness, draws_numbers
from ravnest.provider.compute.updating import Updater, UpdateSettings
from ravnest.provider.compute.versions import WeightVersions
from ravnest.provider.leaf import Leaf, LeafSettings
from ravnest.provider.norms import GradientNorms
from ravnest.provider.runner import Observer, StageRunner
from ravnest.provider.schedule.pipeline import Rules, StageSchedule
from ravnest.provider.schedule.window import InFlightWindow, WindowLimits
from ravnest.provider.telemetry import Telemetry
from ravnest.provider.tied import TiedParameters
from ravnest.stage.matrices import hidden_matrices
from ravnest.stage.module import StageModule
from ravnest.stage.package import StagePackage, save_trained, settle_trained

Schedule = Literal["async", "sync"]


@dataclass(frozen=True)
class StageSettings:
    """How one stage trains."""

    update: UpdateSettings = field(default_factory=UpdateSettings)
    leaf: LeafSettings = field(default_factory=LeafSettings)
    schedule: Schedule = "async"
    micro_batches: int = 1
    max_versions: int = 2
    most_in_flight: int | None = None
    precision: Precision = field(default_factory=Precision)
    recompute: bool = False
    compile: bool = False
    averaging: AveragingRules | None = None
    """When to average with other clusters; None where there are none."""
    average_optim: bool = False
    compression: Compression = field(default_factory=Compression)


def build_runner(
    package: StagePackage,
    stage: StageModule,
    settings: StageSettings,
    observer: Observer,
    *,
    telemetry: Telemetry | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> StageRunner:
    graph = stage.graph
    limits = _window(graph.stage, graph.stages, settings)
    named = {
        name: tensor
        for name, tensor in stage.tensors().items()
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad
    }
    if settings.compile:
        stage.compile()
    versions = WeightVersions(stage)
    owned = [named[spec.name] for spec in graph.tensors if spec.owner and spec.name in named]
    clips = settings.update.clip_norm is not None
    sums_up = clips or settings.precision.may_overflow
    waits = sums_up if settings.schedule == "sync" else clips
    copies = copies_for(stage.device)
    kinds = hidden_matrices(graph)
    updater = Updater(
        versions,
        owned,
        settings.update,
        matrices={named[name]: kind for name, kind in kinds.items() if name in named},
        scale_adapts=settings.precision.adapts,
    )
    return StageRunner(
        passes=StagePasses(
            stage,
            versions,
            precision=settings.precision,
            recompute=settings.recompute,
            recovers=copies.is_apart,
            randomness=_randomness(package, stage),
        ),
        copies=copies,
        updater=updater,
        schedule=StageSchedule(
            Rules(
                is_last=graph.is_last,
                schedule=settings.schedule,
                max_versions=settings.max_versions,
                waits_for_permission=waits and not graph.is_first,
                synchronous_updates=1 if clips else 0,
                meets_every=None if settings.averaging is None else settings.averaging.meets_every,
            ),
            limit=limits.least,
        ),
        window=InFlightWindow(limits),
        tied=TiedParameters(graph, named),
        observer=observer,
        leaf=Leaf(settings.leaf, copies.place) if graph.is_last else None,
        saving=_Saving(package, stage),
        norms=GradientNorms(is_first=graph.is_first) if sums_up else None,
        share=_share(stage, named, updater, settings),
        compression=settings.compression,
        telemetry=telemetry,
        clock=clock,
    )


def _randomness(package: StagePackage, stage: StageModule) -> StageRandomness | None:
    if not draws_numbers(stage.graph):
        return None
    return StageRandomness(stage.device, package.manifest.cluster, stage.graph.stage)


def _share(
    stage: StageModule,
    named: dict[str, nn.Parameter],
    updater: Updater,
    settings: StageSettings,
) -> Share | None:
    if settings.averaging is None:
        return None
    return Share(
        stage,
        named,
        lambda: updater.optimizer,
        settings.averaging,
        average_optim=settings.average_optim,
    )


def _window(stage: int, stages: int, settings: StageSettings) -> WindowLimits:
    if stage == stages - 1:
        return WindowLimits(1, 1)
    least = least_in_flight(stage, stages, divided=settings.micro_batches > 1)
    spare = least - least_in_flight(stage, stages, divided=False)
    most = 8 * least if settings.most_in_flight is None else settings.most_in_flight
    return WindowLimits(min(least, most), most, spare)


@dataclass(frozen=True)
class _Saving:
    package: StagePackage
    stage: StageModule

    def save(self, token: str) -> None:
        save_trained(self.package, self.stage.tensors(), token)

    def settle(self) -> None:
        settle_trained(self.package)
