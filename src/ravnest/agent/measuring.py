"""All figures of this machine, as far as they have been measured: speed, links, neighbours."""

import asyncio
from collections.abc import Sequence

from ravnest.agent.addresses import Dialling
from ravnest.agent.identity import Identity
from ravnest.agent.links import LinkFigures, measure_link
from ravnest.agent.machine import memory_for_training
from ravnest.agent.pacing import Bucket
from ravnest.agent.peers import probe
from ravnest.agent.workload import Speed
from ravnest.api.control import PeerAddress
from ravnest.api.machine import Caps, Figures, PeerFigure
from ravnest.client.http import HttpClient

_MOST_PEERS = 64


class Measuring:
    """Measured once each, except links to other providers, which the server asks for."""

    def __init__(self, speed: Speed, caps: Caps, addresses: tuple[str, ...]) -> None:
        self._speed, self._caps, self._addresses = speed, caps, addresses
        self._link: LinkFigures | None = None
        self._peers: dict[int, PeerFigure] = {}
        self._alone = asyncio.Lock()
        """Two measurements at once would each find half of the line."""

    async def measure_link(
        self, client: HttpClient, *, up: Bucket | None = None, down: Bucket | None = None
    ) -> Figures:
        async with self._alone:
            if self._link is None:
                self._link = await asyncio.to_thread(measure_link, client, up=up, down=down)
        return self.figures()

    async def probe(
        self,
        identity: Identity,
        peers: Sequence[PeerAddress],
        dialling: Dialling,
        up: Bucket | None = None,
    ) -> Figures | None:
        """None if the line to the server has not been measured: one thing after another."""
        for figure in await probe(identity, peers, dialling, self._alone, up):
            self._peers.pop(figure.provider, None)
            self._peers[figure.provider] = figure
        while len(self._peers) > _MOST_PEERS:
            self._peers.pop(next(iter(self._peers)))
        return self.figures() if self._link is not None else None

    def figures(self) -> Figures:
        assert self._link is not None
        return Figures(
            memory_bytes=memory_for_training(self._caps, self._speed),
            gflops=self._speed.gflops,
            up_mbps=self._capped(self._link.up_mbps),
            down_mbps=self._capped(self._link.down_mbps),
            latency_ms=self._link.latency_ms,
            peers=tuple(
                PeerFigure(
                    provider=each.provider,
                    mbps=self._capped(each.mbps),
                    latency_ms=each.latency_ms,
                )
                for each in self._peers.values()
            ),
            addresses=self._addresses,
        )

    def _capped(self, mbps: float) -> float:
        cap = self._caps.bandwidth_mbps
        return mbps if cap is None else min(mbps, cap)
