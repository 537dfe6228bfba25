"""Run an example as its README says: planned here, trained in real processes, fused here."""

import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ravnest import model_fusion
from ravnest.launch import launch, planned_nodes
from ravnest.ports import free_ports
from ravnest.rundir import RunDir

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Run:
    """What the providers of one run have left."""

    printed: str
    """With the provider's name in front of every line."""
    losses: list[float]

    @property
    def first(self) -> float:
        """Mean loss of the first tenth of the steps."""
        part = self.losses[: max(1, len(self.losses) // 10)]
        return sum(part) / len(part)

    @property
    def last(self) -> float:
        """Mean loss of the last tenth."""
        part = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(part) / len(part)

    def figures(self, pattern: str) -> list[float]:
        """The numbers in the one line that matches: only the Root prints it."""
        found = list(re.finditer(pattern, self.printed))
        assert len(found) == 1, self.printed
        return [float(figure) for figure in found[0].groups()]


class Example:
    """One example in a folder of its own; use the `example` fixture."""

    def __init__(self, name: str, folder: Path) -> None:
        self.script = EXAMPLES / name / "train.py"
        self.folder = folder
        (folder / "node_data").mkdir()
        pool = (self.script.parent / "node_data" / "node_configs.json").read_text("utf-8")
        (folder / "node_data" / "node_configs.json").write_text(with_free_ports(pool))

    def part(self, name: str) -> Any:
        """A function of the script, in this process."""
        return runpy.run_path(str(self.script))[name]

    def call(self, *arguments: str) -> None:
        """The script itself, in this process: `python train.py ARGUMENTS`."""
        self.part("main")(list(arguments))

    plan = call

    def train(self, *arguments: str, providers: int) -> Run:
        lines = []
        names = planned_nodes(RunDir(), providers)
        outcome = launch(
            [sys.executable, str(self.script), *arguments],
            names,
            environment={"OMP_NUM_THREADS": "1"},
            show=lambda name, line: lines.append(f"{name}: {line}"),
        )
        printed = "\n".join(lines)
        assert outcome.codes == dict.fromkeys(names, 0), printed
        losses = Path("losses.txt").read_text().splitlines()
        return Run(printed, [float(line) for line in losses])

    def fused(self, *arguments: str) -> torch.nn.Module:
        """The model as the script makes it, with the trained weights of all stages."""
        model = self.part("make_model")(self.part("parse")(list(arguments)))
        fresh = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(torch.load(model_fusion(), weights_only=True), strict=True)
        trained = dict(model.named_parameters())
        assert all(not torch.equal(fresh[name], value) for name, value in trained.items())
        return model.train(False)


def with_free_ports(pool: str) -> str:
    """The example's own pool; runs beside each other must not share ports."""
    ports = iter(free_ports(len(re.findall(r"127\.0\.0\.1:\d+", pool))))
    return re.sub(r"127\.0\.0\.1:\d+", lambda _: f"127.0.0.1:{next(ports)}", pool)
