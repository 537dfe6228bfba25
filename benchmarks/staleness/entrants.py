"""Who competes, at what, and with which learning rates.

Everybody tries three rates, with all seeds. Pipelines are compared at the rate that is best for one
machine with their optimizer: that is what happens to somebody who knows a good rate and divides the
model.
"""

from dataclasses import dataclass
from typing import Literal

from ravnest.in_flight import least_in_flight
from ravnest.planning.costing.costs import Division

SEEDS = (0, 1, 2)
Task = Literal["text", "digits"]
ROWS: dict[Task, int] = {"text": 16, "digits": 64}
LEVELS: dict[Task, tuple[float, ...]] = {"text": (2.4, 2.3, 2.2, 2.1), "digits": (0.3, 0.2, 0.1)}
MOST_STEPS: dict[Task, int] = {"text": 400, "digits": 200}
LOOK_EVERY: dict[Task, int] = {"text": 10, "digits": 5}
_RATES: dict[tuple[Task, str], tuple[float, ...]] = {
    ("text", "momentum"): (0.03, 0.1, 0.3),
    ("text", "adamw"): (3e-3, 6e-3, 12e-3),
    ("text", "nadamw"): (3e-3, 6e-3, 12e-3),
    ("text", "muon"): (6e-3, 12e-3, 24e-3),
    ("digits", "adamw"): (1e-3, 2e-3, 4e-3),
    ("digits", "nadamw"): (1e-3, 2e-3, 4e-3),
    ("digits", "muon"): (2e-3, 4e-3, 8e-3),
}


@dataclass(frozen=True)
class Contestant:
    task: Task = "text"
    optimizer: str = "adamw"
    stages: int = 0
    """0 is plain PyTorch on one machine, which is what a synchronous pipeline computes."""
    whole: bool = False
    """Batches are not divided."""
    look_ahead: bool = True
    fewer: bool = False
    """A batch less in flight than it takes to keep all stages busy."""

    @property
    def name(self) -> str:
        if not self.stages:
            return f"{self.optimizer}, one machine"
        how = ", whole batches" if self.whole else ""
        ahead = "" if self.look_ahead else ", no look-ahead"
        fewer = ", one fewer in flight" if self.fewer else ""
        return f"{self.optimizer}, {self.stages} stages{how}{ahead}{fewer}"

    @property
    def parts(self) -> int:
        rows = ROWS[self.task]
        return Division(batch_rows=rows, least_rows=None if self.whole else 1).parts(self.stages)

    @property
    def most_in_flight(self) -> int | None:
        """On any stage; None is as many as it takes."""
        least = least_in_flight(0, self.stages, divided=not self.whole)
        return least - 1 if self.fewer else None

    @property
    def rates(self) -> tuple[float, ...]:
        return _RATES[self.task, self.optimizer]

    @property
    def alone(self) -> "Contestant":
        """Whom it is compared with, and whose best rate it takes."""
        return Contestant(self.task, self.optimizer)


@dataclass(frozen=True)
class Run:
    who: Contestant
    rate: float
    seed: int

    @property
    def file(self) -> str:
        who = self.who
        how = f"{who.stages}{'w' * who.whole}{'n' * (not who.look_ahead)}{'f' * who.fewer}"
        return f"{who.task}_{who.optimizer}_{how}_{self.rate:g}_{self.seed}.json"

    @property
    def cost(self) -> float:
        """How long it takes to compute, roughly."""
        return 1.0 + self.who.stages * self.who.parts


TEXT = [
    *(Contestant(optimizer=each) for each in ("momentum", "adamw", "nadamw", "muon")),
    *(Contestant(optimizer=each, stages=4) for each in ("momentum", "adamw", "nadamw", "muon")),
    *(Contestant(optimizer=each, stages=4, look_ahead=False) for each in ("adamw", "muon")),
    *(Contestant(optimizer=each, stages=8) for each in ("adamw", "nadamw", "muon")),
    *(Contestant(optimizer=each, stages=4, whole=True) for each in ("adamw", "muon")),
]
DIGITS = [
    *(
        Contestant("digits", each, stages, whole=stages > 0)
        for each in ("adamw", "nadamw", "muon")
        for stages in (0, 4, 5)
    ),
    *(Contestant("digits", stages=stages, whole=True, look_ahead=False) for stages in (4, 5)),
    *(Contestant("digits", stages=stages, whole=True, fewer=True) for stages in (4, 5)),
]
ALL = [*TEXT, *DIGITS]
