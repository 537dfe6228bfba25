"""What the roll call tells the ring to do."""

from dataclasses import dataclass

from ravnest.wire.messages import (
    RingBegin,
    RingCall,
    RingCancel,
    RingDone,
    RingGone,
    RingGot,
    RingWho,
    RingWish,
)

Message = RingWish | RingWho | RingCall | RingBegin | RingGot | RingDone | RingCancel | RingGone


@dataclass(frozen=True, slots=True)
class Send:
    to: int
    message: Message


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Keep the present values, at the next border between updates, and say `snapshot_taken`."""

    round: int
    fragment: int
    """0 for everything."""


@dataclass(frozen=True, slots=True)
class Start:
    """Exchange chunks with these members, of whom this is one."""

    round: int
    fragment: int
    members: tuple[int, ...]
    weights: tuple[float, ...]
    rows: tuple[float, ...]
    still: bool
    """Nobody trains: keep the mean itself."""
    last: bool
    moments: bool
    changes: bool


@dataclass(frozen=True, slots=True)
class Skip:
    """No mean this time; forget the snapshot."""

    round: int
    reason: str
    is_refused: bool = False
    """Ask again when the next one is due, not at once."""


@dataclass(frozen=True, slots=True)
class Release:
    """Nothing to wait for any more."""

    last: bool
    met: bool
    """All members have made the round that was waited for; else it could not be made."""


@dataclass(frozen=True, slots=True)
class Over:
    """There will be no more rounds."""

    reason: str
    is_mismatch: bool = False
    """Because the members want different things."""


Instruction = Send | TakeSnapshot | Start | Skip | Release | Over
