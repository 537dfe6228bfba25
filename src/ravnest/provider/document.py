"""What the plan says about one provider: `nodes/node_<id>.json`, read."""

import msgspec

from ravnest.api.limits import NOT_UNDERSTOOD
from ravnest.errors import NodeError
from ravnest.rundir import RunDir
from ravnest.wire.peers import Peer


class RingMember(msgspec.Struct, frozen=True):
    """A provider that holds the tensors of a ring, for its cluster."""

    node: str
    address: str
    cluster: int


class RingDocument(msgspec.Struct, frozen=True):
    """Tensors that this provider averages with others. Members are in ring order."""

    id: int
    names: tuple[str, ...]
    members: tuple[RingMember, ...]
    place: int
    """Of this provider in `members`."""


class NodeDocument(msgspec.Struct, frozen=True):
    """What `clusterize` wrote down about this provider."""

    node_id: int
    local_host: str
    local_port: int
    node_type: str
    template_path: str = ""
    rank: int = 0
    ring_size: int = 1
    """Clusters that hold the same parameters."""
    cluster_length: int = 1
    plan_id: str = ""
    stage: int = 0
    stages: int = 1
    micro_batches: int = 1
    """Parts into which batches are divided."""
    most_in_flight: int | None = None
    """Micro-batches, of a batch divided into so many parts, that memory has room for."""
    recompute: bool = False
    """Activations are computed again for the backward: memory has no room to keep them."""
    forward_target_host: str | None = None
    forward_target_port: int | None = None
    backward_target_host: str | None = None
    backward_target_port: int | None = None
    forward_node: str = ""
    backward_node: str = ""
    reason: str = ""
    rings: tuple[RingDocument, ...] = ()
    """What it averages, and with whom."""

    @property
    def listen(self) -> str:
        """A public address may belong to the router in front: listen everywhere then."""
        host = self.local_host
        local = host in ("localhost", "[::1]") or host.startswith("127.")
        return f"{host if local else '0.0.0.0'}:{self.local_port}"

    @property
    def previous(self) -> Peer | None:
        if self.backward_target_host is None:
            return None
        address = f"{self.backward_target_host}:{self.backward_target_port}"
        return Peer(self.backward_node, address)

    @property
    def next(self) -> Peer | None:
        if self.forward_target_host is None:
            return None
        return Peer(self.forward_node, f"{self.forward_target_host}:{self.forward_target_port}")


def read_document(run: RunDir, name: str) -> NodeDocument:
    """`SystemExit` with code 0 if the plan leaves this provider out."""
    if not name:
        raise NodeError("a provider needs a name: Node(name='node_0'), or RAVNEST_NODE=node_0")
    kind, _, number = name.rpartition("_")
    if kind != "node" or not number.isdigit():
        raise NodeError(f"name is {name!r}; expected 'node_0', 'node_17' and the like")
    run.settle()
    path = run.node_file(int(number))
    try:
        document = msgspec.json.decode(path.read_bytes(), type=NodeDocument)
    except FileNotFoundError:
        known = sorted(file.stem for file in path.parent.glob("node_*.json"))
        raise NodeError(
            f"{path} does not exist: {name} is not part of the plan"
            + (f", which has {', '.join(known[:20])}" if known else "; run clusterize first")
        ) from None
    except NOT_UNDERSTOOD as error:
        raise NodeError(f"{path} cannot be understood: {error}") from error
    if document.node_type == "Idle":
        # Its script has nothing to do, which is no fault of anybody's.
        print(f"{name} is idle, the plan does not use it: {document.reason}", flush=True)
        raise SystemExit(0)
    return document
