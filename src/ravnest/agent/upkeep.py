"""What an agent does beside assignments: measures links, renews its certificate, removes old files.

When, and what follows from it, is known to `control.py`. Whatever fails is told and may be tried
again; an assignment is not disturbed by it.
"""

import asyncio
import datetime

from ravnest.agent.errand import Surroundings
from ravnest.agent.folders import WorkFolders
from ravnest.agent.identity import renew_if_due
from ravnest.agent.instructions import Show
from ravnest.agent.keeping import KeptFiles
from ravnest.agent.measuring import Measuring
from ravnest.api.control import PeerAddress
from ravnest.api.machine import Figures
from ravnest.errors import RavnestError


class Upkeep:
    def __init__(self, around: Surroundings, measuring: Measuring, show: Show) -> None:
        self._around, self._measuring, self._show = around, measuring, show
        self._renewing = asyncio.Lock()

    async def renew(self) -> None:
        """The certificate that other providers are shown, if it ends soon. Without a good one they
        do not talk to this one at all: links through the server's relay carry the same TLS."""
        identity, listener = self._around.identity, self._around.listener
        now = datetime.datetime.now(datetime.UTC)
        try:
            # One at a time: asked for again meanwhile, there is nothing left to do.
            async with self._renewing:
                if not await asyncio.to_thread(renew_if_due, identity, self._around.client, now):
                    return
            if listener is not None:
                listener.take_certificate(identity)
        except (RavnestError, OSError, ValueError) as error:
            # The old one is good for some time yet; tried again in an hour or after a reconnect.
            self._show("renewing", f"the certificate for other providers stays as it is: {error}")
            return
        self._show("renewed", "the certificate that other providers are shown was renewed")

    async def remove_old(self, job: str | None) -> None:
        """What was put away, and what was kept for a job other than this one."""
        home = self._around.settings.home
        await asyncio.to_thread(WorkFolders(home).empty)
        await asyncio.to_thread(KeptFiles(home).prune, but=job)

    async def measure(self) -> Figures | None:
        """None if the server cannot be measured with now."""
        try:
            figures = await self._measuring.measure_link(self._around.client)
        except Exception as error:  # whatever it answers
            self._show("measuring", f"the line to the server cannot be measured now: {error}")
            return None
        self._show(
            "measured",
            f"{figures.up_mbps:,.1f} Mbit/s up, {figures.down_mbps:,.1f} down, "
            f"{figures.latency_ms:.1f} ms to the server",
        )
        return figures

    async def probe(self, peers: tuple[PeerAddress, ...]) -> Figures | None:
        around = self._around
        return await self._measuring.probe(around.identity, peers, around.dialling, around.up)

    async def news(self) -> Figures | None:
        """What has changed about memory since the server was told."""
        await self._measuring.look()
        return self._measuring.news()

    async def too_little(self, memory_bytes: int) -> str | None:
        return await self._measuring.too_little(memory_bytes)
