"""How a provider averages with the other clusters."""

from dataclasses import dataclass
from typing import Literal

from ravnest.errors import NodeError
from ravnest.provider.averaging.outer import Nesterov
from ravnest.provider.options import made_with, positive, positive_number, seconds


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """What the user may say about rounds; the same for all providers of a run.

    Seconds may be `math.inf`: no limit.
    """

    mode: Literal["background", "blocking"] = "background"
    """`background`: training goes on while a mean is made. `blocking`: all clusters stop at the
    same number of updates, wait for each other, and go on from the same weights."""
    outer: Nesterov | None = None
    """An optimizer over rounds; None takes the plain mean."""
    fragments: int = 1
    """Into so many parts a ring's tensors are divided, which are averaged in turn: as many times
    the rounds, each with so much less to send."""
    most_mbps: float | None = None
    """What rounds may send at most, in Mbit/s; None for as much as the links carry."""
    connect_s: float = 1200.0
    """How long providers of other clusters may take to come up, from the start of this one."""
    resume_s: float = 60.0
    """How long a broken connection to one of them may take to come back. Nothing waits for it but
    rounds, and a member that has been given up does not come back."""
    round_s: float = 600.0
    """A round that takes longer is given up."""
    wait_s: float = 86400.0
    """How long to stand still for other clusters, in blocking mode and before the last round."""
    most_rows: int | None = None
    """Rows that a cluster can have trained on in the whole run; one that says more is left out.
    None: not known. The server knows, and says so to its workers."""

    def __post_init__(self) -> None:
        if self.mode not in ("background", "blocking"):
            raise NodeError(f"mode is {self.mode!r}; expected 'background' or 'blocking'")
        made_with(Nesterov, "outer", self.outer)
        positive("fragments", self.fragments)
        positive_number("most_mbps", self.most_mbps)
        positive_number("most_rows", self.most_rows)
        for name in ("connect_s", "resume_s", "round_s", "wait_s"):
            seconds(name, getattr(self, name))
