"""How long the body of a request may take: it must get on, and not at a crawl.

Only the time in which the sender is waited for counts; a slow disk of ours is not their fault.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from ravnest.server.service.problems import Refusal


@dataclass(frozen=True)
class Patience:
    idle_s: float = 60.0
    """From one piece of a body to the next."""
    least_bytes_per_s: float = 4096.0
    """On average, of a body that takes longer than `free_s`."""
    free_s: float = 60.0


async def in_time(
    body: AsyncIterator[bytes],
    patience: Patience,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[bytes]:
    """The pieces of a body; a `Refusal` once it stands still or comes too slowly."""
    come, waited = 0, 0.0
    while True:
        began = clock()
        try:
            async with asyncio.timeout(patience.idle_s):
                piece = await anext(body, None)
        except TimeoutError:
            raise Refusal(
                "late", f"nothing has come for {patience.idle_s:g} seconds, after {come} bytes"
            ) from None
        if piece is None:
            return
        come += len(piece)
        waited += clock() - began
        if waited > patience.free_s and come < waited * patience.least_bytes_per_s:
            raise Refusal(
                "late",
                f"{come} bytes in {waited:.0f} seconds are too few; the server takes at least "
                f"{patience.least_bytes_per_s:g} in a second",
            )
        yield piece
