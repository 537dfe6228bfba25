"""Lines of the log about what others do: as many as somebody may want to read.

Whoever is refused can ask again at once, and each refusal is a line. One address gets so many
lines, and all together so many; of the rest it is said how many they were.
"""

import time
from collections.abc import Callable, Mapping

from ravnest.server.service.ratelimit import Buckets, Rate

_RATES = {"one": Rate(0.2, 100), "all": Rate(5, 500)}


class Saying:
    def __init__(
        self,
        write: Callable[[str], None],
        *,
        rates: Mapping[str, Rate] = _RATES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._buckets = Buckets(rates)
        self._clock = clock
        self._unsaid = 0

    def say(self, address: str, line: str) -> None:
        now = self._clock()
        if not (self._buckets.take("one", address, now) and self._buckets.take("all", "", now)):
            self._unsaid += 1
            return
        if self._unsaid:
            others = "1 other was" if self._unsaid == 1 else f"{self._unsaid} others were"
            line += f"; before this, {others} not said"
            self._unsaid = 0
        # As the only argument: there may be a percent sign in what others say.
        self._write(line)
