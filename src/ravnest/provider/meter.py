"""Where the compute thread's time goes, and how old the weights are that it computes with."""

from dataclasses import dataclass

from ravnest.provider.telemetry import Totals


@dataclass
class Meter:
    """Counted since the stage began to work."""

    began: float
    busy_s: float = 0.0
    forwards: int = 0
    backwards: int = 0
    updates: int = 0
    staleness: int = 0
    """Sum over backwards of the updates that their weights lacked."""
    worst_staleness: int = 0
    batches: float = 0.0
    """Applied by updates; more than there were updates if some took several along."""
    rounds: int = 0
    """Of averaging with other clusters, over all rings of this stage."""
    epochs: int = 0
    """Orders that one has ended, carried out."""

    def __post_init__(self) -> None:
        self._told = (0.0, 0, 0, self.began, 0)

    def came_back(self, staleness: int) -> None:
        """A backward has been computed."""
        self.backwards += 1
        self.staleness += staleness
        self.worst_staleness = max(self.worst_staleness, staleness)

    def totals(self) -> Totals:
        """A copy; may be asked for by any thread."""
        return Totals(
            forwards=self.forwards,
            backwards=self.backwards,
            updates=self.updates,
            batches=self.batches,
            staleness=self.staleness,
            worst_staleness=self.worst_staleness,
            busy_s=self.busy_s,
            rounds=self.rounds,
            epochs=self.epochs,
        )

    def epoch(self, stage: int, now: float) -> dict[str, float]:
        """How the stage spent the time since the last epoch ended."""
        busy_s, backwards, staleness, then, rounds = self._told
        self._told = (self.busy_s, self.backwards, self.staleness, now, self.rounds)
        passes = max(self.backwards - backwards, 1)
        averaged = {f"rounds/{stage}": float(self.rounds - rounds)} if self.rounds else {}
        return {
            **averaged,
            f"busy/{stage}": (self.busy_s - busy_s) / max(now - then, 1e-9),
            f"staleness/{stage}": (self.staleness - staleness) / passes,
        }
