"""One member of a ring, without a pipeline: real links, averager and rounds over one vector."""

import queue
from collections.abc import Callable, Sequence

import torch
from torch import nn

from ravnest.errors import RavnestError
from ravnest.provider.averaging.averager import Averager, RingInbox
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Rules, Share
from ravnest.provider.compression import Compression
from ravnest.provider.document import RingDocument, RingMember
from ravnest.wire.endpoint import Endpoint, NetworkThread
from ravnest.wire.link import LinkEvent
from ravnest.wire.peers import Patience, Peer
from ravnest.wire.streams import Network


class _Stage:
    """Holds one parameter and nothing else."""

    def __init__(self, values: torch.Tensor) -> None:
        self.parameter = nn.Parameter(values)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"w": self.parameter}


class Member:
    """Its thread is the compute thread."""

    def __init__(
        self,
        network: Callable[[], Network],
        addresses: Sequence[str],
        rank: int,
        values: torch.Tensor,
        codec: str | None = None,
        settings: Averaging | None = None,
    ) -> None:
        members = tuple(RingMember(f"node_{r}", where, r) for r, where in enumerate(addresses))
        stage = _Stage(values)
        self.parameter = stage.parameter
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = NetworkThread()
        self._thread.start()
        inbox: RingInbox = queue.SimpleQueue()
        endpoint = self._thread.call(self._open(network, members, rank, inbox))
        self._endpoint = endpoint
        self.share = Share(
            stage,  # type: ignore[arg-type]
            {"w": stage.parameter},
            lambda: None,
            Rules(1, blocking=True),
        )
        self._averager = Averager(
            [RingDocument(0, ("w",), members, rank)],
            self.share,
            settings or Averaging(mode="blocking"),
            inbox,
            reach=lambda node, met: self._thread.call(endpoint.reach(node, has_been_there=met)),
            on_compute_thread=self._calls.put,
            averaged=self.share.averaged,
            fail=self._fail,
            tell_cluster=lambda cluster: None,
            compression=Compression(rings=codec),
        )
        self._averager.start()
        self._updates = 0

    async def _open(
        self,
        network: Callable[[], Network],
        members: Sequence[RingMember],
        rank: int,
        inbox: "queue.SimpleQueue[LinkEvent | Callable[[], None]]",
    ) -> Endpoint:
        me = members[rank]
        endpoint = Endpoint(network(), run="bench", node=me.node, on_event=inbox.put)
        await endpoint.listen(me.address)
        others = [Peer(m.node, m.address) for m in members if m.node != me.node]
        endpoint.welcome(others, Patience())
        return endpoint

    def _fail(self, error: RavnestError) -> None:
        raise SystemExit(str(error))

    def round(self) -> None:
        """All members stand still, and go on from the mean."""
        self.share.trained(1)
        self._updates += 1
        self.share.updated(self._updates)
        while self.share.stands_still:
            self._calls.get()()
            if self.share.has_news:
                self.share.apply()

    @property
    def exchange_s(self) -> float:
        """How long chunks were under way in the last round."""
        return self._averager.reports()[0].exchange_s

    def close(self) -> None:
        self._averager.stop()
        self._thread.call(self._endpoint.close(2.0))
        self._thread.stop()
