"""Who competes, and with which learning rates.

Small batches have one choice of rates, large ones another. The one that is first at the lowest loss
with the first seed is the contestant's; the other seeds have no say in it.
"""

from dataclasses import dataclass, replace

ROWS = 2
"""Of a cluster's batch. So few that noise is what limits the learning rate: only then can averaging
over clusters, which does nothing but take away noise, save steps."""
LARGE = 16 * ROWS
"""A batch that has little noise left to take away."""
SEEDS = (0, 1, 2)

_RATES = (1e-3, 2e-3, 4e-3, 8e-3)
_RATES_OF_LARGE = (4e-3, 8e-3, 12e-3, 16e-3, 24e-3)

_MOST_STEPS = {2: 4000, 4: 2000, 8: 1200, 32: 600, 128: 300}
"""By the rows of all clusters' batches: by then it has got there, or never will."""


@dataclass(frozen=True)
class Contestant:
    clusters: int = 1
    stages: int = 0
    """0 is plain PyTorch on one machine."""
    rows: int = ROWS
    """Of a batch of one cluster."""
    optimizer: str = "adamw"
    every: int = 4
    """Updates between rounds."""
    codec: str = ""
    """Of rounds."""

    @property
    def name(self) -> str:
        rest = "" if self.rows == ROWS else f", batches of {self.rows}"
        rest += "" if self.optimizer == "adamw" else f", {self.optimizer}"
        rest += "" if self.every == 4 else f", a round every {self.every}"
        rest += f", {self.codec}" if self.codec else ""
        if not self.stages:
            return f"one machine{rest}"
        many = "1 cluster" if self.clusters == 1 else f"{self.clusters} clusters"
        return f"{many} of {self.stages}{rest}"

    @property
    def rows_per_step(self) -> int:
        return self.clusters * self.rows

    @property
    def most_steps(self) -> int:
        return _MOST_STEPS[self.rows_per_step]

    @property
    def rates(self) -> tuple[float, ...]:
        return _RATES_OF_LARGE if self.rows >= LARGE else _RATES

    @property
    def rated_as(self) -> "Contestant":
        """Whose rate it takes: four stages take that of two, which is found in half the time."""
        return replace(self, stages=2) if self.stages == 4 else self


@dataclass(frozen=True)
class Run:
    who: Contestant
    rate: float
    seed: int

    @property
    def file(self) -> str:
        who = self.who
        where = f"{who.clusters}x{who.stages}_{who.rows}"
        where += f"_{who.every}{who.codec}" if who.clusters > 1 else ""
        return f"{who.optimizer}_{where}_{self.rate:g}_{self.seed}.json"

    @property
    def cost(self) -> float:
        """How long it takes to compute, roughly."""
        return self.who.most_steps * self.who.clusters * (1 + self.who.stages)


ALONE = Contestant()
PLAIN = [ALONE, *(Contestant(rows=rows) for rows in (2 * ROWS, 4 * ROWS, LARGE, 4 * LARGE))]
CLUSTERS = [Contestant(clusters, stages) for stages in (2, 4) for clusters in (1, 2, 4)]
LARGE_CLUSTERS = [
    Contestant(4, 2, LARGE),
    Contestant(4, 2, LARGE, every=1),
    Contestant(4, 2, LARGE, every=1, codec="int8"),  # as many bytes as every 4 without a codec
]
MUON = [
    replace(who, optimizer="muon")
    for who in (Contestant(rows=LARGE), Contestant(rows=4 * LARGE), *LARGE_CLUSTERS)
]
ALL = [*PLAIN, *CLUSTERS, *LARGE_CLUSTERS, *MUON]
