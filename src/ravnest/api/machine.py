"""What a provider's agent tells about its machine, and what it allows."""

from typing import Annotated, Literal

from msgspec import Meta, field

from ravnest.api.limits import Address, Bytes, Figure, Label, Name, ProviderId, Strict

Hours = Annotated[
    str, Meta(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9]$(?!\n)")
]
"""Of the day, local time; may pass midnight: 22:00-07:00."""


def provider_name(provider: int) -> str:
    """In certificates, addresses of plans, and for people who have to tell machines apart."""
    return f"provider-{provider}"


Precision = Literal["bf16", "fp16"]
"""In which a job computes, where it is not single precision."""
PRECISIONS: frozenset[Precision] = frozenset({"bf16", "fp16"})

ScriptConsent = Literal["never", "sandboxed", "always"]
"""Whether foreign Python may run here: not at all, only inside a sandbox, or in any case."""


class MachineFacts(Strict, frozen=True, kw_only=True):
    """What does not change while the agent runs."""

    hostname: Name
    system: Label
    python: Label
    torch: Label
    ravnest: Label
    cores: Annotated[int, Meta(ge=1, le=100_000)]
    memory_bytes: Bytes
    device: Label = "cpu"
    """What the worker will compute on: cpu, cuda:0, mps."""
    device_name: Label = ""
    device_memory_bytes: Bytes = 0
    no_sandbox: Label = ""
    """Why foreign graphs run here without a sandbox; empty if they run in one."""


class Caps(Strict, frozen=True, kw_only=True, omit_defaults=True):
    """What the owner of the machine allows; None is no limit of theirs. A server of an earlier
    release knows those that it knows."""

    memory_bytes: Bytes | None = None
    """Of the machine's."""
    device_memory_bytes: Bytes | None = None
    """Of a device that has memory of its own."""
    threads: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    bandwidth_mbps: Figure | None = None
    hours: Hours | None = None
    scripts: ScriptConsent = "never"
    lan: bool = False
    """This machine may dial private addresses, whichever network others say that they are in."""


class PeerFigure(Strict, frozen=True, kw_only=True):
    """A link to another provider, as measured from here. Speed 0: it cannot be reached directly."""

    provider: ProviderId
    mbps: Figure = 0.0
    latency_ms: Figure = 0.0


class Figures(Strict, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured: memory free for training, speed on a short real workload, links."""

    memory_bytes: Bytes
    """Free for training on the device, within the caps."""
    gflops: Figure
    """In single precision."""
    rates: Annotated[dict[Precision, Figure], Meta(max_length=8)] = field(default_factory=dict)
    """GFLOP/s in others; of agents of earlier releases they are not known."""
    host_memory_bytes: Bytes | None = None
    """Beside a device with memory of its own, free for training in the machine's; None if they are
    one, or if an agent of an earlier release does not say."""
    up_mbps: Figure
    """To the server, within the caps."""
    down_mbps: Figure
    latency_ms: Figure
    peers: Annotated[tuple[PeerFigure, ...], Meta(max_length=64)] = ()
    addresses: Annotated[tuple[Address, ...], Meta(max_length=16)] = ()
    """Where other providers may try to reach this one; () if it listens nowhere."""
