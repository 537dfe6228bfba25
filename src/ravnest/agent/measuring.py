"""All figures of a provider, as far as they have been measured: speed, links, neighbours."""

from collections.abc import Sequence

from ravnest.agent.addresses import Dialling
from ravnest.agent.identity import Identity
from ravnest.agent.links import LinkFigures
from ravnest.agent.machine import memory_beside, memory_for_training
from ravnest.agent.pacing import Bucket
from ravnest.agent.peers import probe
from ravnest.agent.sharing import Machine
from ravnest.agent.vram import free_bytes
from ravnest.agent.workload import Speed
from ravnest.api.control import PeerAddress
from ravnest.api.machine import PRECISIONS, Caps, Figures, PeerFigure
from ravnest.client.http import HttpClient

_MOST_PEERS = 64
_NEWS = 0.125
"""Memory that changes by less says nothing that plans would be made by."""


class Measuring:
    """Of one provider. Its line is that of the machine, which is measured once; links to other
    providers the server asks for; memory is looked at again and again."""

    def __init__(
        self,
        speed: Speed,
        caps: Caps,
        addresses: tuple[str, ...],
        provider: int = 0,
        machine: Machine | None = None,
    ) -> None:
        self._speed, self._caps, self._addresses = speed, caps, addresses
        self._provider, self._machine = provider, machine or Machine()
        self._link: LinkFigures | None = None
        self._peers: dict[int, PeerFigure] = {}
        self._free: int | None = None
        self._told: Figures | None = None

    async def measure_link(self, client: HttpClient) -> Figures:
        await self.look()
        self._link = await self._machine.measured_link(client)
        return self.figures()

    async def probe(
        self,
        identity: Identity,
        peers: Sequence[PeerAddress],
        dialling: Dialling,
        up: Bucket | None = None,
    ) -> Figures | None:
        """None if the line to the server has not been measured: one thing after another."""
        for figure in await probe(identity, peers, dialling, self._machine.line, up):
            self._peers.pop(figure.provider, None)
            self._peers[figure.provider] = figure
        while len(self._peers) > _MOST_PEERS:
            self._peers.pop(next(iter(self._peers)))
        return self.figures() if self._link is not None else None

    async def look(self) -> None:
        """What is free on the device now. Where nobody says so, it stays what it was."""
        free = await free_bytes(self._speed.device_ids)
        self._free = self._free if free is None else free

    async def too_little(self, memory_bytes: int) -> str | None:
        """Why a stage of so many bytes does not fit, though it did when it was planned."""
        if not self._speed.device_memory_bytes:
            return None
        await self.look()
        most = memory_for_training(self._caps, self._speed, self._free)
        if memory_bytes <= most:
            return None
        return (
            f"it needs {memory_bytes / 1e9:.2f} GB on {self._speed.device}, and "
            f"{most / 1e9:.2f} GB are free for training there now"
        )

    def news(self) -> Figures | None:
        """If memory or neighbours have changed so much that plans should know."""
        before = self._told
        if before is None:
            return None
        now = self._now()
        either = (
            (before.memory_bytes, now.memory_bytes),
            (before.host_memory_bytes or 0, now.host_memory_bytes or 0),
        )
        moved = any(abs(new - old) > _NEWS * max(new, old) for old, new in either)
        return self.figures() if moved or before.peers != now.peers else None

    def figures(self) -> Figures:
        self._told = self._now()
        return self._told

    def _now(self) -> Figures:
        assert self._link is not None
        near = self._machine.links(self._provider, self._caps.bandwidth_mbps)
        here = {each.provider for each in near}
        far = tuple(
            PeerFigure(
                provider=each.provider, mbps=self._capped(each.mbps), latency_ms=each.latency_ms
            )
            for each in self._peers.values()
            if each.provider not in here
        )
        return Figures(
            memory_bytes=memory_for_training(self._caps, self._speed, self._free),
            host_memory_bytes=memory_beside(self._caps, self._speed),
            gflops=self._speed.gflops,
            rates={name: rate for name, rate in self._speed.rates.items() if name in PRECISIONS},
            up_mbps=self._capped(self._link.up_mbps),
            down_mbps=self._capped(self._link.down_mbps),
            latency_ms=self._link.latency_ms,
            peers=(*near, *far)[:_MOST_PEERS],
            addresses=self._addresses,
        )

    def _capped(self, mbps: float) -> float:
        cap = self._caps.bandwidth_mbps
        return mbps if cap is None else min(mbps, cap)
