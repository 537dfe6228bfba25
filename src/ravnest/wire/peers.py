"""Who talks to whom, and how long they wait for each other. Plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a neighbour."""

    connect_s: float = 120.0
    """For its first sign of life."""
    resume_s: float = 10.0
    """For a broken stream to come back."""
    nobody_s: float = 3.0
    """The same, while the neighbour's machine says that nothing listens there any more."""
    hello_s: float = 10.0
    retry_s: float = 0.1
    """Before the first try after a failed one; doubles up to a second."""
    ack_s: float = 0.02
    """How long an acknowledgement may wait for a frame to ride on."""
    life_s: float = 3.0
    """Without anything to say; then a sign of life is sent."""
    silence_s: float = 30.0
    """Without hearing anything; then the stream counts as broken. A chunk that is under way is not
    heard before it is whole, and on a thin line that takes its time."""
    report_s: float = 5.0
    """Between log lines that say for whom we wait."""
    stall_s: float = 1800.0
    """For an answer of a neighbour that is there, and may only be slow."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What this process says of itself at the beginning of a stream."""

    run: str
    node: str
    session: str


@dataclass(frozen=True, slots=True)
class Peer:
    node: str
    address: str

    def __str__(self) -> str:
        return f"{self.node} ({self.address})"
