"""Pool files, small models and folder snapshots for the tests of planning from end to end.

The models are tiny and the pools slow on purpose: with a few kFLOP per layer, machines of a few
MFLOP/s and fast links, computing decides and the planner spreads the layers over everybody.
"""

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ravnest.operations.utils import clusterize
from ravnest.plan import ClusterPlan, Plan, StagePlan
from ravnest.rundir import RunDir
from ravnest.stage.local import LocalPipeline
from ravnest.stage.package import StagePackage, load_package

FIGURES = {"ram": 1, "bandwidth": 10_000, "gflops": 0.01}


def pool_entry(number: int, **figures: Any) -> dict[str, Any]:
    return {"IP": f"10.0.0.{number}:{8080 + number}", "benchmarks": FIGURES | figures}


def write_pool(folder: Path, *providers: Mapping[str, Any] | int) -> Path:
    """A pool file in `folder` with these figures (ids 0, 1, …), or with so many equal providers."""
    if len(providers) == 1 and isinstance(providers[0], int):
        providers = ({},) * providers[0]
    folder.mkdir(parents=True, exist_ok=True)
    entries = {str(i): pool_entry(i, **dict(figures)) for i, figures in enumerate(providers)}
    (folder / "node_configs.json").write_text(json.dumps(entries))
    return folder


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every path below the folder with its content; None for folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"
    }


@dataclass(frozen=True)
class Planned:
    """What a call of `clusterize` left behind."""

    plan: Plan
    folder: Path
    printed: str

    def node(self, number: int) -> dict[str, Any]:
        return json.loads((self.folder / "nodes" / f"node_{number}.json").read_text())

    @property
    def addresses(self) -> list[list[str]]:
        """Of each cluster, in pipeline order."""
        return [[stage.provider.address for stage in c.stages] for c in self.plan.clusters]

    @property
    def stages(self) -> list[tuple[ClusterPlan, StagePlan]]:
        return [(cluster, stage) for cluster in self.plan.clusters for stage in cluster.stages]

    def package_folder(self, stage: int, cluster: int = 0) -> Path:
        return RunDir(self.folder).package_dir(cluster, self.addresses[cluster][stage])

    def packages(self, cluster: int = 0) -> list[StagePackage]:
        stages = range(len(self.addresses[cluster]))
        return [load_package(self.package_folder(stage, cluster)) for stage in stages]

    def pipeline(self, cluster: int = 0) -> LocalPipeline:
        return LocalPipeline([package.module() for package in self.packages(cluster)])


def run_clusterize(model: nn.Module, args: Any, folder: Path, **options: Any) -> Planned:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        plan = clusterize(model, args, node_data=folder, **options)
    return Planned(plan, folder, printed.getvalue())


class Mlp(nn.Module):
    """Layers in a row, which can be cut between any two of them."""

    def __init__(self, layers: int = 8, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Mixed(nn.Module):
    """What makes fusion hard: a tied pair, running statistics, a frozen and an unused parameter."""

    def __init__(self, words: int = 12, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.first = nn.Linear(width, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.frozen = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.unused = nn.Parameter(torch.randn(3))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(self.embed(words))).relu()
        return self.head(self.second(self.frozen(x).relu()))


def seeded(kind: type[nn.Module], *args: Any, seed: int = 0, **kwargs: Any) -> nn.Module:
    """The same weights every time, without touching the test's own generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind(*args, **kwargs)


def word_batches(count: int, rows: int = 8, words: int = 12) -> Sequence[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(words, (rows,), generator=generator) for _ in range(count)]
