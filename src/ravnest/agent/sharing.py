"""What the providers of one machine have in common: its line, and the short way between them.

One agent process may be several providers, one for each device. To the server each of them is one
like any other. What the owner allows of memory, threads and bandwidth is for all of them together.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ravnest.agent.links import LinkFigures, measure_link
from ravnest.agent.pacing import Bucket, bucket_of
from ravnest.api.machine import PeerFigure
from ravnest.client.http import HttpClient

LOCAL_MBPS, LOCAL_MS = 8_000.0, 0.1
"""What workers carry to each other within a machine, encrypted: about so much on any of today's.
It is not measured: while one is tried, the others are measured too."""


@dataclass
class Machine:
    """Of one server's providers on this machine, in this process."""

    bandwidth_mbps: float | None = None
    up: Bucket | None = field(init=False)
    down: Bucket | None = field(init=False)
    line: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Two measurements at once would each find half of it."""
    _link: LinkFigures | None = None
    _places: dict[int, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.up, self.down = bucket_of(self.bandwidth_mbps), bucket_of(self.bandwidth_mbps)

    def expect(self, providers: Sequence[int]) -> None:
        """These are to run here."""
        self._places = dict.fromkeys(providers) | self._places

    def settle(self, provider: int, place: str | None) -> Callable[[], None]:
        """It listens there, for the others; to be called when it does not any more."""
        self._places[provider] = place

        def gone() -> None:
            self._places.pop(provider, None)

        return gone

    def place_of(self, provider: int) -> tuple[str, ...]:
        place = self._places.get(provider)
        return () if place is None else (place,)

    def links(self, provider: int, most_mbps: float | None) -> tuple[PeerFigure, ...]:
        """To all others."""
        mbps = LOCAL_MBPS if most_mbps is None else min(LOCAL_MBPS, most_mbps)
        others = sorted(self._places.keys() - {provider})
        return tuple(PeerFigure(provider=id, mbps=mbps, latency_ms=LOCAL_MS) for id in others)

    async def measured_link(self, client: HttpClient) -> LinkFigures:
        """To the server; once for all."""
        async with self.line:
            if self._link is None:
                self._link = await asyncio.to_thread(
                    measure_link, client, up=self.up, down=self.down
                )
        return self._link
