"""What the owner of a machine has said on the command line."""

from dataclasses import dataclass, field
from pathlib import Path

from ravnest.api.machine import Caps
from ravnest.client.address import ServerAddress


@dataclass(frozen=True)
class AgentSettings:
    address: ServerAddress
    home: Path
    name: str
    is_named: bool = False
    """By its owner, who may call it something else than when it was enrolled."""
    caps: Caps = field(default_factory=Caps)
    device: str | None = None
    """Or several, with commas between them; None: every GPU, or the processor."""
    listen: str | None = "0.0.0.0:0"
    """None: no open port; everything goes through the server."""
    advertise: tuple[str, ...] = ()
    nice: int = 0
    once: bool = False
    within: Path | None = None
    """The home of the agent, where this one is that of one of several providers in it."""
    require_sandbox: bool = False
    """No foreign graph or script runs here without one."""

    @property
    def hidden(self) -> Path:
        """What a foreign graph or script sees nothing of."""
        return (self.within or self.home).resolve()
