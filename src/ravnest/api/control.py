"""The control channel between a provider's agent and the server: one WebSocket, JSON messages.

Every message may be said again after a broken connection; both sides take it as said once. The
server sends nothing that an agent must obey blindly: an agent may refuse an assignment.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ravnest.api.limits import (
    Address,
    Bytes,
    Figure,
    FileRef,
    Fraction,
    Identifier,
    Name,
    ProviderId,
    Reasoned,
    Seconds,
    Strict,
    Text,
)
from ravnest.api.machine import Caps, Figures, MachineFacts
from ravnest.api.work import Assignment, WorkEnd, WorkReport

AgentState = Literal["idle", "preparing", "ready", "training", "returning", "paused", "resting"]
"""returning: its worker has ended, results are being brought back. resting: outside its hours."""


class ToServer(Strict, frozen=True, kw_only=True, tag_field="type"):
    pass


class ToAgent(Strict, frozen=True, kw_only=True, tag_field="type"):
    pass


# ---- agent → server ----


class Hello(ToServer, frozen=True, kw_only=True, tag="hello"):
    """First on every connection; what the server has missed follows from it."""

    protocol: int
    facts: MachineFacts
    caps: Caps
    state: AgentState
    assignment: Identifier | None = None
    """What it is at work on, with its state above."""
    paused: bool = False
    """It takes no new work, as far as it knows."""
    name: Name | None = None
    """What its owner wants it to be called, if that was said: it may have changed."""


class Beat(ToServer, frozen=True, kw_only=True, tag="beat"):
    """Every few seconds."""

    state: AgentState
    assignment: Identifier | None = None
    paused: bool = False
    """It takes no new work; what it is at, by its state, goes on."""
    memory_free_bytes: Bytes = 0
    worker_memory_bytes: Bytes = 0
    cpu: Fraction = 0.0
    """Of all cores, since the last one."""


class Measured(ToServer, frozen=True, kw_only=True, tag="measured"):
    figures: Figures


class Prepared(ToServer, frozen=True, kw_only=True, tag="prepared"):
    """Everything is on disk and checked, and every neighbour has a path."""

    assignment: Identifier
    relayed: Annotated[tuple[ProviderId, ...], Meta(max_length=100_000)] = ()
    """Neighbours that can be reached through the server only."""


class Reported(ToServer, frozen=True, kw_only=True, tag="report"):
    assignment: Identifier
    report: WorkReport


class Ended(ToServer, frozen=True, kw_only=True, tag="ended"):
    """The worker has ended and, if it saved, its files have been uploaded. Said until settled."""

    assignment: Identifier
    end: WorkEnd
    results: Annotated[tuple[FileRef, ...], Meta(max_length=64)] = ()


class Refused(ToServer, Reasoned, frozen=True, kw_only=True, tag="refused"):
    """The agent does not take an assignment, or cannot prepare it."""

    assignment: Identifier
    reason: Text
    lasting: bool = True
    """It would say the same of this job tomorrow. A full disk, a pause or a broken line pass."""


class Leaving(ToServer, Reasoned, frozen=True, kw_only=True, tag="leaving"):
    """The agent ends. Work that it has is stopped in good order first unless `now`."""

    now: bool = False


# ---- server → agent ----


class PeerAddress(Strict, frozen=True, kw_only=True):
    provider: ProviderId
    addresses: Annotated[tuple[Address, ...], Meta(max_length=16)]


class Welcome(ToAgent, frozen=True, kw_only=True, tag="welcome"):
    provider: ProviderId
    name: Name
    now: Seconds
    """By the server's clock; the agent measures the offset."""
    heartbeat_s: Figure
    report_s: Figure


class Probe(ToAgent, frozen=True, kw_only=True, tag="probe"):
    """Measure the links to these, and tell."""

    peers: Annotated[tuple[PeerAddress, ...], Meta(max_length=64)]


class Admit(ToAgent, frozen=True, kw_only=True, tag="admit"):
    """That provider will call, to measure the line: answer it for so long. 0: do not answer it any
    more, its certificate is revoked."""

    provider: ProviderId
    seconds: Figure


class Assign(ToAgent, frozen=True, kw_only=True, tag="assign"):
    """Fetch, check, find paths, say `Prepared`. Again for one that is known: no change."""

    assignment: Assignment


class Begin(ToAgent, frozen=True, kw_only=True, tag="begin"):
    """All providers of the run are prepared: start the worker."""

    assignment: Identifier


class Steer(ToAgent, Reasoned, frozen=True, kw_only=True, tag="steer"):
    """stop: save and end in good order. pause, resume: feed no batches meanwhile. drop: end at
    once, nothing is to be brought back."""

    assignment: Identifier
    action: Literal["stop", "pause", "resume", "drop"]


class Settled(ToAgent, frozen=True, kw_only=True, tag="settled"):
    """The server has everything of this assignment; forget it."""

    assignment: Identifier


class Incoming(ToAgent, frozen=True, kw_only=True, tag="incoming"):
    """Another provider of the same run calls through the relay: accept at /relay/accept/<call>."""

    call: Identifier
    caller: ProviderId
    assignment: Identifier


class SetPause(ToAgent, frozen=True, kw_only=True, tag="set_pause"):
    """The owner (or the operator) pauses or resumes this provider from elsewhere."""

    paused: bool


class Rejected(ToAgent, Reasoned, frozen=True, kw_only=True, tag="rejected"):
    """The last thing said on a connection."""

    reason: Text
    final: bool
    """True: do not come back with this identity."""


HAS_LEFT = "this provider has left"
"""The reason of a final `Rejected` that is no fault: the provider's owner has asked for it."""


FromAgent = Hello | Beat | Measured | Prepared | Reported | Ended | Refused | Leaving
FromServer = (
    Welcome | Probe | Admit | Assign | Begin | Steer | Settled | Incoming | SetPause | Rejected
)

agent_decoder: msgspec.json.Decoder[FromAgent] = msgspec.json.Decoder(FromAgent)
server_decoder: msgspec.json.Decoder[FromServer] = msgspec.json.Decoder(FromServer)
