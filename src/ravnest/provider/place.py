"""Where a provider stands: in its pipeline, and in the rings of all clusters."""

from dataclasses import dataclass, field

from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.compression import Compression
from ravnest.provider.document import RingDocument
from ravnest.wire.peers import Peer


@dataclass(frozen=True)
class Place:
    """Where in the run this provider stands."""

    run: str
    node: str
    listen: str
    previous: Peer | None
    next: Peer | None

    @property
    def is_first(self) -> bool:
        return self.previous is None


@dataclass(frozen=True)
class Rings:
    """What this provider averages with other clusters, with whom, and how."""

    documents: tuple[RingDocument, ...]
    settings: Averaging
    compression: Compression = field(default_factory=Compression)

    def peers(self, me: str) -> dict[str, Peer]:
        members = (member for ring in self.documents for member in ring.members)
        return {m.node: Peer(m.node, m.address) for m in members if m.node != me}
